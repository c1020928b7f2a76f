"""Sampler, gather and layers against PyG and against the machine's memory.

One thread each, same graph, model and fanouts; Hopline and PyG take turns in rounds, so that a change
of the machine's speed hits both. Seeds are drawn uniformly, new ones for every call. "Empty table"
computes every row; "warm table" has every layer-1 row. The limit of the gather is the best rate at
which this machine copies random rows of the same size by any of the usual means.

    python -m benchmarks.kernels [--small] [--rounds N]

Set PyG up with `benchmarks/setup`. Prints tables; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numba import njit

from benchmarks.hopline_server import STATE_CACHE_BYTES, prepare
from benchmarks.machine import commit, machine
from benchmarks.workload import FULL, SMALL, ensure
from hopline.artifact import read_spec
from hopline.engine.kernels import gather, reduce_sum
from hopline.engine.model import Model, StateCachePlan
from hopline.engine.plan import make_plan
from hopline.graph import Graph
from hopline.graph.residency import in_huge_pages, prefault
from hopline.memory.arena import Arena
from hopline.types import FloatArray, IdArray

SEEDS = (1, 1024)
CALLS = {1: 400, 1024: 8}
ROWS = 50_000


class Hopline:
    """The model without and with a table, on the benchmark's graph."""

    def __init__(self, serve_dir: Path) -> None:
        # as a server of one worker holds it
        self.graph = in_huge_pages(Graph.open(serve_dir / "graph"))
        prefault(self.graph)
        folder = serve_dir / "repository" / "sage" / "1"
        spec = read_spec(folder)
        plan = StateCachePlan(spec, self.graph, STATE_CACHE_BYTES)
        self.cold = Model(folder, spec, self.graph)
        self.warm = Model(folder, spec, self.graph, plan.build(Arena(plan.num_bytes)))
        self.num_nodes = self.graph.num_nodes
        self.rng = np.random.default_rng(2)

        gc.collect()
        gc.freeze()  # as the server does; PyG's process too

    def fill(self) -> None:
        """Compute every layer-1 row once."""
        for first in range(0, self.num_nodes, 4096):
            ids = np.arange(first, min(first + 4096, self.num_nodes))
            self.warm.final_states({"node": ids})

    def seeds(self, count: int) -> IdArray:
        """Distinct uniform ids, as the server's batches have them."""
        return np.unique(self.rng.integers(0, self.num_nodes, count))

    def time_us(self, model: Model, count: int, calls: int) -> dict[str, float]:
        """Median microseconds of a call, and of planning alone (which samples), by the general way."""
        plans, whole = [], []
        for _ in range(calls):
            ids = self.seeds(count)
            t0 = time.perf_counter()
            model.final_states({"node": ids})
            whole.append(time.perf_counter() - t0)
        for _ in range(calls):
            ids = self.seeds(count)
            t0 = time.perf_counter()
            make_plan(model.levels, model.spec.num_layers, {"node": ids})
            plans.append(time.perf_counter() - t0)
        return {"total": 1e6 * float(np.median(whole)), "sample": 1e6 * float(np.median(plans))}

    def bit_equal(self) -> bool:
        """True if 1,000 nodes get the same bits cold, warm, together and alone."""
        ids = self.rng.permutation(self.num_nodes)[:1000]
        cold = self.cold.final_states({"node": ids})["node"].copy()
        warm = self.warm.final_states({"node": ids})["node"].copy()
        alone = np.concatenate(
            [self.cold.final_states({"node": ids[i : i + 1]})["node"].copy() for i in range(200)]
        )
        return bool((cold == warm).all() and (cold[:200] == alone).all())


class Pyg:
    """PyG in its own environment, asked over a pipe."""

    def __init__(self, workload: Path) -> None:
        python = Path(".venv-bench/bin/python").absolute()
        if not python.is_file():
            raise SystemExit("PyG's environment is missing; run benchmarks/setup")
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.peers.kernels_pyg", str(workload)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        self._answer()

    def time_us(self, count: int, calls: int) -> dict[str, float]:
        """Median microseconds of a call."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count} {calls}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("PyG's process ended")
        answer: dict[str, float] = json.loads(line)
        return answer


@njit(nogil=True)
def plain_copy(base, rows, out):  # type: ignore[no-untyped-def]
    """Row by row, without asking for rows ahead of time."""
    for i in range(rows.shape[0]):
        out[i] = base[rows[i]]


def bandwidth(features: FloatArray) -> dict[str, float]:
    """GB/s at which random rows are read, by our kernels and by the usual means."""
    rng = np.random.default_rng(3)
    out = np.empty((ROWS, features.shape[1]), np.float32)
    reduced = np.empty((ROWS // 5, features.shape[1]), np.float32)
    offsets = np.arange(0, ROWS + 1, 5)
    tensor, out_tensor = torch.from_numpy(features.copy()), torch.from_numpy(out)
    none = np.empty(0, np.float32)
    torch.set_num_threads(1)

    def select(rows: IdArray) -> None:
        torch.index_select(tensor, 0, torch.from_numpy(rows), out=out_tensor)

    means: dict[str, Callable[[IdArray], object]] = {
        "hopline gather": lambda rows: gather(features, rows, 0, out.shape[1], out, 0),
        "hopline gather + mean of 5": lambda rows: reduce_sum(
            features, rows, offsets, none, True, 0, out.shape[1], reduced, 0
        ),
        "numpy.take": lambda rows: np.take(features, rows, 0, out=out, mode="clip"),
        "torch.index_select": select,
        "row by row": lambda rows: plain_copy(features, rows, out),
    }
    times: dict[str, list[float]] = {name: [] for name in means}
    for _ in range(15):
        for name, run in means.items():
            rows = rng.integers(0, features.shape[0], ROWS)
            began = time.perf_counter()
            run(rows)
            times[name].append(time.perf_counter() - began)
    size = ROWS * features.shape[1] * 4 / 1e9
    return {name: size / float(np.median(values)) for name, values in times.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="50 k nodes, 1 M edges: to try it")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    workload = ensure(SMALL if options.small else FULL)
    ours, pyg = Hopline(prepare(workload)), Pyg(workload)
    print("filling the table …", flush=True)
    began = time.perf_counter()
    ours.fill()
    print(f"{ours.num_nodes} layer-1 rows in {time.perf_counter() - began:.1f} s")
    measured: dict[int, dict[str, list[dict[str, float]]]] = {
        n: {"pyg": [], "empty": [], "warm": []} for n in SEEDS
    }
    for _ in range(options.rounds):
        for n in SEEDS:
            measured[n]["pyg"].append(pyg.time_us(n, CALLS[n]))
            measured[n]["empty"].append(ours.time_us(ours.cold, n, CALLS[n]))
            measured[n]["warm"].append(ours.time_us(ours.warm, n, CALLS[n]))
    pyg.close()
    result: dict[str, object] = {}
    print(f"\n{'seeds':>5} {'':14} {'µs/call':>10} {'planning':>9} {'× PyG':>7}")
    for n in SEEDS:
        figures: dict[str, float] = {}
        for kind in ("pyg", "empty", "warm"):
            rounds = measured[n][kind]
            total = float(np.median([r["total"] for r in rounds]))
            sample = float(np.median([r["sample"] for r in rounds]))
            # round by round, since the machine's speed drifts
            paired = zip(measured[n]["pyg"], rounds, strict=True)
            speedup = float(np.median([p["total"] / r["total"] for p, r in paired]))
            print(f"{n:5} {kind:14} {total:10.1f} {sample:9.1f} {speedup:7.1f}")
            figures[f"{kind}_us"] = round(total, 1)
            if kind != "pyg":
                figures[f"{kind}_speedup"] = round(speedup, 2)
        result[f"seeds_{n}"] = figures
    equal = ours.bit_equal()
    rates = bandwidth(np.ascontiguousarray(ours.graph.nodes["node"].features))
    ceiling = max(rate for name, rate in rates.items() if not name.startswith("hopline"))
    print(f"\nrandom rows of 512 bytes, one thread{'':5} GB/s   of the limit")
    for name, rate in rates.items():
        print(f"{name:38} {rate:6.2f}   {rate / ceiling:6.0%}")
    result |= {
        "bit_equal": equal,
        "gather_gb_s": round(rates["hopline gather"], 2),
        "copy_limit_gb_s": round(ceiling, 2),
        "gather_share_of_limit": round(rates["hopline gather"] / ceiling, 2),
        "machine": machine(),
        "commit": commit(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
