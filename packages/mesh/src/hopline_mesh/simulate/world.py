"""The state of the simulated mesh, and its steps in time.

Combines load, pods, faults and physics. Knows neither snapshots nor Prometheus.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline_mesh.simulate import flow as physics
from hopline_mesh.simulate.cast import Cast
from hopline_mesh.simulate.fleet import Fleet
from hopline_mesh.simulate.harm import Harm
from hopline_mesh.simulate.journal import Journal
from hopline_mesh.simulate.load import Load
from hopline_mesh.simulate.plan import Fault, MeshPlan, Operation
from hopline_mesh.simulate.pods import Pods
from hopline_mesh.simulate.topology import Floats, Ints, build
from hopline_mesh.simulate.traits import add

#: Share of a service's calls that a spare takes over after it was added.
SPARE_SHARE = 0.3


class World:
    """The state of a simulated mesh.

    Attributes:
        now_s: Unix seconds.
        faults, operations: those of the plan with their services, oldest first; times are Unix seconds.
        topology: services and call paths, including spares.
        flow: present rates, latencies and failures.
        cpu_cores: in use by all pods of each service [s].
        ready: int64 [s], pods that serve.

    Raises:
        ConfigError: the plan names a service or call path that the mesh does not have.
    """

    def __init__(self, plan: MeshPlan, seed: int) -> None:
        self.plan = plan
        self._rng = rng = np.random.default_rng([seed, 1])
        # A mesh that does not scale with the load has enough pods for the busiest hour.
        peak = 1.0 if plan.autoscale else 1.0 + plan.daily
        self.topology = add(
            plan.traits,
            build(plan.services, plan.spares, plan.rate, np.random.default_rng([seed, 0]), peak),
            np.random.default_rng([seed, 7]),
        )
        self.now_s = plan.start_s - plan.warm_up_s
        self.pods = Pods(machines=max(6, plan.services))
        self.journal = Journal(self.topology)
        self.fleet = Fleet(self.topology, self.pods, self.journal, self.now_s, rng, plan.autoscale_window_s)
        self._load = Load(plan, self.topology.entry_share, rng)
        self.flow = physics.start(self.topology)
        s, e = len(self.topology.names), len(self.topology.src)
        self.harm = Harm(self.topology, self.pods, self.fleet, self.journal, rng)
        self._pace = np.zeros(s)
        self._mix = np.zeros(e)
        self._taken = np.zeros(s)
        self._asleep_until = np.full(s, -np.inf)
        self._asleep_until[self.topology.idle] = self.now_s
        self._awake = np.ones(s, dtype=bool)
        self.ready: Ints = np.zeros(s, dtype=np.int64)
        self.cpu_cores: Floats = np.zeros(s)
        self._noise = plan.noise
        self._group_size = np.bincount(self.topology.groups)[self.topology.groups]
        cast, start_s = Cast(self.topology, plan.rate, np.random.default_rng([seed, 2])), plan.start_s
        self.faults = tuple(
            replace(cast.of_fault(each), start_s=start_s + each.start_s)
            for each in sorted(plan.faults, key=lambda each: each.start_s)
        )
        self.operations = tuple(
            replace(cast.of_operation(each), start_s=start_s + each.start_s)
            for each in sorted(plan.operations, key=lambda each: each.start_s)
        )
        todo: list[Fault | Operation] = [*self.faults, *self.operations]
        self._todo = deque(sorted(todo, key=lambda each: each.start_s))

    def step(self, step_s: float) -> None:
        """Begin and end planned faults and changes that are due, and advance by some seconds."""
        self._act()
        self.now_s += step_s
        now_s, topology, pods = self.now_s, self.topology, self.pods
        self.fleet.reconcile(now_s)
        self.harm.step(now_s, step_s)
        serving = pods.ready(now_s)
        s = len(topology.names)
        owner = pods.service[serving]
        slow = pods.slowness(now_s)[serving]
        self.ready = np.bincount(owner, minlength=s)
        count = np.maximum(self.ready, 1)
        slow_mean = np.where(self.ready > 0, np.bincount(owner, slow, s) / count, 1.0)
        slow_square = np.where(self.ready > 0, np.bincount(owner, slow * slow, s) / count, 1.0)
        self._wander(step_s)
        harm = self.harm
        own_ms = topology.own_ms * np.exp(self._pace) * harm.slower
        now = physics.Conditions(
            entering=self._load.rates(now_s, step_s) * self.fleet.running,
            calls=topology.calls * np.exp(self._mix) * self._routes(step_s),
            ready=self.ready.astype(np.float64),
            slow_mean=slow_mean,
            slow_square=slow_square,
            own_ms=own_ms,
            own_errors=np.clip(self._hiccups() + harm.errors, 0.0, 1.0),
            loss=harm.loss,
            delay_ms=harm.delay_ms,
            resend=harm.resend,
        )
        self.flow = physics.advance(topology, now, self.flow)
        self._consume(step_s, serving)
        if self.plan.autoscale:
            self.fleet.autoscale(self.cpu_cores, self.ready, now_s)

    def _act(self) -> None:
        for number, active in list(self.harm.active.items()):
            if active.fault.end_s <= self.now_s:
                self.harm.end(number, self.now_s)
        while self._todo and self._todo[0].start_s <= self.now_s:
            item = self._todo.popleft()
            if isinstance(item, Fault):
                self.harm.begin(item, self.now_s)
            else:
                # Existing services are not added, and missing ones are not changed.
                with contextlib.suppress(BadRequest):
                    self.fleet.operate(item, self.now_s)

    def _wander(self, step_s: float) -> None:
        """Drift service times and the mix of requests, now and then with a jump."""
        for values, tau_s, size in ((self._pace, 300.0, 0.06), (self._mix, 900.0, 0.05)):
            keep = math.exp(-step_s / tau_s)
            shock = self._rng.standard_t(3, len(values))
            values *= keep
            values += math.sqrt(1.0 - keep * keep) * size * self._noise * shock
            np.clip(values, -0.8, 0.8, out=values)

    def _hiccups(self) -> Floats:
        """Return background errors: few, and rarely some more."""
        usual = 2e-4 * self._rng.exponential(1.0, len(self._pace))
        rare = (self._rng.random(len(self._pace)) < 0.002) * self._rng.uniform(0.0, 0.02, len(self._pace))
        return (usual + rare) * min(1.0, self._noise)

    def _routes(self, step_s: float) -> Floats:
        """Return the used share of each path's calls; spares take some, idle services get none."""
        topology = self.topology
        if topology.idle.any():
            over = topology.idle & (self._asleep_until <= self.now_s)
            for service in np.flatnonzero(over):
                self._awake[service] = not self._awake[service]
                self._asleep_until[service] = self.now_s + self._rng.exponential(1500.0)
        spares = np.flatnonzero(topology.spare_of >= 0)
        share = self._awake.astype(np.float64)
        for spare in spares:
            up = self.fleet.running[spare] and self.ready[spare] > 0
            aim = SPARE_SHARE if up else 0.0
            # Traffic moves within about two minutes, and stops immediately without any pod.
            moved = step_s / 120.0 * SPARE_SHARE
            taken = min(aim, self._taken[spare] + moved) if up else 0.0
            self._taken[spare] = taken
            share[spare] = taken
            share[topology.spare_of[spare]] *= 1.0 - taken
        # A Service distributes its requests over all ready pods behind it.
        ready = np.where(self.fleet.running, self.ready, 0).astype(np.float64)
        behind = np.bincount(topology.groups, ready)[topology.groups]
        several = self._group_size > 1
        equal = 1.0 / self._group_size
        share[several] *= np.where(behind > 0, ready / np.maximum(behind, 1.0), equal)[several]
        return (share * self.fleet.running)[topology.dst]

    def _consume(self, step_s: float, serving: NDArray[np.bool_]) -> None:
        """Update CPU and memory use of each pod."""
        topology, pods, flow, rng = self.topology, self.pods, self.flow, self._rng
        s, n = len(topology.names), len(pods)
        service = pods.service
        count = np.maximum(self.ready, 1)
        load = flow.served / count
        calling = np.bincount(topology.src, flow.sent, s) / count * 4e-5
        cold = pods.slowness(self.now_s)
        uneven = np.exp(0.08 * self._noise * rng.standard_t(4, n).clip(-6, 6))
        work = (load * topology.cpu_s + calling)[service] * (0.7 + 0.3 * cold) * uneven
        runs = (pods.down_s <= self.now_s) & (pods.created_s <= self.now_s)
        starting = runs & (self.now_s - pods.started_s < 25.0)
        own = 0.02 * topology.cpu_request[service]
        boot = np.where(starting, 0.3 * topology.cpu_request[service], 0.0)
        hog = self.harm.hog[service] * topology.cpu_request[service]
        pods.cpu_cores[:] = np.where(runs, np.where(serving, work + hog, 0.0) + own + boot, 0.0)
        # Garbage grows with the work and is collected in one step.
        usual = np.maximum(topology.cpu_request * 0.5, 1e-9)
        pods.phase[:] += np.where(
            runs, step_s / topology.gc_s[service] * (0.3 + 0.7 * work / usual[service]), 0.0
        )
        pods.phase[:] %= 1.0
        held = (
            topology.memory_bytes[service] * (1.0 + 0.35 * pods.phase)
            + 2e5 * (flow.in_flight / count)[service]
        )
        pods.memory_bytes[:] = np.where(runs, held + pods.leaked, 0.0)
        pods.cpu_s[:] += pods.cpu_cores * step_s
        self.cpu_cores = np.bincount(service, pods.cpu_cores, s).astype(np.float64)
