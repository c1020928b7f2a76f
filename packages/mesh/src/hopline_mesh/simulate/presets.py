"""Predefined plans: a mesh whose pods are replaced all the time, and one with few changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hopline.errors import ConfigError
from hopline_mesh.simulate.plan import FAULTS, Fault, FaultKind, MeshPlan, Operation, OperationKind
from hopline_mesh.simulate.simulation import Simulation
from hopline_mesh.simulate.traits import draw

#: Faults that are visible in measurements; a stuck rollout is visible only in Kubernetes.
MEASURED: tuple[FaultKind, ...] = tuple(kind for kind in FAULTS if kind != "stuck_rollout")


def unkind(run: Simulation) -> Simulation:
    """Return a simulation of the same plan and seed, with all traits and a daily rhythm drawn."""
    return Simulation(unkind_plan(run.plan, run.seed), run.seed)


def unkind_plan(plan: MeshPlan, seed: int) -> MeshPlan:
    """Return the plan with all traits and a daily rhythm drawn."""
    daily = float(np.random.default_rng([seed, 8]).uniform(0.4, 0.8))
    return replace(plan, traits=draw(seed), daily=daily)


def calm(hours: float = 6.0, services: int = 30, *, seed: int = 0) -> Simulation:
    """Simulate a usual day without faults: load, noise, autoscaling, a rollout now and then."""
    rng = np.random.default_rng([seed, 10])
    operations = _operations(hours, {"rollout": 0.5}, rng)
    return Simulation(MeshPlan(services=services, hours=hours, operations=operations), seed)


def high_churn(
    hours: float = 24.0,
    services: int = 30,
    *,
    seed: int = 0,
    quiet_hours: float = 4.0,
    faults_per_hour: float = 1.2,
    kinds: tuple[FaultKind, ...] = MEASURED,
) -> Simulation:
    """Simulate a mesh whose pods are replaced all the time, with labelled faults in between.

    About 20 rollouts, drains and scalings an hour for 30 services; autoscaling follows all noise.

    Args:
        hours: total length.
        services: size of the mesh.
        quiet_hours: at the start, with churn but without faults, for training.
        faults_per_hour: after that; they are at least ten minutes apart.
        kinds: of faults, in turn.

    Raises:
        ConfigError: no kinds, or a rate that leaves no room between the faults.
    """
    if not kinds or not 0.0 <= faults_per_hour <= 3.0 or quiet_hours < 0.0:
        raise ConfigError(
            "high churn needs kinds of faults, 0 to 3 faults an hour and quiet hours of at least 0"
        )
    rng = np.random.default_rng([seed, 10])
    per_hour: dict[OperationKind, float] = {"rollout": 9.0, "drain": 4.0, "scale": 4.0, "shift": 1.5}
    busy = {kind: rate * services / 30.0 for kind, rate in per_hour.items()}
    plan = MeshPlan(
        services=services,
        hours=hours,
        bursts_per_hour=2.0,
        autoscale_window_s=0.0,
        faults=_faults(hours, quiet_hours, faults_per_hour, kinds, rng),
        operations=(*_operations(hours, busy, rng), *_guests(hours, rng)),
    )
    return Simulation(plan, seed)


def _faults(
    hours: float,
    quiet_hours: float,
    per_hour: float,
    kinds: tuple[FaultKind, ...],
    rng: np.random.Generator,
) -> tuple[Fault, ...]:
    """Return faults, one in each of equal parts of the time."""
    count = int((hours - quiet_hours) * per_hour)
    if count <= 0:
        return ()
    part_s = (hours - quiet_hours) * 3600.0 / count
    order = [kinds[number % len(kinds)] for number in range(count)]
    rng.shuffle(order)
    faults = []
    for number, kind in enumerate(order):
        longest = min(900.0, part_s - 600.0)
        length = float(rng.uniform(0.4, 1.0) * longest)
        first = quiet_hours * 3600.0 + number * part_s
        start = first + float(rng.uniform(0.0, max(0.0, part_s - 600.0 - length)))
        faults.append(
            Fault(kind, round(start), round(length), severity=round(float(rng.uniform(0.3, 1.0)), 2))
        )
    return tuple(faults)


def _operations(
    hours: float, per_hour: dict[OperationKind, float], rng: np.random.Generator
) -> tuple[Operation, ...]:
    """Return operations at random times."""
    return tuple(
        Operation(kind, float(rng.uniform(0.0, hours * 3600.0)))
        for kind, rate in per_hour.items()
        for _ in range(int(rng.poisson(rate * hours)))
    )


def _guests(hours: float, rng: np.random.Generator) -> tuple[Operation, ...]:
    """Return operations that add and remove spare services, one at a time."""
    found: list[Operation] = []
    time_s = 1800.0
    while True:
        time_s += float(rng.exponential(7200.0))
        stay_s = float(rng.uniform(1800.0, 5400.0))
        if time_s + stay_s > hours * 3600.0:
            return tuple(found)
        found += [Operation("add", time_s), Operation("remove", time_s + stay_s)]
        time_s += stay_s
