"""Attacks on a real server, and the cost of each for other callers.

    python -m benchmarks.abuse [--quick] [--cases a,b] [--python PATH/TO/PYTHON]

One worker on loopback, with a limit of its address space. While a case is under way, another connection
asks `/healthz` again and again: "blocked" is the longest that it waited. Memory is the resident memory of
the server's processes: its peak, and what stays a second after the attack's connections were closed.

No case may block others for more than its bar, or grow memory by more than the budget, which is
`server.max_body_bytes` + 64 MiB; statuses are refusals. "cpu" is the server's processor time in the
longest wait, "loop" that of its loops' threads alone, and "queued" how long these were ready to run while
other programs had the processors. A wait beyond the bar in which the server had less than that is reported
as disturbed by other programs, or by a disk, and is no failure. A case that blocks for a moment too long is
measured again, up to three times, and its smallest figure counts. With --quick each case is measured once.

Prints a table; the last line is one JSON object. Exit status 1: some case does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.abuse_phases import (
    built,
    end_cases,
    grpc_cases,
    http_cases,
    json_cases,
    model_cases,
    unread_cases,
)
from benchmarks.abuse_phases.case import Attack, Case
from benchmarks.abuse_phases.target import Measured, Setup, Target, measure, serve
from benchmarks.machine import commit, machine

MIB = 1 << 20
BUDGET_MB = 64 + 64
#: A server whose memory has grown by less than this is attacked again.
_REUSED_BELOW_MB = 16
#: A block in which the server worked for longer is not measured again, in ms.
_CLEAR_MS = 500.0
_MOST_ROUNDS = 3


def idle(target: Target) -> Attack:
    """Nothing: what others on this machine do to the figures."""

    def attack() -> Counter[str]:
        time.sleep(2.0)
        return Counter()

    return attack


CASES = (
    Case("idle", idle),
    *json_cases.CASES,
    *http_cases.CASES,
    *grpc_cases.CASES,
    *unread_cases.CASES,
    *model_cases.CASES,
    *end_cases.CASES,
)


@dataclass
class Servers:
    """The server that is attacked now; the next case gets another one if it needs one.

    Attributes:
        python: its interpreter. served: folder of what it serves.
    """

    python: str
    served: Path

    def __post_init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._target: Target | None = None
        self._setup: Setup | None = None

    def get(self, setup: Setup) -> Target:
        """A server of this setup that no attack has harmed."""
        if self._target is None or self._setup != setup:
            self.drop()
            self._target, self._setup = (
                self._stack.enter_context(serve(self.python, self.served, setup)),
                setup,
            )
        return self._target

    def drop(self) -> None:
        """Stop it."""
        self._target = None
        self._stack.close()


def run(case: Case, servers: Servers, rounds: int) -> Measured:
    """Measure a case: the smallest figure of up to `rounds`."""
    best: Measured | None = None
    for _ in range(rounds):
        target = servers.get(case.setup)
        found = measure(target, case.prepare(target))
        if not found.survived or found.stays_bytes > _REUSED_BELOW_MB * MIB:
            servers.drop()
        if best is None or found.blocked_ms < best.blocked_ms:
            best = found
        if best.blocked_ms <= case.bar_ms or best.cpu_ms > _CLEAR_MS:
            break
    assert best is not None
    return best


def verdict(case: Case, found: Measured) -> list[str]:
    """Bounds that do not hold; empty if all hold."""
    wrong = []
    if min(found.blocked_ms, found.cpu_ms) > case.bar_ms:
        wrong.append("blocks")
    if max(found.peak_bytes, found.stays_bytes) > BUDGET_MB * MIB:
        wrong.append("grows")
    if not found.survived:
        wrong.append("ends the server")
    return wrong + case.wrong_statuses(found.status)


def _told(status: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in sorted(status.items()))


def figures(case: Case, found: Measured) -> dict[str, Any]:
    """A case as the JSON line has it."""
    return {
        "blocked_ms": round(found.blocked_ms, 1),
        "cpu_ms": round(found.cpu_ms, 1),
        "loop_ms": round(found.loop_ms, 1),
        "queued_ms": round(found.queued_ms, 1),
        "bar_ms": case.bar_ms,
        "rss_growth_mb": round(found.peak_bytes / MIB, 1),
        "rss_stays_mb": round(found.stays_bytes / MIB, 1),
        "status": dict(sorted(found.status.items())),
        "wrong": verdict(case, found),
    }


def commit_of(python: str) -> str:
    """The commit of the Hopline that an interpreter imports, as `machine.commit` has it."""
    code = "import hopline; print(hopline.__file__)"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return commit(Path(done.stdout.strip()).parent)


def line(case: Case, found: Measured) -> str:
    """A case as the table has it."""
    row = figures(case, found)
    told = f"{case.name:<28}{row['blocked_ms']:>11.1f}{row['cpu_ms']:>9.1f}{row['loop_ms']:>9.1f}"
    told += f"{row['queued_ms']:>11.1f}{case.bar_ms:>5.0f}"
    told += f"{row['rss_growth_mb']:>9.1f}{row['rss_stays_mb']:>9.1f}  {_told(found.status)}"
    if row["wrong"]:
        told += f"  ✗ {', '.join(row['wrong'])}"
    elif found.blocked_ms > case.bar_ms:
        told += "  (disturbed)"
    return told


def main() -> int:
    """Run the command. Returns 0, or 1 if some case does not hold."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--quick", action="store_true", help="each case once")
    parser.add_argument("--cases", default="", help="comma-separated; default all")
    parser.add_argument("--python", default=sys.executable, help="interpreter whose Hopline is attacked")
    args = parser.parse_args()
    wanted = args.cases.split(",") if args.cases else [case.name for case in CASES]
    if unknown := set(wanted) - {case.name for case in CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    at_start = machine()
    results: dict[str, Any] = {}
    head = f"{'case':<28}{'blocked ms':>11}{'cpu ms':>9}{'loop ms':>9}{'queued ms':>11}"
    head += f"{'bar':>5}{'peak MB':>9}{'stays MB':>9}  statuses"
    print(f"{head}\n{'-' * len(head)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="hopline-abuse-") as name:
        subprocess.run([args.python, str(Path(built.__file__)), name], check=True)
        servers = Servers(args.python, Path(name))
        with contextlib.ExitStack() as stack:
            stack.callback(servers.drop)
            for case in sorted(
                (case for case in CASES if case.name in wanted), key=lambda case: repr(case.setup)
            ):
                found = run(case, servers, 1 if args.quick else _MOST_ROUNDS)
                results[case.name] = figures(case, found)
                print(line(case, found), flush=True)
    worst = {
        key: max(row[key] for row in results.values()) for key in ("blocked_ms", "cpu_ms", "rss_growth_mb")
    }
    failed = sorted(name for name, row in results.items() if row["wrong"])
    config = {"quick": args.quick, "budget_mb": BUDGET_MB}
    ran = {"failed": failed, "config": config, "machine": at_start, "commit": commit_of(args.python)}
    print(json.dumps({**results, "worst": worst, **ran}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
