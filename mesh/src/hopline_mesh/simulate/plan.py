"""What is to be simulated: how large a mesh, how busy, and what happens to it.

Plain values. Knows no arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from hopline.errors import ConfigError
from hopline_mesh.schema import Schema

#: Something goes wrong. Of a call path: `retry_storm` (a caller sends every call several times),
#: `partition` (a share of the calls is lost and times out), `edge_latency` (the network delays; the callee
#: sees nothing). Of a service: `memory_leak` (until it is killed for it, again and again), `crash_loop`
#: (its pods fall over soon after each start), `cpu_hog` (something else takes its processors),
#: `slow_service` (each request takes longer), `error_burst` (it answers with errors), `stuck_rollout` (new
#: pods never become ready).
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

#: Something is meant to happen. `scale`: to `replicas` pods (and stays so); `rollout`: new pods for old;
#: `drain`: a machine that the service runs on is emptied; `add`: a spare service takes 30 % of the traffic
#: of another; `remove`: that spare goes, or another service, which nobody calls from then on; `shift`: 30 %
#: of the service's pods run a new version.
OperationKind = Literal["scale", "rollout", "drain", "add", "remove", "shift"]
OPERATIONS: tuple[OperationKind, ...] = get_args(OperationKind)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, and so the truth that a detector is judged by.

    Attributes:
        kind: what goes wrong.
        start_s: seconds after the simulation's start; in `Simulation.faults` Unix seconds.
        duration_s: how long it lasts. Its effects may outlast it (queues, restarts).
        service: the root cause; of an edge fault the callee. "" lets the simulation choose.
        caller: of an edge fault the caller; else "".
        severity: 0 (hardly felt) to 1 (nobody could miss it).
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
            raise ConfigError(f"duration of {self.kind} is {self.duration_s} s; it has to be above 0")
        if self.caller and self.kind not in EDGE_FAULTS:
            raise ConfigError(f"{self.kind} is a fault of one service: it has no caller")

    @property
    def end_s(self) -> float:
        """When the fault itself ends."""
        return self.start_s + self.duration_s

    @property
    def roots(self) -> tuple[str, ...]:
        """The services that count as its root cause: of an edge fault both ends, the guilty one first."""
        if not self.caller:
            return (self.service,)
        return (self.caller, self.service) if self.kind == "retry_storm" else (self.service, self.caller)


@dataclass(frozen=True, slots=True)
class Operation:
    """One planned change.

    Attributes:
        kind: what is done.
        start_s: seconds after the simulation's start; in `Simulation.operations` Unix seconds.
        service: to which service; "" lets the simulation choose.
        replicas: of `scale`, how many pods it is to have.
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


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """A mesh and what happens to it.

    Attributes:
        services: number of services, at least 3.
        spares: services that do not run at first, for `add`.
        hours: how long it lasts.
        interval_s: seconds between snapshots.
        start_s: Unix time of the start; the daily pattern has its minimum at 03:00 UTC.
        rate: requests per second that enter the mesh at the middle of the day.
        daily: by how much the load swings over a day, 0 to 0.9.
        bursts_per_hour: sudden rises of load at one entry (they are normal).
        noise: 1.0 is that of a usual mesh; 0.0 gives the physics alone.
        missing: share of the measurements of a service that fail.
        autoscale: whether the number of pods follows the load.
        autoscale_window_s: over which autoscaling smooths what pods use; 0 goes by the moment, and so
            follows every noise.
        window_s: rates and latencies are taken over this time, as Prometheus' `rate(...[1m])` does.
        warm_up_s: simulated time before the first snapshot, so that nothing starts cold.
        faults, operations: what happens, in any order.
        schema: the columns; only names of the default schema can be measured, all others are NaN.
    """

    services: int = 30
    spares: int = 3
    hours: float = 1.0
    interval_s: float = 15.0
    start_s: float = 1_767_225_600.0
    rate: float = 300.0
    daily: float = 0.35
    bursts_per_hour: float = 0.5
    noise: float = 1.0
    missing: float = 0.001
    autoscale: bool = True
    autoscale_window_s: float = 60.0
    window_s: float = 60.0
    warm_up_s: float = 600.0
    faults: tuple[Fault, ...] = ()
    operations: tuple[Operation, ...] = ()
    schema: Schema = field(default_factory=Schema)

    def __post_init__(self) -> None:
        for name, low, high in (
            ("services", 3, 100_000),
            ("spares", 0, 1_000),
            ("hours", 0.0, 24.0 * 366),
            ("interval_s", 0.1, 3600.0),
            ("rate", 0.0, 1e7),
            ("daily", 0.0, 0.9),
            ("bursts_per_hour", 0.0, 1e3),
            ("noise", 0.0, 10.0),
            ("missing", 0.0, 1.0),
            ("autoscale_window_s", 0.0, 3600.0),
            ("window_s", 0.1, 3600.0),
            ("warm_up_s", 0.0, 86_400.0),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} of the mesh plan is {value}, not within {low:g} to {high:g}")
