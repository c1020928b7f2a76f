"""A watch on a simulated mesh with faults: `hopline mesh demo`."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from hopline.process.listeners import reserve
from hopline_mesh.changes import Context
from hopline_mesh.detect import MeshDetector
from hopline_mesh.incident import Incident, Suspect, Verdict
from hopline_mesh.schema import Schema
from hopline_mesh.settings import (
    DetectorSettings,
    KubernetesSettings,
    MeshSettings,
    ServeSettings,
    StateSettings,
)
from hopline_mesh.simulate import Fault, FaultKind, MeshPlan, Operation, Simulation, simulate
from hopline_mesh.snapshot import Gap, Snapshot
from hopline_mesh.watch import Started, run

#: Hours without faults to learn from, and hours that are played.
_LEARNED_HOURS, _HOURS = 3.0, 24.0
#: Start of the first event, time between events, and duration of a fault; simulated seconds.
_FIRST_S, _EVERY_S, _FAULT_S = 900.0, 900.0, 480.0
#: Seconds after a fault's end in which an incident still belongs to the fault.
_LATE_S = 60.0
#: The events, repeated: a fault is an incident, and a planned change is not.
_STORY: tuple[FaultKind | Literal["scale", "rollout", "drain"], ...] = (
    "edge_latency",
    "scale",
    "retry_storm",
    "rollout",
    "error_burst",
    "drain",
    "partition",
    "slow_service",
)
_PODS = 7


class SimulatedFeed:
    """A feed that plays a simulated day, which ends now.

    Args:
        services: number of services of the mesh.
        seed: another one gives another mesh.
        speed: simulated seconds per second.
        say: called with one line for each event and each incident.
        enough: stop after this number of ended incidents, or when more faults began; 0 never stops.

    Attributes:
        name, schema, speed: see `Feed`.
        found: for each fault that has begun, whether its service, or an end of its call path, was the first
            or second suspect of an incident.
        false: number of incidents at other times.
    """

    def __init__(
        self, services: int, seed: int, speed: float, say: Callable[[str], None], enough: int = 0
    ) -> None:
        self.name = f"{services} simulated services, {speed:g} times real speed"
        self.speed = speed
        self.found: dict[Fault, bool] = {}
        self.false = 0
        self._say, self._enough = say, enough
        faults, operations = _story()
        plan = MeshPlan(services=services, hours=_HOURS, faults=faults, operations=operations)
        self._run = simulate(plan, seed)
        self._lines = deque(sorted(_lines(self._run), key=lambda line: line[0]))
        self._pairs = iter(self._run)
        self.schema = Schema()
        self._began = time.monotonic()
        self._begins_s = time.time() - 3600 * _HOURS
        self._last: tuple[Snapshot, Context] | None = None
        self._moved_s = 0.0
        self._open: set[str] = set()
        self._ended = 0

    def clock(self) -> float:
        """Return the simulated time, Unix seconds."""
        return self._begins_s + (time.monotonic() - self._began) * self.speed

    def detector(self, settings: DetectorSettings) -> MeshDetector:
        """Return a detector fitted to three calm hours."""
        self._say(f"learning from {_LEARNED_HOURS:g} calm hours, which takes some seconds ...")
        plan = self._run.plan
        start_s = plan.start_s - 3600 * _LEARNED_HOURS
        before = replace(plan, hours=_LEARNED_HOURS, start_s=start_s, faults=(), operations=())
        snapshots, contexts = zip(*simulate(before, self._run.seed), strict=True)
        detector = MeshDetector(settings)
        detector.fit(snapshots, contexts)
        return detector

    async def collect(self, now_s: float) -> Snapshot:
        """Return the next snapshot with the present time; after the end, the last one as not measured."""
        pair = next(self._pairs, None)
        if pair is None:
            assert self._last is not None
            return self._last[0].unmeasured(now_s, Gap("demo", "the simulated day is over"))
        self._last, snapshot = pair, pair[0]
        self._moved_s = now_s - snapshot.time_s
        while self._lines and self._lines[0][0] <= snapshot.time_s:
            _, fault, line = self._lines.popleft()
            if fault is not None:
                self.found.setdefault(fault, False)
            self._say(f"{_time(now_s)}  {line}")
        return replace(snapshot, time_s=now_s)

    def context(self, now_s: float) -> tuple[Context, tuple[Gap, ...]]:
        """Return planned changes and troubles, with times moved to the present."""
        if self._last is None:
            return Context(), ()
        return self._last[1].moved(self._moved_s), ()

    def on_verdict(self, verdict: Verdict) -> bool:
        """Report which incidents begin and end; see `Feed`."""
        for incident in verdict.incidents:
            if incident.id not in self._open and incident.end_s is None:
                self._open.add(incident.id)
                self._judge(incident, verdict.time_s)
            elif incident.id in self._open and incident.end_s is not None:
                self._open.discard(incident.id)
                self._ended += 1
                self._say(f"{_time(verdict.time_s)}    the watch: incident ended")
        return self._enough > 0 and (self._ended >= self._enough or len(self.found) > self._enough)

    def _judge(self, incident: Incident, time_s: float) -> None:
        now_s = time_s - self._moved_s
        suspects = ", ".join(_suspect(each) for each in incident.suspects[:2])
        for fault in self.found:
            if fault.start_s <= now_s <= fault.end_s + _LATE_S:
                self.found[fault] |= any(each.service in fault.roots for each in incident.suspects[:2])
                after = f"incident after {now_s - fault.start_s:.0f} s"
                self._say(f"{_time(time_s)}    the watch: {after}: {suspects}")
                return
        self.false += 1
        self._say(f"{_time(time_s)}    the watch: false incident: {suspects}")


def play(feed: SimulatedFeed, port: int, started: Callable[[Started], None] = lambda started: None) -> None:
    """Watch a simulated mesh until SIGTERM, SIGINT or the end of the feed.

    Args:
        port: of the page; 0 chooses a free one.

    Raises:
        HoplineError: the watch cannot start.
    """
    with tempfile.TemporaryDirectory(prefix="hopline-mesh-demo-") as folder:
        settings = MeshSettings(
            # A demo of some minutes is too short for a training.
            detector=DetectorSettings(train_at=10**6, fine_tune_interval_s=0.0),
            kubernetes=KubernetesSettings(kubernetes="never"),
            serve=ServeSettings(http_port=port, grpc_port=-1),
            state=StateSettings(state_dir=Path(folder)),
        )
        run(settings, started, feed)


def _story() -> tuple[tuple[Fault, ...], tuple[Operation, ...]]:
    """Return the faults and planned changes of the day."""
    faults: list[Fault] = []
    operations: list[Operation] = []
    count = int((3600 * _HOURS - _FIRST_S) // _EVERY_S)
    for number, kind in zip(range(count), itertools.cycle(_STORY), strict=False):
        at_s = _FIRST_S + number * _EVERY_S
        if kind == "scale" or kind == "rollout" or kind == "drain":
            operations.append(Operation(kind, at_s, replicas=_PODS if kind == "scale" else 0))
        else:
            faults.append(Fault(kind, at_s, _FAULT_S, severity=0.8))
    return tuple(faults), tuple(operations)


def _lines(run: Simulation) -> Iterator[tuple[float, Fault | None, str]]:
    """Yield times and words of all events, with the fault of each that is one."""
    for fault in run.faults:
        where = f"from {fault.caller} to {fault.service}" if fault.caller else f"of {fault.service}"
        what = f"{fault.kind.replace('_', ' ')} {where}"
        yield fault.start_s, fault, f"{what}: begins"
        yield fault.end_s, fault, f"{what}: ends"
    for operation in run.operations:
        yield operation.start_s, None, f"{operation.kind} of {operation.service}: planned, so no incident"


def _suspect(suspect: Suspect) -> str:
    return f"{suspect.caller} → {suspect.service}" if suspect.caller else suspect.service


def _time(time_s: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(time_s))


def check_port(port: int) -> None:
    """Check that the page can have its port, before the demo learns for some seconds.

    Raises:
        ConfigError: it is in use.
    """
    with reserve(ServeSettings().host, port, "--port"):
        pass
