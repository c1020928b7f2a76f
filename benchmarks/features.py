"""Features that live in a store: what fetching costs, what L1 saves, and what the store's failures do.

A redis-server of our own on loopback; five phases, each named in the table:

    fetch      421 rows of 512 bytes: one GET each, one MGET, through an empty L1, from L1
    l1         hit rates, requests/s and p99 of 32 callers over a Zipf stream, with and without prefetcher
    faults     the store killed, stopped, slow, with half the rows, with garbage, gone and back again
    hub        requests that touch a node with 10 M in-neighbours against those that do not
    prewarm    the first 1,000 requests of a prewarmed server against the steady state

    python -m benchmarks.features [--quick] [--small] [--phases fetch,hub]

Prints a table; the last line is one JSON object. A figure that could not be had is null, and `failed` says
why. Wants a quiet machine: the limits are milliseconds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import hopline_server, load, workload
from benchmarks.feature_phases import fetch, hub, prewarmed
from benchmarks.feature_phases.faults import Faults, Figures
from benchmarks.feature_phases.l1_cache import CALLERS, SHARES, NearCache
from benchmarks.feature_phases.oracle import Oracle
from benchmarks.feature_phases.redis_process import RedisProcess, redis_server
from benchmarks.feature_phases.redis_process import load as load_rows
from benchmarks.feature_phases.stream import EXPONENT
from benchmarks.machine import commit, machine
from benchmarks.phases import PhaseReport

PHASES = ("fetch", "l1", "faults", "hub", "prewarm")


@dataclass(frozen=True)
class Effort:
    """Extent of the measurements.

    Attributes:
        rounds: of fetches.
        load_s: of each wrk run; as long before it.
        fault_s, calm_s: of each fault, and before and after it.
        num_requests: of each kind in the hub phase.
        num_single: requests of the run that counts fetches per row.
        num_between: requests between a prewarmed start and the steady state.
        num_starts: prewarmed starts.
    """

    rounds: int
    load_s: float
    fault_s: float
    calm_s: float
    num_requests: int
    num_single: int
    num_between: int
    num_starts: int


QUICK = Effort(600, 5.0, 2.5, 2.5, 4000, 8000, 20_000, 5)
FULL = Effort(750, 15.0, 5.0, 5.0, 20_000, 30_000, 60_000, 9)


class Report(PhaseReport):
    """The table as it grows, and the JSON line's figures."""

    def __init__(self) -> None:
        super().__init__(
            (
                *("naive_ms", "mget_ms", "cold_ms", "warm_ms", "l1", "fetches_per_row"),
                *("faults", "hub_p99_ratio", "prewarm_p99_ratio"),
            )
        )

    def line(self, name: str, value: float | None, goal: str = "", unit: str = "") -> None:
        """One line of the table."""
        told = "–" if value is None else f"{value:,.3f}"
        print(f"  {name:<44}{told:>12} {unit:<6}{goal}", flush=True)


def fetch_phase(report: Report, store: RedisProcess, shape: tuple[int, int], effort: Effort) -> None:
    """naive_ms, mget_ms, cold_ms, warm_ms."""
    found = fetch.measure(store, *shape, effort.rounds)
    report.figures |= {name: round(value, 4) for name, value in found.items()}
    cold, warm = (found[name] / found["mget_ms"] for name in ("cold_ms", "warm_ms"))
    report.figures |= {"cold_over_mget": round(cold, 3), "warm_over_mget": round(warm, 3)}
    report.line("421 GETs", found["naive_ms"], unit="ms")
    report.line("one MGET", found["mget_ms"], unit="ms")
    report.line("through an empty L1", found["cold_ms"], f"{cold:.2f} × MGET, goal ≤ 1.3", "ms")
    report.line("from L1", found["warm_ms"], f"{warm:.3f} × MGET, goal ≤ 0.1", "ms")


def l1_phase(
    report: Report, store: RedisProcess, serve_dir: Path, shape: tuple[int, int], effort: Effort
) -> None:
    """l1 and fetches_per_row."""
    near = NearCache(store, serve_dir, shape, effort.load_s)
    figures: dict[str, Any] = {}
    report.figures["l1"] = figures
    for share in SHARES:
        figures[f"hit_{share * 100:.0f}pct"] = rate = round(near.hit_rate(share), 4)
        report.line(f"rows from L1 of {share:.0%} of them", rate)
    alone = near.load(SHARES[-1])
    figures |= {"rps": round(alone.rps, 1), "p50_ms": alone.p50_ms, "p99_ms": alone.p99_ms}
    report.line(f"requests, {CALLERS} callers, L1 of {SHARES[-1]:.0%}", alone.rps, unit="/s")
    report.line("their p99", alone.p99_ms, unit="ms")
    helped = near.load_with_prefetcher(SHARES[-1])
    if isinstance(helped, str):
        figures |= {"rps_prefetch": None, "p99_ms_prefetch": None}
        report.failed["prefetcher"] = helped
        report.line("p99 with the prefetcher", None, helped)
    else:
        figures |= {"rps_prefetch": round(helped.rps, 1), "p99_ms_prefetch": helped.p99_ms}
        report.line("requests with the prefetcher", helped.rps, unit="/s")
        report.line("their p99", helped.p99_ms, unit="ms")
    report.figures["fetches_per_row"] = per_row = round(near.fetches_per_row(effort.num_single), 4)
    report.line("fetches of a row by two workers", per_row, "goal 1.0")


def faults_phase(report: Report, effort: Effort) -> None:
    """faults: on the small graph, with their own redis-server."""
    folder = workload.ensure(workload.SMALL)
    serve_dir = hopline_server.prepare(folder)
    features = np.load(folder / "features.npy")
    report.line("", None, "errors  p99 − timeout  recovery  calls  degraded (goals 0, 10 ms, 1 s, 1.1)")

    def told(name: str, figures: Figures) -> None:
        recovery = "never" if figures.recovery_s is None else f"{figures.recovery_s:.2f} s"
        print(
            f"  {name:<57}{figures.errors:>12}{figures.p99_over_timeout_ms:>12.1f} ms{recovery:>10}"
            f"{figures.store_request_ratio:>7.2f}{figures.degraded_share:>10.1%}",
            flush=True,
        )

    with redis_server() as store:
        load_rows(store.url, features)
        faults = Faults(
            store, serve_dir, features, Oracle(serve_dir).answers(), effort.calm_s, effort.fault_s
        )
        report.figures["faults"] = faults.run(told)


def hub_phase(report: Report, num_leaves: int, effort: Effort) -> None:
    """hub_p99_ratio."""
    found = hub.measure(num_leaves, effort.num_requests)
    report.figures |= found
    report.line(f"p99 that touches a hub of {num_leaves:,}", found["hub_p99_ms"], unit="ms")
    ratio = f"ratio {found['hub_p99_ratio']:.2f}, goal ≤ 1.5"
    report.line("p99 that does not", found["other_p99_ms"], ratio, "ms")


def prewarm_phase(
    report: Report, store: RedisProcess, serve_dir: Path, num_nodes: int, effort: Effort
) -> None:
    """prewarm_p99_ratio."""
    found = prewarmed.measure(store, serve_dir, num_nodes, effort.num_between, effort.num_starts)
    report.figures["prewarm_p99_ratio"] = found["prewarm_p99_ratio"]
    report.figures["prewarm"] = found
    report.line("p99 of the first 1,000 after prewarming", found["first_p99_ms"], unit="ms")
    ratio = f"ratio {found['prewarm_p99_ratio']:.2f}, goal ≤ 1.5"
    report.line("p99 in steady state", found["steady_p99_ms"], ratio, "ms")


def run(phases: list[str], small: bool, effort: Effort) -> Report:
    """Measure the phases; prints the table."""
    report = Report()
    with redis_server() as store:
        if {"fetch", "l1", "prewarm"} & set(phases):
            folder = workload.ensure(workload.SMALL if small else workload.FULL)
            serve_dir = hopline_server.prepare(folder)
            features = np.load(folder / "features.npy", mmap_mode="r")
            shape = features.shape
            seconds = load_rows(store.url, features)
            print(f"{shape[0]:,} rows loaded in {seconds:.1f} s", flush=True)
            if "fetch" in phases:
                report.attempt("fetch", lambda: fetch_phase(report, store, shape, effort))
            if "l1" in phases:
                report.attempt("l1", lambda: l1_phase(report, store, serve_dir, shape, effort))
            if "prewarm" in phases:
                report.attempt("prewarm", lambda: prewarm_phase(report, store, serve_dir, shape[0], effort))
    if "faults" in phases:
        report.attempt("faults", lambda: faults_phase(report, effort))
    if "hub" in phases:
        report.attempt("hub", lambda: hub_phase(report, 1_000_000 if small else 10_000_000, effort))
    return report


def main() -> int:
    """Run the command. Returns 0, or 1 if a phase failed."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="a few minutes in all")
    parser.add_argument("--small", action="store_true", help="50 k nodes, a hub of 1 M: to try the harness")
    parser.add_argument("--phases", default=",".join(PHASES), help="comma-separated; default all")
    args = parser.parse_args()
    phases = [name for name in args.phases.split(",") if name]
    if unknown := set(phases) - set(PHASES):
        parser.error(f"unknown phases: {', '.join(sorted(unknown))}; there are {', '.join(PHASES)}")
    load.require_wrk()
    if (busy := os.getloadavg()[0]) > 0.5:
        print(f"load average {busy:.1f}: other programs will disturb the figures", file=sys.stderr)
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    at_start = machine()
    report = run(phases, args.small, QUICK if args.quick else FULL)
    config = {
        "workload": "small" if args.small else "full",
        "quick": args.quick,
        "phases": phases,
        "callers": CALLERS,
        "zipf": EXPONENT,
        "fetch_rows": fetch.NUM_ROWS,
        "prewarm_share": prewarmed.SHARE,
    }
    told = {"failed": report.failed, "config": config, "machine": at_start, "commit": commit()}
    print(json.dumps(report.figures | told))
    return 1 if set(report.failed) - {"prefetcher"} else 0


if __name__ == "__main__":
    sys.exit(main())
