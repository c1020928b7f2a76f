"""Requests for single nodes on an idle machine: how many of them a server refuses.

    python -m benchmarks.admission FOLDER [--connections 32] [--seconds 5] [--rounds 3]

A model of three layers over six edge types, asked over so many connections, each of which asks for one node
after another. Predicted by the paths below it, one node would be tens of thousands of rows; it takes about
2 ms. The first second counts, in which everything is cold.

Prints a table, and a line of JSON at last. FOLDER keeps the graph and the model for the next time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from benchmarks.load import ID, Request
from benchmarks.machine import commit, machine
from benchmarks.server_process import free_port, serve

NUM_NODES, MEAN_DEGREE, DIM = 20_000, 3.14, 32
TYPES = ("account", "card", "shop")
REQUEST = Request("/v1/models/wide/score", f'{{"nodes":[{ID}]}}')


def build(folder: Path) -> None:
    """Write the graph and the model."""
    import numpy as np
    import torch
    from torch_geometric.nn import HeteroConv, SAGEConv

    from hopline import Graph, package
    from hopline.graph import EdgeTable, NodeTable

    random = np.random.default_rng(0)
    torch.manual_seed(0)
    keys = [(a, "to", b) for a in TYPES for b in TYPES if a != b]
    count = int(NUM_NODES * MEAN_DEGREE)
    graph = Graph.from_tables(
        {name: NodeTable(random.standard_normal((NUM_NODES, DIM), dtype=np.float32)) for name in TYPES},
        {key: EdgeTable(random.integers(0, NUM_NODES, (2, count))) for key in keys},
    )

    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(
                HeteroConv({key: SAGEConv((DIM, DIM), DIM) for key in keys}) for _ in range(3)
            )

        def forward(self, x_dict, edge_index_dict):  # type: ignore[no-untyped-def]
            for layer in self.layers:
                x_dict = {name: x.relu() for name, x in layer(x_dict, edge_index_dict).items()}
            return x_dict["account"]

    graph.save(folder / "graph")
    package(
        Wide(), graph, folder / "repository", name="wide", fanouts=[10, 10, 10], task="embedding",
        target="account", overwrite=True,
    )  # fmt: skip


async def ask(port: int, until: float, seed: int, answers: Counter[int], ms: list[float]) -> None:
    """One connection: one node after another."""
    nodes = random.Random(seed)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while time.monotonic() < until:
        body = REQUEST.for_node(nodes.randrange(NUM_NODES))
        head = f"POST {REQUEST.path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        began = time.perf_counter()
        writer.write(head.encode() + (body if isinstance(body, bytes) else body.encode()))
        said = await reader.readuntil(b"\r\n\r\n")
        length = int(said.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        await reader.readexactly(length)
        ms.append((time.perf_counter() - began) * 1e3)
        answers[int(said.split(None, 2)[1])] += 1
    writer.close()


async def load(port: int, connections: int, seconds: float) -> tuple[Counter[int], list[float]]:
    """Answers by status, and milliseconds of each."""
    answers: Counter[int] = Counter()
    ms: list[float] = []
    until = time.monotonic() + seconds
    await asyncio.gather(*(ask(port, until, seed, answers, ms) for seed in range(connections)))
    return answers, ms


def measure(folder: Path, connections: int, seconds: float) -> dict[str, float]:
    """Of a server that has just started."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "hopline.cli", "serve"),
        *("--graph", str(folder / "graph"), "--repository", str(folder / "repository")),
        *("--port", str(port), "--grpc-port", "-1"),
    ]
    with serve(command, port, REQUEST, num_outputs=DIM):
        answers, ms = asyncio.run(load(port, connections, seconds))
    total = sum(answers.values())
    return {
        "rps": round(total / seconds, 1),
        "refused_percent": round(100 * answers[503] / total, 2),
        "other_percent": round(100 * (total - answers[200] - answers[503]) / total, 2),
        "p50_ms": round(statistics.median(ms), 2),
        "p99_ms": round(statistics.quantiles(ms, n=100)[98], 2),
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", action="store_true", help="write the graph and the model, and end")
    arguments = parser.parse_args()
    if arguments.build:
        build(arguments.folder)
        return
    if not (arguments.folder / "repository" / "wide" / "1" / "model.json").is_file():
        command = [sys.executable, "-m", "benchmarks.admission", str(arguments.folder), "--build"]
        subprocess.run(command, check=True)
    rounds = []
    for at in range(arguments.rounds):
        rounds.append(measure(arguments.folder, arguments.connections, arguments.seconds))
        print(f"{at + 1:5d}  " + "  ".join(f"{name} {value:8g}" for name, value in rounds[-1].items()))
    median = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    print(json.dumps({**machine(), "commit": commit(), "connections": arguments.connections, **median}))


if __name__ == "__main__":
    main()
