"""Runs a plan from start to end: snapshots, contexts, and labels of faults."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.roster import Roster
from hopline_mesh.simulate.cast import cast
from hopline_mesh.simulate.measure import Monitor
from hopline_mesh.simulate.plan import Fault, MeshPlan, Operation
from hopline_mesh.simulate.world import World
from hopline_mesh.snapshot import Snapshot


class Simulation:
    """One simulated mesh; iterate over it for pairs of snapshot and context, oldest first.

    The same plan and seed give the same values in each iteration.

    Attributes:
        plan: as given.
        faults: with their services; `start_s` and `end_s` are Unix seconds.
        operations: planned changes; `start_s` is Unix seconds.
        services: names of all workloads, including spares.
        reported: service -> name under which metrics report it.
        paths: caller and callee of every call path that may be used.
        world: state of the newest iteration; before the first, the initial state.
    """

    def __init__(self, plan: MeshPlan, seed: int) -> None:
        self.plan, self.seed = plan, seed
        self.world = world = World(plan, seed)
        self.services = world.topology.names
        self.reported = dict(zip(self.services, world.topology.reported, strict=True))
        self.paths = tuple(
            (self.services[src], self.services[dst])
            for src, dst in zip(world.topology.src, world.topology.dst, strict=True)
        )
        self.faults, self.operations = cast(plan, world.topology, np.random.default_rng([seed, 2]))

    def __len__(self) -> int:
        """Number of snapshots."""
        return int(self.plan.hours * 3600.0 / self.plan.interval_s + 1e-9)

    def __iter__(self) -> Iterator[tuple[Snapshot, Context]]:
        plan = self.plan
        self.world = world = World(plan, self.seed)
        monitor = Monitor(world, Roster(), np.random.default_rng([self.seed, 3]))
        todo = _agenda(self.faults, self.operations)
        due = 0
        warm_up = max(1, round(plan.warm_up_s / plan.interval_s))
        world.now_s = plan.start_s - warm_up * plan.interval_s
        for tick in range(warm_up + len(self)):
            while due < len(todo) and todo[due][0] <= world.now_s:
                _act(world, todo[due][1], todo[due][2])
                due += 1
            world.step(plan.interval_s)
            monitor.look(plan.interval_s)
            if tick >= warm_up:
                yield monitor.snapshot(), world.context()


def simulate(plan: MeshPlan, seed: int) -> Simulation:
    """Create a simulation of a plan.

    Raises:
        ConfigError: the plan names a service or call path that the mesh does not have.
    """
    return Simulation(plan, seed)


def _agenda(
    faults: tuple[Fault, ...], operations: tuple[Operation, ...]
) -> list[tuple[float, str, Fault | Operation]]:
    todo: list[tuple[float, str, Fault | Operation]] = []
    for fault in faults:
        todo += [(fault.start_s, "begin", fault), (fault.end_s, "end", fault)]
    todo += [(operation.start_s, "operate", operation) for operation in operations]
    return sorted(todo, key=lambda item: item[0])


def _act(world: World, verb: str, what: Fault | Operation) -> None:
    if isinstance(what, Operation):
        # Existing services are not added, and missing ones are not changed.
        if world.fleet.running[world.find(what.service)] != (what.kind == "add"):
            world.operate(what)
    elif verb == "begin":
        world.begin(what)
    else:
        world.end(what)
