"""Simulated mesh, real Prometheus, the watch, real Alertmanager, webhook: what becomes of a fault.

All processes are real and speak over loopback; time is compressed (15 simulated seconds pass in one, a
snapshot every second). The watch learns from Prometheus alone, then five faults come one after the other,
each on a service or call path that is in use, then three planned changes, and at last a fault during which
the watch is killed (SIGKILL) and started again.

Of each fault: `incidents`, those that Alertmanager told the webhook of from its beginning until all was
calm again (1 is right); `rank`, the place among the first one's suspects of the service or call path that
was at fault (of a path, either end; null: not named); `seconds`, simulated, from its beginning to the
webhook. Of a planned change: `incidents` (0 is right). Of the restart: `same_incident`, whether the watch
went on with the incident that it had told of. Incidents that are too many stand in `beside`, with their
evidence. Quick: learns from 25 simulated minutes, some 11 minutes in all; else from 90, each fault on two
targets, some 25 minutes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hopline_mesh.simulate.plan import EDGE_FAULTS
from mesh.benchmarks.stand import Stand, StandPlan, stand

FAULTS = ("retry_storm", "partition", "edge_latency", "memory_leak", "crash_loop")
#: Simulated seconds: that a fault may take to be told, and that it lasts on after it was; that a planned
#: change is watched; that all has to be calm before the next one.
_LONGEST_S, _LASTS_S, _CHANGE_S, _CALM_S = 900.0, 60.0, 420.0, 240.0
_SEVERITY = 0.7


@dataclass(frozen=True, slots=True)
class Target:
    """Where a fault is. Of a call path, `caller` is not empty."""

    service: str
    caller: str = ""


def measure(quick: bool) -> dict[str, Any]:
    """All faults and changes; the figures by name."""
    plan = StandPlan(train_at=100 if quick else 360)
    with tempfile.TemporaryDirectory(prefix="hopline-mesh-") as folder, stand(Path(folder), plan) as one:
        learn(one)
        found: dict[str, Any] = {}
        rounds = 1 if quick else 2
        for place, kind in enumerate(FAULTS):
            targets = [_target(one, kind, place + number * len(FAULTS)) for number in range(rounds)]
            told = [of_fault(one, kind, target) for target in targets]
            found[kind] = told[0] if quick else {"runs": told, **_worst(told)}
            _say(kind, found[kind])
        for name, change in (("scale_out", scale_out), ("rollout", rollout), ("drain", drain)):
            found[name] = of_change(one, change)
            _say(name, found[name])
        found["restart"] = of_restart(one, _target(one, "edge_latency", 0))
        _say("restart", found["restart"])
        return {"end_to_end": found}


def learn(one: Stand) -> None:
    """Until the watch has learned."""
    least = one.plan.train_at * one.plan.interval_s
    one.wait("training", lambda: "and taken over" in one.log("watch"), 3 * least + 180)


def of_fault(one: Stand, kind: str, target: Target) -> dict[str, Any]:
    """One fault, from its beginning until all is calm again."""
    calm(one)
    before = len(one.notified)
    began = time.time()
    order = {
        "kind": kind, "service": target.service, "severity": _SEVERITY, "duration_s": _LONGEST_S
    }  # fmt: skip
    one.order("/faults", **order | ({"caller": target.caller} if target.caller else {}))
    seconds = None
    try:
        one.wait(kind, lambda: fired(one, before), _LONGEST_S / one.plan.speed)
        seconds = round((time.time() - began) * one.plan.speed)
        one.simulated(_LASTS_S)
    except TimeoutError:
        pass
    one.end_faults()
    calm(one)
    ids = fired(one, before)
    known = {each["id"]: each for each in one.incidents()}
    first = known.get(ids[0]) if ids else None
    return {
        "incidents": len(ids),
        "rank": None if first is None else rank(first, target),
        "seconds": seconds,
        **_beside(known, ids[1:]),
    }


def of_change(one: Stand, change: Callable[[Stand], None]) -> dict[str, Any]:
    """One planned change, watched until well after it."""
    calm(one)
    before = len(one.notified)
    change(one)
    one.simulated(_CHANGE_S)
    calm(one)
    ids = fired(one, before)
    return {"incidents": len(ids), **_beside({each["id"]: each for each in one.incidents()}, ids)}


def of_restart(one: Stand, target: Target) -> dict[str, Any]:
    """A fault during which the watch is killed."""
    calm(one)
    before = len(one.notified)
    one.order(
        "/faults", kind="edge_latency", service=target.service, caller=target.caller, severity=_SEVERITY
    )
    one.wait("edge_latency", lambda: fired(one, before), _LONGEST_S / one.plan.speed)
    first = fired(one, before)
    one.kill_watch()
    one.simulated(45)
    one.start_watch()
    one.simulated(150)
    going_on = [each["id"] for each in one.incidents() if each["end_s"] is None]
    one.end_faults()
    calm(one)
    ids = fired(one, before)
    known = {each["id"]: each for each in one.incidents()}
    return {
        "incidents": len(ids),
        "same_incident": going_on == first,
        "rank": rank(known[ids[0]], target) if ids and ids[0] in known else None,
        "told_over": ids[:1] == over(one, before)[:1],
        **_beside(known, ids[1:]),
    }


def scale_out(one: Stand) -> None:
    """A service with three pods gets seven."""
    service = _busy(one)[2]
    one.order("/scale", service=service, replicas=3)
    one.simulated(300)
    one.order("/scale", service=service, replicas=7)


def rollout(one: Stand) -> None:
    """A service gets new pods."""
    one.order("/rollout", service=_busy(one)[1])


def drain(one: Stand) -> None:
    """A machine is emptied."""
    one.order("/drain", service=_busy(one)[3])


def calm(one: Stand) -> None:
    """Until nothing was wrong for a while; what goes on too long is left to the next figure."""
    needed = _CALM_S / one.plan.speed
    since = time.monotonic()
    end = since + 5 * needed
    while time.monotonic() - since < needed and time.monotonic() < end:
        if any(each["end_s"] is None for each in one.incidents()):
            since = time.monotonic()
        time.sleep(0.2)


def fired(one: Stand, after: int = 0) -> list[str]:
    """Identities of the incidents that the webhook was told of, in their order."""
    return _ids(one, after, "firing")


def over(one: Stand, after: int = 0) -> list[str]:
    """Those that it was told the end of."""
    return _ids(one, after, "resolved")


def _ids(one: Stand, after: int, status: str) -> list[str]:
    alerts = [alert for body in list(one.notified[after:]) for alert in body["alerts"]]
    return list(dict.fromkeys(each["labels"]["incident"] for each in alerts if each["status"] == status))


def rank(incident: dict[str, Any], target: Target) -> int | None:
    """Place of what was at fault among the suspects, from 1; a call path is also named by either end."""
    wanted = {target.service, target.caller} - {""}
    for place, suspect in enumerate(incident["suspects"], start=1):
        if suspect["service"] in wanted:
            return place
    return None


def _beside(known: dict[str, dict[str, Any]], ids: list[str]) -> dict[str, Any]:
    """What incidents that nothing was wrong for were about; nothing where there is none."""
    about = []
    for incident in (known[each] for each in ids if each in known):
        suspect = incident["suspects"][0]
        about.append({key: suspect.get(key) for key in ("service", "caller", "evidence")})
    return {"beside": about} if about else {}


def _worst(told: list[dict[str, Any]]) -> dict[str, Any]:
    """Of several runs, the one that is furthest from right."""
    ranks = [each["rank"] for each in told]
    return {
        "incidents": max((each["incidents"] for each in told), key=lambda count: abs(count - 1)),
        "rank": None if None in ranks else max(ranks),
    }


def _target(one: Stand, kind: str, number: int) -> Target:
    """Something that is in use, another one for each number."""
    paths = [each for each in one.state()["paths"] if each["request_rate"] > 1]
    paths.sort(key=lambda each: -each["request_rate"])
    if kind in EDGE_FAULTS:
        path = paths[(2 + 2 * number) % len(paths)]
        return Target(path["service"], path["caller"])
    return Target(_busy(one)[(2 + number) % len(_busy(one))])


def _busy(one: Stand) -> list[str]:
    """Services that are asked, the most asked first."""
    services = sorted(one.state()["services"], key=lambda each: -each["request_rate"])
    return [each["service"] for each in services if each["request_rate"] > 1]


def _say(name: str, figures: dict[str, Any]) -> None:
    print(f"  {name}: {figures}", file=sys.stderr, flush=True)
