"""Runs a plan from start to end: snapshots, contexts, and labels of faults."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.simulate.measure import Monitor
from hopline_mesh.simulate.plan import MeshPlan
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

    Raises:
        ConfigError: the plan names a service or call path that the mesh does not have.
    """

    def __init__(self, plan: MeshPlan, seed: int) -> None:
        self.plan, self.seed = plan, seed
        self.world = world = World(plan, seed)
        self.faults, self.operations = world.faults, world.operations
        self.services = world.topology.names
        self.reported = dict(zip(self.services, world.topology.reported, strict=True))
        self.paths = tuple(
            (self.services[src], self.services[dst])
            for src, dst in zip(world.topology.src, world.topology.dst, strict=True)
        )

    def __len__(self) -> int:
        """Number of snapshots."""
        return int(self.plan.hours * 3600.0 / self.plan.interval_s + 1e-9)

    def __iter__(self) -> Iterator[tuple[Snapshot, Context]]:
        plan = self.plan
        self.world = world = World(plan, self.seed)
        monitor = Monitor(world, np.random.default_rng([self.seed, 3]))
        warm_up = max(1, round(plan.warm_up_s / plan.interval_s))
        world.now_s = plan.start_s - warm_up * plan.interval_s
        for tick in range(warm_up + len(self)):
            world.step(plan.interval_s)
            monitor.look(plan.interval_s)
            if tick >= warm_up:
                yield monitor.snapshot(), world.journal.context(world.now_s)


#: The name that reads better where a simulation is run immediately.
simulate = Simulation
