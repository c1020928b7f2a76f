"""A graph that changes: 169,343 nodes, 1.2 M edges, GraphSAGE 128 → 128 → 64; 70 % of updates add an edge.

    rates     edge updates a second on one core, durable, rows computed on demand; PyG
              computing them again, in the same run
    exact     after any mix of updates: online = batch = a fresh build, bit for bit
    serving   a server of two workers while updates arrive through a broker: latency, freshness, whether the
              workers agree
    crash     kill -9 of consumer, server, writer, worker and broker at random moments: lost, applied twice

    python -m benchmarks.stream [--quick] [--small] [--phases rates,crash]

The headline of `rates` is for batches of 10,000 and the model of fanouts [10, 5]; other rates are in the
JSON line as well. Prints a table; the last line is one JSON object. A figure that could not be had is null,
and `failed` says why. Wants a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import workload
from benchmarks.machine import machine
from benchmarks.phases import PhaseReport
from benchmarks.stream_phases import worker
from benchmarks.stream_phases.place import MAIN, SMALL, Place

FIGURES = (
    *("updates_per_s", "exact", "serving_p99_ratio", "freshness_p99_ms"),
    *("workers_agree", "crash"),
)
GOAL_RATE, GOAL_RATIO, GOAL_FRESHNESS_MS = 200_000, 2.0, 100.0
_HEADLINE = "10000"


@dataclass(frozen=True)
class Effort:
    """Extent of the measurements.

    Attributes:
        seconds: of each rate. updates: of `exact`.
        window_s: of each turn of serving. rounds: turns.
        kills: of `crash`, with each of `brokers`.
    """

    seconds: float
    updates: int
    window_s: float
    rounds: int
    kills: int
    brokers: tuple[str, ...]


QUICK = Effort(2.0, 100_000, 4.0, 7, 10, ("redis",))
FULL = Effort(8.0, 100_000, 15.0, 5, 30, ("redis", "nats"))


class Report(PhaseReport):
    """The table as it grows, and the JSON line's figures."""

    def line(self, name: str, value: object, goal: str = "") -> None:
        """One line of the table."""
        told = (
            f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else value
        )
        print(f"  {name:<60}{told!s:>14}  {goal}", flush=True)


@dataclass(frozen=True)
class Bench:
    """Setup that all phases share."""

    report: Report
    place: Place
    scratch: Path
    effort: Effort

    def rates(self) -> None:
        """updates_per_s and the other rates."""
        report, orders = self.report, {"scratch": str(self.scratch), "seconds": self.effort.seconds}
        ours = worker.run("rates", place=self.place.ensure().name, **orders)
        pyg = worker.run("naive", place=self.place.name, sizes=[1_000, 10_000], batches=2)
        for size, found in ours.items():
            goal = f"goal {GOAL_RATE:,}" if size == _HEADLINE else ""
            report.line(f"batches of {int(size):,}: updates/s", found["updates_per_s"], goal)
            report.line("  of processor time", found["updates_per_s_cpu"])
            best = max(pyg[way][size]["updates_per_s"] for way in pyg)
            report.line("  PyG, all rows, all neighbours", best)
        report.figures |= {
            "updates_per_s": ours[_HEADLINE]["updates_per_s"],
            "headline": "batches of 10,000, rows on demand, one core, wall clock, durable",
            "rates": {"stream": ours, "pyg": pyg},
        }

    def exact(self) -> None:
        """exact."""
        orders = {"scratch": str(self.scratch), "updates": self.effort.updates}
        found = worker.run("exact", place=self.place.ensure().name, **orders)
        for name, holds in found["checks"].items():
            self.report.line(name, holds, "goal True")
        self.report.figures |= {"exact": found["exact"], "exact_details": found}

    def serving(self) -> None:
        """serving_p99_ratio, freshness_p99_ms, workers_agree."""
        from benchmarks.stream_phases import serving

        effort, report = self.effort, self.report
        found = serving.measure(self.place.ensure(), self.scratch, effort.window_s, effort.rounds)
        told = found["serving"]
        report.line("updates/s through the broker", told["updates_per_s"])
        report.line("p99 ms of requests, idle", told["idle_p99_ms"])
        report.line("p99 ms of requests, updated", told["busy_p99_ms"])
        report.line("  ratio", found["serving_p99_ratio"], f"goal ≤ {GOAL_RATIO:g}")
        report.line(
            "event → answer, seen from outside: p99 ms",
            found["freshness_p99_ms"],
            f"goal ≤ {GOAL_FRESHNESS_MS:g}",
        )
        report.line("  p50 ms", told["freshness_p50_ms"])
        report.line("both workers give the same bits", found["workers_agree"], "goal True")
        report.figures |= found

    def crash(self) -> None:
        """crash."""
        from benchmarks.stream_phases import crash

        small = SMALL.ensure()
        kills, brokers = self.effort.kills, self.effort.brokers
        found = [crash.measure(small, self.scratch, name, kills) for name in brokers]
        told: dict[str, Any] = {"by_broker": dict(zip(brokers, found, strict=True))}
        for name, goal in (
            ("kills", ""),
            ("acknowledged", ""),
            ("lost", "goal 0"),
            ("duplicated", "goal 0"),
        ):
            told[name] = sum(each[name] for each in found)
            self.report.line(name, told[name], goal)
        told["log_readable"] = all(each["log_readable"] for each in found)
        self.report.figures["crash"] = told


def phases(bench: Bench) -> dict[str, Callable[[], None]]:
    """Measurements by name."""
    return {"rates": bench.rates, "exact": bench.exact, "serving": bench.serving, "crash": bench.crash}


def main() -> int:
    """Run the command. Returns 0, or 1 if a phase failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="some six minutes in all")
    parser.add_argument("--small", action="store_true", help="5 k nodes: to try the harness")
    parser.add_argument("--phases", default="", help="comma-separated; default all")
    args = parser.parse_args()
    if (busy := os.getloadavg()[0]) > 0.5:
        print(f"load average {busy:.1f}: other programs will disturb the figures", file=sys.stderr)
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    at_start = machine()
    report = Report(FIGURES)
    place = SMALL if args.small else MAIN
    workload.cache_dir().mkdir(parents=True, exist_ok=True)
    # Next to the graph, not in /tmp, which may be memory: what is durable must be on a disk.
    with tempfile.TemporaryDirectory(prefix="stream-run-", dir=workload.cache_dir()) as scratch:
        known = phases(Bench(report, place, Path(scratch), QUICK if args.quick else FULL))
        wanted = [name for name in args.phases.split(",") if name] or list(known)
        if unknown := set(wanted) - set(known):
            parser.error(f"unknown phases: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        for name in wanted:
            report.attempt(name, known[name])
    config = {"place": place.name, "quick": args.quick, "phases": wanted}
    print(report.last_line(config, at_start))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
