"""The plan of a simulation: size and load of the mesh, faults and planned changes.

Plain values. Knows no arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal, TypeVar, get_args

from hopline.errors import ConfigError
from hopline_mesh.simulate.traits import Traits

T = TypeVar("T")

#: Kinds of faults. Of a call path: `retry_storm` (a caller sends every call several times), `partition` (a
#: share of the calls is lost and times out), `edge_latency` (the network delays; the callee does not see
#: it). Of a service: `memory_leak` (until it is killed for it, again and again), `crash_loop` (its pods
#: crash soon after each start), `cpu_hog` (something else uses its CPUs), `slow_service` (each request
#: takes longer), `error_burst` (it returns errors), `stuck_rollout` (new pods never become ready).
FaultKind = Literal[
    "retry_storm",
    "partition",
    "edge_latency",
    "memory_leak",
    "crash_loop",
    "cpu_hog",
    "slow_service",
    "error_burst",
    "stuck_rollout",
]
FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)
EDGE_FAULTS: tuple[FaultKind, ...] = ("retry_storm", "partition", "edge_latency")

#: Kinds of planned changes. `scale`: to `replicas` pods; `rollout`: replaces all pods; `drain`: drains a
#: node of the service; `add`: a spare service takes 30 % of the traffic of another; `remove`: removes that
#: spare, or another service, which gets no calls from then on; `shift`: 30 % of the service's pods run a
#: new version.
OperationKind = Literal["scale", "rollout", "drain", "add", "remove", "shift"]
OPERATIONS: tuple[OperationKind, ...] = get_args(OperationKind)

#: A year, the longest recording.
MAX_HOURS = 24.0 * 366


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, which is also a label for the evaluation of detectors.

    Attributes:
        kind: of the fault.
        start_s: seconds after the simulation's start; in `Simulation.faults` Unix seconds.
        duration_s: how long it lasts. Its effects may last longer (queues, restarts).
        service: the root cause; for an edge fault the callee. "" lets the simulation choose.
        caller: for an edge fault the caller; else "".
        severity: 0 (hardly visible) to 1 (impossible to miss).
    """

    kind: FaultKind
    start_s: float
    duration_s: float = 300.0
    service: str = ""
    caller: str = ""
    severity: float = 0.6

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise ConfigError(f"fault {self.kind!r} is not one of {', '.join(FAULTS)}")
        if not 0.0 <= self.severity <= 1.0:
            raise ConfigError(f"severity of {self.kind} is {self.severity}, not within 0 to 1")
        if not self.duration_s > 0.0:
            raise ConfigError(f"duration of {self.kind} is {self.duration_s} s; it must be above 0")
        if self.caller and self.kind not in EDGE_FAULTS:
            raise ConfigError(f"{self.kind} is a fault of one service: it has no caller")

    @property
    def end_s(self) -> float:
        """Time of the end of the fault itself."""
        return self.start_s + self.duration_s

    @property
    def roots(self) -> tuple[str, ...]:
        """Services that count as root cause: for an edge fault both ends, the actual one first."""
        if not self.caller:
            return (self.service,)
        return (self.caller, self.service) if self.kind == "retry_storm" else (self.service, self.caller)


@dataclass(frozen=True, slots=True)
class Operation:
    """One planned change.

    Attributes:
        kind: of the change.
        start_s: seconds after the simulation's start; in `Simulation.operations` Unix seconds.
        service: name; "" lets the simulation choose.
        replicas: for `scale`, the wanted number of pods.
    """

    kind: OperationKind
    start_s: float
    service: str = ""
    replicas: int = 0

    def __post_init__(self) -> None:
        if self.kind not in OPERATIONS:
            raise ConfigError(f"operation {self.kind!r} is not one of {', '.join(OPERATIONS)}")
        if not 0 <= self.replicas <= 1000:
            raise ConfigError(f"replicas is {self.replicas}, not within 0 to 1000")


def _within(low: float, high: float, default: T) -> T:
    return field(default=default, metadata={"within": (low, high)})


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """A mesh, its load, faults and planned changes.

    Attributes:
        services: number of services, at least 3.
        spares: number of services that do not run at first, for `add`.
        hours: duration.
        interval_s: seconds between snapshots.
        start_s: Unix time of the start; the daily pattern has its minimum at 03:00 UTC.
        rate: requests per second that enter the mesh at the middle of the day.
        daily: amplitude of the load over a day, 0 to 0.9.
        bursts_per_hour: sudden increases of load at one entry (they are normal).
        noise: 1.0 is that of a usual mesh; 0.0 has no noise.
        missing: share of the measurements of a service that fail.
        autoscale: whether the number of pods follows the load.
        autoscale_window_s: over which autoscaling smooths the CPU use; 0 does not smooth, and follows
            all noise.
        warm_up_s: simulated time before the first snapshot, so that nothing starts cold.
        faults, operations: in any order.
        traits: what makes it harder to watch.
    """

    services: int = _within(3, 100_000, 30)
    spares: int = _within(0, 1000, 3)
    hours: float = _within(0.0, MAX_HOURS, 1.0)
    interval_s: float = _within(0.1, 3600.0, 15.0)
    start_s: float = 1_767_225_600.0
    rate: float = _within(0.0, 1e7, 300.0)
    daily: float = _within(0.0, 0.9, 0.35)
    bursts_per_hour: float = _within(0.0, 1e3, 0.5)
    noise: float = _within(0.0, 10.0, 1.0)
    missing: float = _within(0.0, 1.0, 0.001)
    autoscale: bool = True
    autoscale_window_s: float = _within(0.0, 3600.0, 60.0)
    warm_up_s: float = _within(0.0, 86_400.0, 600.0)
    faults: tuple[Fault, ...] = ()
    operations: tuple[Operation, ...] = ()
    traits: Traits = field(default_factory=Traits)

    def __post_init__(self) -> None:
        for each in fields(self):
            if "within" in each.metadata:
                value, (low, high) = getattr(self, each.name), each.metadata["within"]
                if not low <= value <= high:
                    what = f"{each.name} of the mesh plan is {value}"
                    raise ConfigError(f"{what}, not within {low:g} to {high:g}")
