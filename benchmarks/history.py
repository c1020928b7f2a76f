"""Questions about the past of a graph whose rows have a history, against questions about now.

GraphSAGE 64 → 64 → 32, fanouts [10, 5], over edges with times; each node has 8 rows at random times. One
thread, in the process, without a state cache: a question with `as_of` uses none. Other seeds are drawn for
each call, and the kinds take turns, so that a change of the machine's speed hits all.

    now       no time: the newest rows
    then      a time at which nine tenths of all edges and rows are known: the rows of then
    cut       the same time on the same graph without a history: edges of then, rows of now
    live      no time, on a live graph that began with the one with a history
    past      the same time on the live graph

    python -m benchmarks.history [--small] [--rounds N]

Prints a table; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import nn
from torch_geometric.nn import SAGEConv

import hopline
from benchmarks.machine import commit, machine
from hopline.artifact import read_spec
from hopline.engine.model import Model
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.edge_times import rough_range
from hopline.graph.live.history import fill, make_writer
from hopline.graph.live.home import Start
from hopline.graph.live.state import State
from hopline.graph.live.view import LiveView
from hopline.sampling.keyed import NO_CUT
from hopline.types import IdArray

FULL, SMALL = (200_000, 4_000_000), (20_000, 400_000)
ROWS, DIM, LAST = 8, 64, 1_000_000
SIZES = (1, 64, 4096)


class Sage(nn.Module):
    """Two mean layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = SAGEConv(DIM, 64), SAGEConv(64, 32)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        """Rows of all nodes."""
        found: torch.Tensor = self.b(self.a(x, edge_index).relu(), edge_index)
        return found


def graphs(num_nodes: int, num_edges: int) -> dict[str, Graph]:
    """The graph with a history, and the same one with the newest rows alone."""
    rng = np.random.default_rng(0)
    times = rng.integers(1, LAST, (num_nodes, ROWS))
    times[:, 0] = 0  # all nodes exist from the beginning
    ids = np.repeat(np.arange(num_nodes), ROWS)
    rows = rng.standard_normal((len(ids), DIM), dtype=np.float32)
    kept = np.unique(ids * LAST + times.ravel(), return_index=True)[1]
    ends = rng.integers(0, num_nodes, (2, num_edges))
    edges = {("node", "to", "node"): EdgeTable(ends, time=rng.integers(0, LAST, num_edges))}
    table = NodeTable(rows[kept], ids=ids[kept], history=times.ravel()[kept])
    past = Graph.from_tables({"node": table}, edges)
    part = past.nodes["node"]
    newest = NodeTable(np.asarray(part.features), ids=part.ids)
    return {"history": past, "newest": Graph.from_tables({"node": newest}, edges)}


def live(graph: Graph) -> LiveView:
    """A live graph that begins with a graph."""
    start = Start(graph, State(graph.version, 0))
    room = {"spare_nodes": 1000, "spare_edges": 1000, "num_levels": 3}
    writer, view = make_writer(start, graph.version, None, lambda: 0, **room)
    fill(writer, start)
    return view()


def measure(kinds: dict[str, tuple[Model, int]], size: int, rounds: int) -> dict[str, float]:
    """Nodes a second of each kind, the median of rounds."""
    rng, found = np.random.default_rng(size), {kind: list[float]() for kind in kinds}
    calls = max(1, min(400, 8192 // size))
    for turn in range(rounds + 1):
        for kind, (model, as_of) in kinds.items():
            seeds: list[IdArray] = [
                rng.choice(model.graph.nodes["node"].num_nodes, size, replace=False) for _ in range(calls)
            ]
            began = time.perf_counter()
            with model.graph if isinstance(model.graph, LiveView) else nullcontext():
                for ids in seeds:
                    model.final_states({"node": ids}, as_of)
            if turn:  # the first one loads pages and kernels
                found[kind].append(calls * size / (time.perf_counter() - began))
    return {kind: float(np.median(rates)) for kind, rates in found.items()}


def main() -> int:
    """Run the command."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--small", action="store_true", help="20 k nodes: to try the harness")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    at_start, sizes = machine(), SMALL if args.small else FULL
    torch.set_num_threads(1)
    torch.manual_seed(0)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="history-") as name:
        made = {key: graph.save(Path(name) / key) for key, graph in graphs(*sizes).items()}
        report = hopline.package(
            Sage().eval(), made["newest"], Path(name) / "models", name="sage", fanouts=[10, 5],
            task="embedding", check_nodes=200,
        )  # fmt: skip
        spec = read_spec(report.path)
        models = {key: Model(report.path, spec, graph) for key, graph in made.items()}
        models["live"] = Model(report.path, spec, live(made["history"]))
        first, last = rough_range(made["history"], made["history"].edges) or (0, 0)
        as_of = first + (last - first) * 9 // 10
        kinds = {
            "now": (models["history"], NO_CUT),
            "then": (models["history"], as_of),
            "cut": (models["newest"], as_of),
            "live": (models["live"], NO_CUT),
            "past": (models["live"], as_of),
        }
        header = "".join(f"{kind:>12}" for kind in kinds)
        print(f"{'seeds':>8}{header}{'then/now':>10}{'past/live':>10}   nodes/s")
        for size in SIZES:
            rates = measure(kinds, size, args.rounds)
            ratio, of_live = rates["then"] / rates["now"], rates["past"] / rates["live"]
            shown = "".join(f"{rates[kind]:>12,.0f}" for kind in kinds)
            print(f"{size:>8}{shown}{ratio:>10.2f}{of_live:>10.2f}", flush=True)
            figures |= {f"{kind}_{size}": round(rate) for kind, rate in rates.items()}
            figures |= {f"ratio_{size}": round(ratio, 3), f"live_ratio_{size}": round(of_live, 3)}
    config = {"nodes": sizes[0], "edges": sizes[1], "rows": ROWS, "dim": DIM, "fanouts": [10, 5]}
    print(json.dumps({"machine": at_start, "commit": commit(), "config": config, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
