"""The fraud API under a checkout's load: 800 requests a second at random moments.

One transaction for each request: preprocessing, trees and the rules block / second factor / allow, through
a pipeline. Over HTTP, and over gRPC as calls and as a stream. Then the highest rate whose p99 stays below
50 ms, with dynamic batching and without (one request at a time).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.lifecycle_phases import open_loop, open_loop_grpc
from benchmarks.lifecycle_phases.server import hopline
from benchmarks.machine import stolen_s

RATE, LIMIT_MS = 800.0, 50.0
_CONNECTIONS, _MANY = 32, 256
#: At 800/s, of each kind. A pause of the machine spoils the p99 of the run that it falls into.
_RUNS = 5
#: A run in which more requests than this fail does not count.
_MAX_ERRORS = 0
_FIRST, _FACTOR = 1000.0, 1.25


def measure(repository: Path, model: str, bodies: Sequence[str], seconds: float) -> dict[str, Any]:
    """p99_ms_at_800, errors, max_rps_p99_50ms; `unbatched`, `grpc` and `grpc_stream` in addition.

    Figures at 800/s are medians of some runs, the kinds of requests in turn.
    """
    target = open_loop.Target(f"/v1/models/{model}/score", bodies)
    told: dict[str, Any] = {}
    with hopline(repository, grpc=True, models__state=repository.parent / "state-fraud") as server:
        _warm(server.port, target)
        over_http: list[dict[str, Any]] = []
        calls: list[dict[str, Any]] = []
        streams: list[dict[str, Any]] = []
        for _ in range(_RUNS):
            over_http.append(_at_800(server.port, target, seconds))
            for found, stream in ((calls, False), (streams, True)):
                found.append(_over_grpc(server.grpc_port, model, bodies, seconds, stream))
        steady = _medians(over_http)
        told |= {"p50_ms_at_800": steady["p50_ms"], "p99_ms_at_800": steady["p99_ms"]}
        told |= {"errors": steady["errors"], "requests_at_800": steady["requests"]}
        told |= {"at_800": steady, "grpc": _medians(calls), "grpc_stream": _medians(streams)}
        told["max_rps_p99_50ms"], told["p99_ms_at_max"] = _highest(server.port, target, seconds / 2)
    state = repository.parent / "state-fraud-alone"
    with hopline(repository, batching__max_rows=1, models__state=state) as server:
        _warm(server.port, target)
        steady = _medians([_at_800(server.port, target, seconds) for _ in range(_RUNS)])
        highest, _ = _highest(server.port, target, seconds / 2)
        told["unbatched"] = {
            "p99_ms_at_800": steady["p99_ms"],
            "errors": steady["errors"],
            "max_rps_p99_50ms": highest,
        }
    return told


def _at_800(port: int, target: open_loop.Target, seconds: float) -> dict[str, Any]:
    before = stolen_s()
    run = open_loop.measure(port, [target], rate=RATE, seconds=seconds, connections=_CONNECTIONS)
    return {
        "p50_ms": run.p50_ms,
        "p99_ms": run.p99_ms,
        "errors": run.errors,
        "requests": run.sent,
        "late_p99_ms": run.late_p99_ms,
        "stolen_s": round(stolen_s() - before, 2),
    }


def _over_grpc(
    port: int, model: str, bodies: Sequence[str], seconds: float, stream: bool
) -> dict[str, Any]:
    before = stolen_s()
    run = open_loop_grpc.measure(port, model, bodies, rate=RATE, seconds=seconds, stream=stream)
    return run | {"stolen_s": round(stolen_s() - before, 2)}


def _medians(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians of times, sums of counts, and the p99 of each run."""
    told = {
        name: sum(run[name] for run in runs)
        if name in ("errors", "requests")
        else median(run[name] for run in runs)
        for name in runs[0]
    }
    return told | {"p99_ms_runs": [run["p99_ms"] for run in runs]}


def _warm(port: int, target: open_loop.Target) -> None:
    open_loop.measure(port, [target], rate=RATE, seconds=1.0, connections=_CONNECTIONS)


def _highest(port: int, target: open_loop.Target, seconds: float) -> tuple[float, float]:
    """Raise the rate until p99 or errors pass the limit: answers a second and p99 of the last good one."""
    rate, best, p99_ms = _FIRST, 0.0, 0.0
    while True:
        run = open_loop.measure(port, [target], rate=rate, seconds=seconds, connections=_MANY)
        if run.p99_ms > LIMIT_MS or run.errors > _MAX_ERRORS or run.rps < 0.95 * rate:
            return best, p99_ms
        best, p99_ms = run.rps, run.p99_ms
        rate *= _FACTOR
