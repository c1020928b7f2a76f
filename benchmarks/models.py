"""Eighteen models, in process: Hopline against PyG, with the state cache empty and filled.

One thread each, same graph, module and fanouts. Both take turns in rounds, so that a change of the
machine's speed hits both. Seeds are drawn uniformly, new ones for every call. PyG's sampler is kept open
and needs torch-sparse or pyg-lib in this environment; without one, `--without-pyg` measures Hopline alone.

    python -m benchmarks.models [--only NAME,NAME] [--rounds N] [--scale 0.1] [--without-pyg] [--profile]

The last six have convolutions that Hopline splits by their code; `lightgcn` has a learned row for each
of a million nodes. Figures are microseconds of processor time: what else runs on the machine is no part of
them, except through its caches. Prints a table of medians and ratios; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.machine import commit, machine
from benchmarks.models_phases.bandwidth import bandwidth
from benchmarks.models_phases.data import draw
from benchmarks.models_phases.modules import TABLE
from benchmarks.models_phases.sides import Hopline, Pyg
from hopline.types import FloatArray, IdArray

SEEDS = (1, 32, 1024)
CALLS = {1: 100, 32: 12, 1024: 2}


def time_us(ask: Callable[[IdArray], FloatArray], num_nodes: int, count: int, rng: Any) -> list[float]:
    """Microseconds of each call of one turn."""
    taken = []
    for _ in range(CALLS[count]):
        seeds = np.unique(rng.integers(0, num_nodes, count))
        began = time.thread_time()
        ask(seeds)
        taken.append(1e6 * (time.thread_time() - began))
    return taken


def measure(name: str, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """One row: microseconds by side and number of seeds."""
    drawn = draw(TABLE[name].graph, args.scale)
    ours = Hopline(name, drawn, folder)
    sides: dict[str, Callable[[IdArray], FloatArray]] = {
        "empty": lambda seeds: ours.score(ours.empty, seeds),
        "filled": lambda seeds: ours.score(ours.filled, seeds),
    }
    if not args.without_pyg:
        sides["pyg"] = Pyg(name, drawn).score
    num_nodes = len(drawn.features[ours.target])
    ours.fill()
    equal = ours.is_bit_equal()
    gc.collect()
    gc.freeze()
    rng = np.random.default_rng(1)
    if args.profile:
        _profile(sides["empty"], num_nodes)
    taken: dict[str, dict[int, list[float]]] = {side: {n: [] for n in SEEDS} for side in sides}
    for turn in range(args.rounds + 1):
        for side, ask in sides.items():
            for count in SEEDS:
                found = time_us(ask, num_nodes, count, rng)
                if turn:
                    taken[side][count] += found
    us = {side: {str(n): statistics.median(all_) for n, all_ in by.items()} for side, by in taken.items()}
    row: dict[str, Any] = {"us": us, "parity": ours.parity, "bit_equal": equal}
    if "pyg" in us:
        row["ratio"] = {
            side: {n: round(us["pyg"][n] / us[side][n], 2) for n in us["pyg"]}
            for side in ("empty", "filled")
        }
    return row


def _profile(ask: Callable[[IdArray], FloatArray], num_nodes: int) -> None:
    rng = np.random.default_rng(2)
    for count, calls in ((1, 500), (32, 60)):
        profile = cProfile.Profile(time.thread_time)
        profile.enable()
        for _ in range(calls):
            ask(np.unique(rng.integers(0, num_nodes, count)))
        profile.disable()
        print(f"--- {count} seeds, {calls} calls, empty cache", flush=True)
        pstats.Stats(profile).sort_stats("tottime").print_stats(14)


def _line(name: str, row: dict[str, Any]) -> str:
    parts = [f"{name:<13}"]
    for side in ("pyg", "empty", "filled"):
        for count in SEEDS:
            value = row["us"].get(side, {}).get(str(count))
            ratio = row.get("ratio", {}).get(side, {}).get(str(count))
            parts.append(f"{'-' if value is None else f'{value:,.0f}':>9}")
            if side != "pyg":
                parts.append(f"{'' if ratio is None else f'{ratio:.1f}':>6}")
    return "".join(parts) + ("" if row["bit_equal"] else "  NOT BIT-EQUAL")


def main() -> None:
    """Run the command."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="of the graph's size")
    parser.add_argument("--without-pyg", action="store_true")
    parser.add_argument("--profile", action="store_true", help="print where Hopline's time goes")
    args = parser.parse_args()
    at_start = machine()
    torch.set_num_threads(1)
    names = args.only.split(",") if args.only else list(TABLE)
    head = "".join(f"{side:>9} {n}" if n == 1 else f"{n:>9}" for side in ("pyg",) for n in SEEDS)
    print(f"{'µs':<13}{head}  then Hopline with the cache empty, and filled, each with PyG / Hopline")
    rows = {}
    with tempfile.TemporaryDirectory(prefix="models-") as folder:
        for name in names:
            rows[name] = measure(name, args, Path(folder))
            print(_line(name, rows[name]), flush=True)
            gc.unfreeze()
    read = bandwidth()
    print("GB/s of random rows: " + ", ".join(f"{name} {value:.1f}" for name, value in read.items()))
    told = {
        "models": rows,
        "gb_s": read,
        "config": {"seeds": SEEDS, "rounds": args.rounds, "scale": args.scale},
        "torch_threads": torch.get_num_threads(),
        "machine": at_start,
        "commit": commit(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
