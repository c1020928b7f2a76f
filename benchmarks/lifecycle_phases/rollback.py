"""Bad versions under steady traffic: time until the gate rolls them back, and the requests harmed.

A canary of 5 → 25 → 50 → 100 % begins under 500 requests a second. `errors` fails on every real request,
`slow` takes ten times as long, `shifted` answers other probabilities. A good version must reach 100 %.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.lifecycle_phases import broken, open_loop
from benchmarks.lifecycle_phases.server import hopline, wait_until

RATE = 500.0
_CONNECTIONS = 16


@dataclass(frozen=True)
class Outcome:
    """Result of one canary.

    Attributes:
        status: "rolled_back" or "promoted".
        seconds: from its beginning to its end.
        harmed: requests that the candidate answered or failed in that time.
        failed: callers that got an error.
    """

    status: str
    reason: str
    seconds: float
    harmed: int
    failed: int


def measure(repository: Path, model: str, bodies: Sequence[str], min_step_s: float) -> dict[str, Outcome]:
    """One canary for each fault, and one of a good version; fault -> outcome."""
    faults: tuple[broken.Fault, ...] = ("errors", "slow", "shifted", "none")
    return {fault: _canary(repository, model, bodies, fault, min_step_s) for fault in faults}


def _canary(
    repository: Path, model: str, bodies: Sequence[str], fault: broken.Fault, min_step_s: float
) -> Outcome:
    target = open_loop.Target(f"/v1/models/{model}/score", bodies)
    state = repository.parent / f"state-{fault}"
    with hopline(repository, models__names=model, models__state=state) as server, server.admin() as admin:
        before = open_loop.measure(server.port, [target], rate=RATE, seconds=1, connections=_CONNECTIONS)
        if before.errors:
            raise RuntimeError(f"{before.errors} requests failed before the canary: {before.statuses}")
        # Ten times as slow as what the server takes for a request of the present version.
        usual_s = server.metric(f'hopline_stage_seconds_sum{{model="{model}",version="1",stage="total"') / (
            server.metric(f'hopline_stage_seconds_count{{model="{model}",version="1",stage="total"')
        )
        candidate = broken.write(repository / model, "1", f"2-{fault}", fault, 9 * usual_s)
        longest = 20.0 if fault != "none" else 4 * min_step_s + 20
        run = open_loop.start(
            server.port, [target], rate=RATE, seconds=longest, connections=_CONNECTIONS, versions=True
        )
        try:
            time.sleep(1.0)
            began = time.monotonic()
            admin.begin_rollout(model, f"2-{fault}", min_step_s=min_step_s)
            loaded = time.monotonic()
            wait_until(lambda: admin.rollout(model)["rollout"] is None, longest, f"the canary of {fault}")
            seconds = time.monotonic() - loaded
            past = admin.rollout(model)["past"][0]
            time.sleep(0.2)
            figures = open_loop.stop(run)
        finally:
            run.kill()
            shutil.rmtree(candidate)
            shutil.rmtree(state, ignore_errors=True)
    print(f"    {fault}: loaded in {loaded - began:.2f} s; {past['reason']}", flush=True)
    failed = figures.sent - figures.statuses.get("200", 0)
    harmed = failed + figures.versions.get(f"2-{fault}", 0)
    return Outcome(past["status"], past["reason"], round(seconds, 2), harmed, failed)
