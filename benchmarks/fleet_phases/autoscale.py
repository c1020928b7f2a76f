"""Load rises fivefold in 30 s: does the shipped HorizontalPodAutoscaler ask for pods before p99 doubles?

Pods are servers of this machine with a quarter of a CPU each, by control groups (`pods.py`). Debian's
Prometheus scrapes them at the interval of the shipped ServiceMonitor (`scraped.py`). The shipped queries of
the adapter, and the autoscaler's algorithm (`hpa.py`) with the shipped targets, decide every 15 s. Each pod
that is asked for starts. Requests come at regular times, to all ready pods in turn. The load begins to rise
in the middle between two decisions.

Afterwards the load falls. The autoscaler then continues for 20 minutes on the last minute of metrics, which
is repeated: the CPU use of all pods is divided among those that remain.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks import hopline_server, workload
from benchmarks.fleet_phases.hpa import SYNC_S, Autoscaler
from benchmarks.fleet_phases.network import temporary
from benchmarks.fleet_phases.pods import QUOTA, Fleet, Load, cost_s
from benchmarks.fleet_phases.scraped import OVERLAY, Metrics, prometheus

_AHEAD = "hopline_cpus_in_30s"
#: Share of their quota that the first pods need before the load rises; how far and how fast it rises.
_BASE_SHARE, _RISE, _RISE_S = 0.2, 5.0, 30.0
#: p99 is of the requests of so many seconds.
_WINDOW_S = 10.0
_FALL_S, _AFTER_S = 30.0, 1200.0


def measure(quick: bool) -> dict[str, Any]:
    """See the module; `quick` shortens the time before and after the rise."""
    if shutil.which("prometheus") is None:
        raise RuntimeError("needs prometheus (Debian, Ubuntu: apt-get install prometheus)")
    serve_dir = hopline_server.prepare(workload.ensure(workload.SMALL))
    spec = yaml.safe_load((OVERLAY / "horizontalpodautoscaler.yaml").read_text())["spec"]
    scaler = Autoscaler(spec, {_AHEAD: QUOTA})
    with temporary() as name:
        fleet = Fleet(Path(name), serve_dir)
        try:
            with prometheus(fleet.folder) as url:
                for _ in range(spec["minReplicas"]):
                    fleet.start()
                fleet.wait_ready()
                return _scenario(fleet, scaler, Metrics(url), quick=quick)
        finally:
            fleet.stack.close()


def _scenario(fleet: Fleet, scaler: Autoscaler, metrics: Metrics, *, quick: bool) -> dict[str, Any]:
    began = time.monotonic()
    request_s = cost_s(fleet.pods[0])
    base = _BASE_SHARE * QUOTA * len(fleet.pods) / request_s
    steady_s, held_s, low_s = (60.0, 60.0, 60.0) if quick else (180.0, 300.0, 180.0)
    rise_at = steady_s + SYNC_S / 2
    fall_at = rise_at + _RISE_S + held_s
    end = fall_at + _FALL_S + low_s

    def rate(now: float) -> float:
        up = min(1.0, max(0.0, (now - rise_at) / _RISE_S))
        down = min(1.0, max(0.0, (now - fall_at) / _FALL_S))
        return base * (1 + (_RISE - 1) * (up - down))

    print(f"    a request takes {1e3 * request_s:.1f} ms of a CPU; {base:.1f} requests/s", flush=True)
    load = Load(fleet)
    load.rate = base
    load.start()
    pods, next_sync = len(fleet.pods), SYNC_S
    asked_at = doubled_at = None
    most = pods
    recorded: list[dict[str, dict[str, float]]] = []
    changes: list[int] = []
    before_ms = 0.0
    start = time.monotonic()
    try:
        while (now := time.monotonic() - start) < end:
            load.rate = rate(now)
            fleet.look()
            if now >= rise_at and not before_ms:
                before_ms = load.p99_ms(start + 15, start + rise_at)
            window_ms = load.p99_ms(start + now - _WINDOW_S, start + now)
            if before_ms and doubled_at is None and now > rise_at and window_ms > 2 * before_ms:
                doubled_at = now - rise_at
                print(f"    {now:5.0f} s  p99 is {window_ms:.0f} ms, twice of before", flush=True)
            if now >= next_sync:
                next_sync += SYNC_S
                values = metrics.read(fleet)
                if now >= fall_at + _FALL_S:
                    recorded.append(values)
                decided = scaler.decide(now, pods, values)
                if decided != pods:
                    changes.append(decided - pods)
                    print(f"    {now:5.0f} s  {pods} -> {decided} pods; {_shown(values)}", flush=True)
                if decided > pods and now > rise_at and asked_at is None:
                    asked_at = now - rise_at
                for _ in range(decided - len(fleet.pods)):
                    fleet.start()
                pods = decided
                most = max(most, pods)
            time.sleep(0.1)
    finally:
        load.stop.set()
        load.join(30)
    held_ms = load.p99_ms(start + fall_at - held_s / 2, start + fall_at)
    after = _afterwards(scaler, pods, end, recorded)
    turns = _turns([change for change in changes + after if change])
    lost = sum(status != 200 for _, _, status in load.answers)
    print(f"    {time.monotonic() - began:.0f} s in all; pods afterwards: {pods + sum(after)}", flush=True)
    return {
        "autoscale_asked_s": _rounded(asked_at),
        "autoscale_p99_doubled_s": _rounded(doubled_at),
        "autoscale_in_time": asked_at is not None and (doubled_at is None or asked_at < doubled_at),
        "autoscale_p99_before_ms": round(before_ms, 1),
        "autoscale_p99_held_ms": round(held_ms, 1),
        "autoscale_most_pods": most,
        "autoscale_pods_afterwards": pods + sum(after),
        "autoscale_flaps": max(0, turns - 1),
        "autoscale_requests": len(load.answers),
        "autoscale_lost": lost,
    }


def _afterwards(
    scaler: Autoscaler, pods: int, began: float, recorded: list[dict[str, dict[str, float]]]
) -> list[int]:
    """Changes while the recorded metrics repeat, and their CPU use is divided among the pods there are."""
    changes = []
    for number in range(int(_AFTER_S / SYNC_S)):
        values = {}
        for name, found in recorded[number % len(recorded)].items():
            share = len(found) / pods if name in ("cpu", _AHEAD) else 1.0
            mean = statistics.fmean(found.values()) if found else 0.0
            values[name] = {f"pod{each}": mean * share for each in range(pods)}
        decided = scaler.decide(began + (number + 1) * SYNC_S, pods, values)
        changes.append(decided - pods)
        pods = decided
    return changes


def _turns(changes: list[int]) -> int:
    """Number of changes of direction; once is up and then down."""
    return sum(now * before < 0 for before, now in pairwise(changes))


def _shown(values: dict[str, dict[str, float]]) -> str:
    means = {name: statistics.fmean(found.values()) for name, found in values.items() if found}
    return ", ".join(f"{name.removeprefix('hopline_')} {mean:.3g}" for name, mean in means.items())


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


if __name__ == "__main__":
    print(json.dumps(measure("--quick" in sys.argv)))
