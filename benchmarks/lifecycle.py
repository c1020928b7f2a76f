"""Models that come, go, fail and are compared while requests are answered.

One phase for each promise; a server of our own on loopback in each:

    fraud       the fraud API under 800 requests a second at random moments; the highest rate below 50 ms
    zero_drop   500 requests a second through everything that changes: lost, answered twice
    rollback    canaries of broken versions, and of a good one
    shadow      what a shadow of every request costs those who wait
    isolation   a flooded, a crashing and a leaking model next to eight others
    tolokers    trees alone and trees on GNN embeddings, ten public splits
    replay      a log replayed on the version that wrote it

    python -m benchmarks.lifecycle [--quick] [--phases fraud,shadow]

Prints a table; the last line is one JSON object. A figure that could not be had is null, and `failed` says
why. Wants a quiet machine, since most figures are tails of latency, and wrk for the flood of `isolation`
(Debian, Ubuntu: apt-get install wrk).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import msgspec

from benchmarks import hopline_server, load, workload
from benchmarks.machine import machine
from benchmarks.phases import PhaseReport

PHASES = ("fraud", "zero_drop", "rollback", "shadow", "isolation", "tolokers", "replay")
_BODIES = 4000


@dataclass(frozen=True)
class Effort:
    """Extent of the measurements.

    Attributes:
        seconds: of each run at a rate.
        min_step_s: of each step of a canary.
        rounds: turns of each of two kinds that are compared.
        num_splits: of Tolokers.
    """

    seconds: float
    min_step_s: float
    rounds: int
    num_splits: int


QUICK = Effort(4.0, 1.0, 15, 10)
FULL = Effort(15.0, 5.0, 15, 10)


class Report(PhaseReport):
    """The table as it grows, and the JSON line's figures."""

    def __init__(self) -> None:
        super().__init__(
            (
                *("fraud", "zero_drop", "rollback", "shadow_p99_ratio", "isolation_p99_ratio"),
                *("tolokers_auc", "replay_identical"),
            )
        )

    def line(self, name: str, value: object, goal: str = "") -> None:
        """One line of the table."""
        told = f"{value:,.3f}" if isinstance(value, float) else str(value)
        print(f"  {name:<52}{told:>14}  {goal}", flush=True)


class Places:
    """Models and graphs of the phases, made when they are first needed.

    Args:
        folder: temporary.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bodies: list[str] = []

    def checkout(self) -> tuple[Path, list[str]]:
        """A repository with `fraud_trees` and the pipeline `fraud`, and transactions to ask for."""
        folder = self._folder / "checkout" / "models"
        if not self._bodies:
            from examples.fraud.build import build_checkout

            built = build_checkout(folder)
            rows = built.test.frame[:_BODIES].astype(object)
            rows = rows.where(rows.notna(), None)
            self._bodies = [json.dumps({"rows": [row]}) for row in rows.to_dict("records")]
        return folder, self._bodies

    def trees(self) -> tuple[Path, list[str]]:
        """The same trees alone, in a separate repository."""
        folder, bodies = self.checkout()
        alone = self._folder / "trees" / "models"
        if not alone.exists():
            shutil.copytree(folder / "fraud_trees", alone / "fraud_trees")
        return alone, bodies

    def graph(self) -> tuple[Path, Path, int]:
        """A repository with versions 1 and 2 of `sage`, its graph, the graph's nodes."""
        served = hopline_server.prepare(workload.ensure(workload.SMALL))
        models = self._folder / "graph" / "models"
        if not models.exists():
            from hopline.artifact import read_spec, write_spec

            shutil.copytree(served / "repository", models)
            shutil.copytree(models / "sage" / "1", models / "sage" / "2")
            second = models / "sage" / "2"
            write_spec(second, msgspec.structs.replace(read_spec(second), version="2"))
        return models, served / "graph", workload.SMALL.num_nodes


def fraud_phase(report: Report, places: Places, effort: Effort) -> None:
    """fraud."""
    from benchmarks.lifecycle_phases import fraud

    repository, bodies = places.checkout()
    found = fraud.measure(repository, "fraud", bodies, effort.seconds)
    report.figures["fraud"] = found
    report.line("800 requests/s over HTTP: p99 ms", found["p99_ms_at_800"], "goal < 5, the document has 38")
    report.line("  errors", found["errors"], "goal 0")
    report.line("  over gRPC, a call each: p99 ms", found["grpc"]["p99_ms"])
    report.line("  over gRPC, one stream: p99 ms", found["grpc_stream"]["p99_ms"])
    report.line("requests/s at p99 < 50 ms, batching", found["max_rps_p99_50ms"])
    report.line("  one request at a time", found["unbatched"]["max_rps_p99_50ms"])


def zero_drop_phase(report: Report, places: Places, effort: Effort) -> None:
    """zero_drop."""
    from benchmarks.lifecycle_phases import zero_drop

    models, graph, _ = places.graph()
    found = zero_drop.measure(models, graph, "sage", ("1", "2"))
    report.figures["zero_drop"] = found
    report.line("requests while everything changes", found["requests"])
    report.line("  lost", found["lost"], "goal 0")
    report.line("  answered twice, or as another", found["duplicated"] + found["wrong"], "goal 0")


def rollback_phase(report: Report, places: Places, effort: Effort) -> None:
    """rollback."""
    from benchmarks.lifecycle_phases import rollback

    repository, bodies = places.trees()
    outcomes = rollback.measure(repository, "fraud_trees", bodies, effort.min_step_s)
    figures: dict[str, Any] = {}
    for fault, name in (("errors", "errors_s"), ("slow", "slow_s"), ("shifted", "shift_s")):
        outcome = outcomes[fault]
        back = outcome.status == "rolled_back"
        figures[name] = outcome.seconds if back else None
        report.line(f"{fault}: rolled back after s", figures[name] if back else outcome.status)
        report.line("  requests harmed", outcome.harmed)
    figures["good_promoted"] = outcomes["none"].status == "promoted"
    figures["outcomes"] = {fault: asdict(outcome) for fault, outcome in outcomes.items()}
    report.line("a good version reached 100 %", figures["good_promoted"], "goal True")
    report.figures["rollback"] = figures


def shadow_phase(report: Report, places: Places, effort: Effort) -> None:
    """shadow_p99_ratio."""
    from benchmarks.lifecycle_phases import shadow

    models, graph, num_nodes = places.graph()
    found = shadow.measure(models, graph, "sage", "1", num_nodes, effort.seconds, effort.rounds)
    report.figures["shadow_p99_ratio"] = found["shadow_p99_ratio"]
    report.figures["shadow"] = found
    report.line("p99 with a shadow of every request, ratio", found["shadow_p99_ratio"], "goal ≤ 1.1")
    report.line("  answers compared", found["compared"])


def isolation_phase(report: Report, places: Places, effort: Effort) -> None:
    """isolation_p99_ratio."""
    from benchmarks.lifecycle_phases import isolation

    repository, bodies = places.trees()
    found = isolation.measure(repository, "fraud_trees", bodies, effort.seconds, effort.rounds)
    report.figures["isolation_p99_ratio"] = found["isolation_p99_ratio"]
    report.figures["isolation"] = found
    report.line(
        "p99 of eight next to three that misbehave, ratio", found["isolation_p99_ratio"], "goal ≤ 1.2"
    )
    told = f"{found['calm_turns']} of {len(found['alone_p99_ms'])}"
    report.line("  turns in which the processors were ours", told)
    report.line("  ratio of all turns", found["ratio_of_all"])
    report.line("  errors of the eight", found["errors_of_the_eight"], "goal 0")
    report.line("  restarts of the others", sum(found["restarts"].values()))


def tolokers_phase(report: Report, places: Places, effort: Effort) -> None:
    """tolokers_auc."""
    from examples.fraud.risk import auc_of_splits

    found = auc_of_splits(effort.num_splits)
    report.figures["tolokers_auc"] = {name: round(mean(found[name]), 4) for name in ("trees", "gnn_trees")}
    report.figures["tolokers_splits"] = {name: [round(each, 4) for each in found[name]] for name in found}
    report.line("ROC-AUC of trees alone", report.figures["tolokers_auc"]["trees"])
    report.line("ROC-AUC of trees on GNN embeddings", report.figures["tolokers_auc"]["gnn_trees"])


def replay_phase(report: Report, places: Places, effort: Effort) -> None:
    """replay_identical."""
    from benchmarks.lifecycle_phases import replayed

    models, graph, num_nodes = places.graph()
    bodies = [f'{{"nodes":[{node * 7919 % num_nodes}]}}' for node in range(5000)]
    found = replayed.measure(models, graph, "sage", bodies, effort.seconds, 500.0)
    report.figures["replay_identical"] = found["replay_identical"]
    report.figures["replay"] = found
    report.line("answers replayed", found["compared"])
    report.line("  the same, bit for bit", found["identical"], "goal: all")


def run(phases: list[str], effort: Effort) -> Report:
    """Measure the phases; prints the table."""
    report = Report()
    measures = {
        "fraud": fraud_phase,
        "zero_drop": zero_drop_phase,
        "rollback": rollback_phase,
        "shadow": shadow_phase,
        "isolation": isolation_phase,
        "tolokers": tolokers_phase,
        "replay": replay_phase,
    }
    with tempfile.TemporaryDirectory(prefix="hopline-lifecycle-") as folder:
        places = Places(Path(folder))
        for name in phases:
            measure = measures[name]
            report.attempt(name, lambda measure=measure: measure(report, places, effort))  # type: ignore[misc]
    return report


def main() -> int:
    """Run the command. Returns 0, or 1 if a phase failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="some minutes in all")
    parser.add_argument("--phases", default=",".join(PHASES), help="comma-separated; default all")
    args = parser.parse_args()
    phases = [name for name in args.phases.split(",") if name]
    if unknown := set(phases) - set(PHASES):
        parser.error(f"unknown phases: {', '.join(sorted(unknown))}; there are {', '.join(PHASES)}")
    if (busy := os.getloadavg()[0]) > 0.5:
        print(f"load average {busy:.1f}: other programs will disturb the figures", file=sys.stderr)
    if "isolation" in phases:
        load.require_wrk()  # now, not after the other phases
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    at_start = machine()
    report = run(phases, QUICK if args.quick else FULL)
    config = {"quick": args.quick, "phases": phases}
    print(report.last_line(config, at_start))
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
