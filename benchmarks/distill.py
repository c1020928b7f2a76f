"""Students against their teachers: accuracy by GLNN's protocol (arXiv 2110.08727), and speed in one server.

    accuracy  cora, citeseer and amazon_computers of the shared data, or the files named by --data: largest
              component, 20 labels per class, 30 for validation, a fifth of the test nodes held out of the
              graph; splits, teachers and students drawn again by each seed. `prod` is 0.8 × `tran`
              (observed test nodes) + 0.2 × `ind` (held-out ones)
    served    student and teacher in the same server, one node a request and 1,024

    python -m benchmarks.distill [--quick] [--data FILE …] [--seeds N] [--no-glnn]

`prod`, `tran` and `ind` are of the student that ships, an MLP over features and structure features; `glnn`
is an MLP over features, the published recipe; `mlp` the same from labels alone; `teacher` one GraphSAGE.
The student that ships learns from the mean of five teachers' answers. Code and settings are the same for
all graphs; settings were chosen on seeds from 100, which are not reported. Prints a table; the last line is
one JSON object. A figure that could not be had is null, and `failed` says why.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.machine import commit, machine
from benchmarks.phases import PhaseReport

FIGURES = ("datasets", "latency_ratio", "throughput_ratio")
DEFAULT = ("cora", "citeseer", "amazon_computers")
#: Published `prod` of GLNN, and transductive accuracy of VQGraph, in %.
GOALS = {"cora": (78.28, 83.93), "citeseer": (69.27, 76.08), "amazon_computers": (82.29, 85.17)}
QUICK, FULL = 2, 10
_PHASES = ("accuracy", "served")


def accuracy(report: PhaseReport, files: list[Path], num_seeds: int, left_out: str) -> None:
    """Fills `datasets`; a graph's line is printed as soon as its seeds are through."""
    import torch

    from benchmarks.distill_phases.accuracy import NAMES, measure
    from benchmarks.distill_phases.splits import load

    torch.set_num_threads(1)
    names = tuple(name for name in NAMES if name != left_out)
    print(f"  {'':<20}" + "".join(f"{name:>16}" for name in names), flush=True)
    report.figures["datasets"] = {}
    for file in files:
        data = load(file)
        found = []
        for seed in range(num_seeds):
            began = time.perf_counter()
            found.append(measure(data, seed, names))
            told = ", ".join(f"{name} {found[-1][name]:.2f}" for name in names)
            took = time.perf_counter() - began
            print(f"    {file.stem} seed {seed}: {told} ({took:.0f} s)", file=sys.stderr, flush=True)
        figures = {
            name: {
                "mean": round(float(np.mean([each[name] for each in found])), 2),
                "std": round(float(np.std([each[name] for each in found])), 2),
            }
            for name in names
        }
        report.figures["datasets"][file.stem] = figures
        cells = (f"{each['mean']:.2f} ± {each['std']:.2f}" for each in figures.values())
        print(f"  {file.stem:<20}" + "".join(f"{cell:>16}" for cell in cells), flush=True)
        if goals := GOALS.get(file.stem):
            print(f"  {'':<20}  goal: prod ≥ {goals[0]}; VQGraph's tran is {goals[1]}", flush=True)


def served(report: PhaseReport, quick: bool) -> None:
    """latency_ratio, throughput_ratio."""
    found: dict[str, Any] = importlib.import_module("benchmarks.distill_phases.served").measure(quick)
    for name, value in found.items():
        print(f"  {name:<40}{value!s:>14}", flush=True)
    report.figures |= found


def main() -> int:
    """Run the command. Returns 0, or 1 if a phase failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} seeds instead of {FULL}")
    parser.add_argument("--data", nargs="+", type=Path, default=[], metavar="FILE", help="graphs to run on")
    parser.add_argument("--seeds", type=int, default=0, help="how many, from 0")
    parser.add_argument(
        "--no-glnn",
        dest="glnn",
        action="store_false",
        help="leave out the published recipe, the slowest row",
    )
    parser.add_argument("--phases", default=",".join(_PHASES), help="comma-separated; default all")
    args = parser.parse_args()
    wanted = [name for name in args.phases.split(",") if name]
    if unknown := set(wanted) - set(_PHASES):
        parser.error(f"unknown phases: {', '.join(sorted(unknown))}; there are {', '.join(_PHASES)}")
    folder = Path(os.environ.get("HOPLINE_DATA") or "../shared/data") / "graphs"
    files = args.data or [folder / f"{name}.npz" for name in DEFAULT]
    if missing := [str(file) for file in files if not file.is_file()]:
        parser.error(f"no such file: {', '.join(missing)}; name graphs with --data, or set HOPLINE_DATA")
    left_out = "" if args.glnn else "glnn"
    num_seeds = args.seeds or (QUICK if args.quick else FULL)
    at_start = machine()
    report = PhaseReport(FIGURES)
    if "accuracy" in wanted:
        report.attempt("accuracy", lambda: accuracy(report, files, num_seeds, left_out))
    if "served" in wanted:
        report.attempt("served", lambda: served(report, args.quick))
    from hopline_compress.distill.settings import Settings

    config = {
        "quick": args.quick,
        "seeds": num_seeds,
        "files": [file.name for file in files],
        "phases": wanted,
        "settings": dataclasses.asdict(Settings()),
    }
    told = {"failed": report.failed, "config": config, "machine": at_start, "commit": commit()}
    print(json.dumps(report.figures | told))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
