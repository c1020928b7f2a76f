"""Graphs larger than memory, and larger than a machine.

    disk       a graph is generated on the disk and served in bounded memory (`graph.memory = disk`)
    cluster    a smaller graph of the same kind in a Redis Cluster of three masters (`graph.store`):
               latency, round trips for each request, and answers compared with the local graph bit by bit

    python -m benchmarks.large --nodes 100_000_000 --edges 2_000_000_000 [--memory-gib 8] [--quick]

Prints a table; the last line is one JSON object. The graph takes 80 bytes for each node and 4 for each edge
below --folder, and is removed at the end unless --keep is given. Needs wrk, and redis-server for `cluster`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.large_phases import cluster, disk
from benchmarks.large_phases.generate import generate
from benchmarks.large_phases.model import package_model
from benchmarks.load import require_wrk
from benchmarks.machine import machine
from benchmarks.phases import PhaseReport, chosen

PHASES = ("disk", "cluster")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=100_000_000)
    parser.add_argument("--edges", type=int, default=2_000_000_000)
    parser.add_argument("--cluster-nodes", type=int, default=2_000_000)
    parser.add_argument("--cluster-edges", type=int, default=40_000_000)
    parser.add_argument("--memory-gib", type=float, default=8.0, help="of the server of phase disk")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each run")
    parser.add_argument("--folder", type=Path, default=Path("build/large"))
    parser.add_argument("--keep", action="store_true", help="do not remove the generated graphs")
    parser.add_argument("--quick", action="store_true", help="a small graph in little memory, short runs")
    parser.add_argument("--phases", default="", help="names, separated by commas")
    asked = parser.parse_args()
    if asked.quick:
        asked.nodes, asked.edges, asked.memory_gib, asked.seconds = 5_000_000, 100_000_000, 0.6, 4.0
        asked.cluster_nodes, asked.cluster_edges = 100_000, 2_000_000
    phases = chosen(parser, asked.phases, PHASES)
    require_wrk()
    at_start = machine()
    report = PhaseReport(PHASES)
    try:
        for phase in phases:
            report.attempt(phase, partial(run, phase, asked, report.figures))
            show(report.figures[phase] or {})
    finally:
        if not asked.keep:
            shutil.rmtree(asked.folder, ignore_errors=True)
    config = {name: str(value) for name, value in vars(asked).items()}
    print(report.last_line(config, at_start))
    sys.exit(1 if report.failed else 0)


def run(phase: str, asked: argparse.Namespace, figures: dict[str, Any]) -> None:
    """Generate the graph of a phase and measure it; its figures are stored under the phase's name."""
    is_disk = phase == "disk"
    num_nodes = asked.nodes if is_disk else asked.cluster_nodes
    num_edges = asked.edges if is_disk else asked.cluster_edges
    folder = asked.folder / f"{num_nodes}-{num_edges}"
    needed = 80 * num_nodes + 4 * num_edges
    asked.folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "graph").is_dir() and shutil.disk_usage(asked.folder).free < 1.1 * needed:
        raise SystemExit(f"{asked.folder} has not the {needed / 1e9:.1f} GB that the graph takes")
    folder.mkdir(exist_ok=True)
    generate(folder / "graph", num_nodes, num_edges)
    package_model(folder / "repository")
    if is_disk:
        figures[phase] = disk.measure(folder, int(asked.memory_gib * 2**30), asked.seconds)
    else:
        figures[phase] = cluster.measure(folder, asked.seconds)


def show(figures: dict[str, Any]) -> None:
    """A line for each figure."""
    for name, value in figures.items():
        print(f"  {name:<28}{value!s}", flush=True)


if __name__ == "__main__":
    main()
