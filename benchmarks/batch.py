"""Scoring a whole graph: 1 M nodes, 20 M edges, GraphSAGE 128 → 128 → 64, fanouts [10, 5].

    speed    all nodes against a PyG NeighborLoader loop, in turns; the answers against those served
             online; peak memory; the same in 400 MiB; the distance from the limit, which is reading the
             sampled rows at random
    exact    all neighbours: against PyG's layer-wise inference, and against PyG on the full graph of a
             real dataset
    resume   kill -9 at random moments
    lookup   one node over HTTP, out of a table that a run wrote

    python -m benchmarks.batch [--quick] [--small] [--phases a,b]

PyG's loops are timed over batches of 4,096 drawn at random, and their rate is taken for the whole graph.
Set PyG up with `benchmarks/setup`. Prints figures; the last line is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import hopline_server, workload
from benchmarks.batch_phases import command, exact, lookup, resume, speed
from benchmarks.machine import machine
from benchmarks.phases import PhaseReport

FIGURES = (
    *("nodes_per_s", "pyg_nodes_per_s", "ratio", "peak_rss_bytes", "max_abs_diff_online"),
    *("layerwise_ratio", "max_abs_diff_pyg", "resume_identical", "lookup_p50_ms"),
)
KILLS = 5


def phases(
    folder: Path, serve_dir: Path, scratch: Path, num_nodes: int, *, quick: bool
) -> dict[str, Callable[[], dict[str, Any]]]:
    """Measurements by name."""
    rounds, batches = (2, 6) if quick else (5, 16)

    def look_up() -> dict[str, Any]:
        table = scratch / "sage.precomputed"
        command.hopline(serve_dir, f"precomputed:{table}", "--restart")
        return lookup.measure(
            serve_dir / "repository", serve_dir / "graph", table, "sage", num_nodes, rounds=rounds
        )

    return {
        "speed": lambda: speed.measure(folder, serve_dir, scratch, rounds, batches),
        "exact": lambda: exact.measure(folder, serve_dir, scratch, rounds, max(2, batches // 3)),
        "resume": lambda: resume.measure(serve_dir, scratch, KILLS),
        "lookup": look_up,
    }


def main() -> int:
    """Run the command. Returns 0, or 1 if a phase failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="some five minutes in all")
    parser.add_argument("--small", action="store_true", help="50 k nodes: to try the harness")
    parser.add_argument("--phases", default="", help="comma-separated; default all")
    args = parser.parse_args()
    if (busy := os.getloadavg()[0]) > 0.5:
        print(f"load average {busy:.1f}: other programs will disturb the figures", file=sys.stderr)
    # Ended from outside, it still removes what it wrote.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    at_start = machine()
    sizes = workload.SMALL if args.small else workload.FULL
    folder = workload.ensure(sizes)
    serve_dir = hopline_server.prepare(folder)
    report = PhaseReport(FIGURES)
    # Next to the graph, not in /tmp, which may be memory.
    with tempfile.TemporaryDirectory(prefix="batch-", dir=workload.cache_dir()) as name:
        known = phases(folder, serve_dir, Path(name), sizes.num_nodes, quick=args.quick)
        wanted = [phase for phase in args.phases.split(",") if phase] or list(known)
        if unknown := set(wanted) - set(known):
            parser.error(f"unknown phases: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        for phase in wanted:

            def measure(phase: str = phase) -> None:
                found = known[phase]()
                report.figures.update(found)
                for figure, value in found.items():
                    print(f"  {figure:<28}{value}", flush=True)

            report.attempt(phase, measure)
    config = {"workload": sizes.name, "quick": args.quick, "phases": wanted, "fanouts": workload.FANOUTS}
    print(report.last_line(config, at_start))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
