"""Faults from a simulated mesh through real Prometheus, the watch and real Alertmanager to a webhook.

The mesh is unkind: workloads with other names than their Services, canaries, cycles, retry budgets,
services without a sidecar, missing series, no TCP metrics, a daily rhythm.

All processes are real and communicate over loopback; time is compressed (15 simulated seconds pass in one
second, with one snapshot per second). The watch learns from Prometheus alone. Then follow five faults, each
on a service or call path that is in use, three planned changes, and a fault during which the watch is
killed (SIGKILL) and restarted.

For each fault: `incidents`, the number of incidents that Alertmanager sent to the webhook from the start of
the fault until everything was normal again (1 is right); `rank`, the rank of the faulty service or call
path among the suspects of the first incident (for a path, either end; null: not named); `seconds`, the
simulated time from the start of the fault to the webhook. For a planned change: `incidents` (0 is right).
For the restart: `same_incident`, whether the watch continued the incident that it had reported. `beside`
lists unexpected incidents with their evidence. Quick: learns from 25 simulated minutes, about 11 minutes in
total; otherwise from 90, each fault on two targets, about 25 minutes.
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
from packages.mesh.benchmarks.stand import Stand, StandPlan, stand

FAULTS = ("retry_storm", "partition", "edge_latency", "memory_leak", "crash_loop")
#: Simulated seconds: the longest time until a fault is reported, and how long it continues after that; how
#: long a planned change is watched; how long everything must be normal before the next fault or change.
_LONGEST_S, _LASTS_S, _CHANGE_S, _CALM_S = 900.0, 60.0, 420.0, 240.0
_SEVERITY = 0.7


@dataclass(frozen=True, slots=True)
class Target:
    """Location of a fault. For a call path, `caller` is not empty.

    Attributes:
        service, caller: names of workloads.
        reported: names under which the metrics have them.
    """

    service: str
    caller: str = ""
    reported: frozenset[str] = frozenset()


def measure(quick: bool, speed: float = 15.0) -> dict[str, Any]:
    """Run all faults and changes; returns the results by name.

    Args:
        speed: simulated seconds in one second, with a snapshot every 15 of them; lower on a busy machine.
    """
    plan = StandPlan(train_at=100 if quick else 360, speed=speed, interval_s=15.0 / speed)
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
    """Wait until the watch has learned."""
    least = one.plan.train_at * one.plan.interval_s
    done = 'hopline_mesh_fine_tunes_total{outcome="ok"} 1'
    one.wait("training", lambda: done in one.client.get(f"{one.page}/metrics").text, 3 * least + 180)


def of_fault(one: Stand, kind: str, target: Target) -> dict[str, Any]:
    """One fault, from its start until everything is normal again."""
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
    """One planned change, watched for a while after its end."""
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
    """Scale a service from three pods to seven."""
    service = _busy(one)[2]
    one.order("/scale", service=service, replicas=3)
    one.simulated(300)
    one.order("/scale", service=service, replicas=7)


def rollout(one: Stand) -> None:
    """Replace the pods of a service."""
    one.order("/rollout", service=_busy(one)[1])


def drain(one: Stand) -> None:
    """Drain a node."""
    one.order("/drain", service=_busy(one)[3])


def calm(one: Stand) -> None:
    """Wait until nothing was wrong for a while; a longer incident counts for the next result."""
    needed = _CALM_S / one.plan.speed
    since = time.monotonic()
    end = since + 5 * needed
    while time.monotonic() - since < needed and time.monotonic() < end:
        if any(each["end_s"] is None for each in one.incidents()):
            since = time.monotonic()
        time.sleep(0.2)


def fired(one: Stand, after: int = 0) -> list[str]:
    """Identities of the incidents that were sent to the webhook, in order."""
    return _ids(one, after, "firing")


def over(one: Stand, after: int = 0) -> list[str]:
    """Those whose end was sent to the webhook."""
    return _ids(one, after, "resolved")


def _ids(one: Stand, after: int, status: str) -> list[str]:
    alerts = [alert for body in list(one.notified[after:]) for alert in body["alerts"]]
    return list(dict.fromkeys(each["labels"]["incident"] for each in alerts if each["status"] == status))


def rank(incident: dict[str, Any], target: Target) -> int | None:
    """Rank of the faulty service or path among the suspects, from 1; either end also names a path."""
    for place, suspect in enumerate(incident["suspects"], start=1):
        if suspect["service"] in target.reported:
            return place
    return None


def _beside(known: dict[str, dict[str, Any]], ids: list[str]) -> dict[str, Any]:
    """Evidence of the incidents that have no fault; empty if there are none."""
    about = []
    for incident in (known[each] for each in ids if each in known):
        suspect = incident["suspects"][0]
        about.append({key: suspect.get(key) for key in ("service", "caller", "evidence")})
    return {"beside": about} if about else {}


def _worst(told: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst of several runs."""
    ranks = [each["rank"] for each in told]
    return {
        "incidents": max((each["incidents"] for each in told), key=lambda count: abs(count - 1)),
        "rank": None if None in ranks else max(ranks),
    }


def target(one: Stand, service: str, caller: str = "") -> Target:
    """The target of a fault, with the names under which the metrics have it."""
    names = {each["service"]: each["reported"] for each in one.state()["services"]}
    return Target(service, caller, frozenset(names[each] for each in (service, caller) if each))


def _target(one: Stand, kind: str, number: int) -> Target:
    """A service or call path that is in use and measured, a different one for each number."""
    paths = [each for each in one.state()["paths"] if each["request_rate"] > 1 and each["measured"]]
    paths.sort(key=lambda each: -each["request_rate"])
    if kind in EDGE_FAULTS:
        path = paths[(2 + 2 * number) % len(paths)]
        return target(one, path["service"], path["caller"])
    return target(one, _busy(one)[(2 + number) % len(_busy(one))])


def _busy(one: Stand) -> list[str]:
    """Services that receive requests, those with the most first."""
    services = sorted(one.state()["services"], key=lambda each: -each["request_rate"])
    return [each["service"] for each in services if each["request_rate"] > 1]


def _say(name: str, figures: dict[str, Any]) -> None:
    print(f"  {name}: {figures}", file=sys.stderr, flush=True)
