"""Active faults and their effects on services, call paths and pods."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from hopline_mesh.simulate.fleet import Fleet
from hopline_mesh.simulate.journal import Journal
from hopline_mesh.simulate.plan import Fault
from hopline_mesh.simulate.pods import Pods
from hopline_mesh.simulate.topology import Topology

#: Pauses before a container restarts, after the first, second … crash, in seconds.
_BACK_OFF_S = np.array([1.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0])

#: Longest time until a leak fills the memory, in seconds.
_LEAK_S = 900.0


class Active(NamedTuple):
    """A fault under way, with the numbers of its service and call path; -1 for no call path."""

    fault: Fault
    service: int
    edge: int


class Harm:
    """The present effects of faults.

    Attributes:
        active: faults under way, by a number.
        slower: factor on the time of a request [s].
        errors: share of requests that fail because of faults [s].
        hog: additional CPU use, in units of a pod's CPU request [s].
        loss, delay_ms, resend: as in `Conditions` [e].
    """

    def __init__(
        self, topology: Topology, pods: Pods, fleet: Fleet, journal: Journal, rng: np.random.Generator
    ) -> None:
        self._topology, self._pods, self._fleet = topology, pods, fleet
        self._journal, self._rng = journal, rng
        self.active: dict[int, Active] = {}
        self._numbers = itertools.count(1)
        self._killed_s: dict[int, float] = {}
        self._settle()

    def begin(self, fault: Fault, now_s: float) -> int:
        """Begin a fault of `Cast`, whose service and call path exist; returns its number."""
        service, number = self._topology.names.index(fault.service), next(self._numbers)
        edge = self._topology.edge(fault.caller, fault.service) if fault.caller else -1
        self.active[number] = Active(fault, service, edge)
        if fault.kind == "stuck_rollout":
            self._fleet.roll_out(service, now_s, fails=True)
        self._settle()
        return number

    def end(self, number: int, now_s: float) -> None:
        """End an active fault."""
        fault, service, _ = self.active.pop(number)
        if fault.kind == "stuck_rollout":
            self._fleet.roll_back(service, now_s)
        if fault.kind == "memory_leak":
            # Fix the leak in the existing pods, without a rollout.
            self._pods.leaked[self._pods.service == service] = 0.0
        if fault.kind == "crash_loop":
            rows = self._pods.service == service
            self._pods.down_s[rows] = np.minimum(self._pods.down_s[rows], now_s)
            self._pods.ready_s[rows] = np.minimum(self._pods.ready_s[rows], now_s + 10.0)
            self._journal.end(now_s, service, "crash_loop")
        self._settle()

    def step(self, now_s: float, step_s: float) -> None:
        """Apply leaks, crashes and OOM kills to pods."""
        for fault, service, _ in self.active.values():
            if fault.kind == "memory_leak":
                self._leak(fault, service, step_s, now_s)
            elif fault.kind == "crash_loop":
                self._crash(fault, service, step_s, now_s)
        for service, killed_s in list(self._killed_s.items()):
            if now_s - killed_s > 300.0:
                del self._killed_s[service]
                self._journal.end(now_s, service, "oom_kill")

    def _leak(self, fault: Fault, service: int, step_s: float, now_s: float) -> None:
        pods, topology = self._pods, self._topology
        rows = np.flatnonzero((pods.service == service) & (pods.down_s <= now_s) & pods.staying())
        room = topology.memory_limit[service] - 1.2 * topology.memory_bytes[service]
        # A severe leak fills the memory after half of the fault's time, a mild one after all of it; never
        # later than _LEAK_S, so that an endless fault is visible.
        lasts_s = min(fault.duration_s, _LEAK_S)
        pods.leaked[rows] += step_s * room / (lasts_s * (1.05 - 0.6 * fault.severity))
        held = topology.memory_bytes[service] * (1.0 + 0.35 * pods.phase[rows]) + pods.leaked[rows]
        full = rows[held > topology.memory_limit[service]]
        if full.size:
            pods.restart(full, now_s, np.full(full.size, 3.0), oom=True)
            self._killed_s[service] = now_s
            text = f"{full.size} containers killed for lack of memory"
            self._journal.trouble("oom_kill", service, now_s, text)
        pressure = np.clip(held / topology.memory_limit[service] - 0.75, 0.0, 0.25) / 0.25
        self.slower[service] = 1.0 + 1.5 * float(np.mean(pressure)) if rows.size else 1.0

    def _crash(self, fault: Fault, service: int, step_s: float, now_s: float) -> None:
        pods = self._pods
        rows = np.flatnonzero((pods.service == service) & pods.staying())
        # The first pods in order crash, always the same ones.
        sick = rows[: max(1, round((0.3 + 0.7 * fault.severity) * len(rows)))]
        up = sick[pods.down_s[sick] <= now_s]
        falls = up[(now_s - pods.started_s[up] > 20.0) & (self._rng.random(up.size) < step_s / 15.0)]
        if falls.size:
            pause = _BACK_OFF_S[np.minimum(pods.restarts[falls], len(_BACK_OFF_S) - 1)]
            pods.restart(falls, now_s, pause, oom=False)
        most = int(pods.restarts[sick].max(initial=0))
        if most >= 2:
            self._journal.trouble("crash_loop", service, now_s, f"container restarted {most} times")
        # Requests that were under way in a pod that falls are lost.
        self.errors[service] = 0.5 * falls.size / max(1, len(rows))

    def _settle(self) -> None:
        """Recompute the combined effects of all active faults."""
        s, e = len(self._topology.names), len(self._topology.src)
        self.slower, self.errors, self.hog = np.ones(s), np.zeros(s), np.zeros(s)
        self.loss, self.delay_ms, self.resend = np.zeros(e), np.zeros(e), np.ones(e)
        for fault, service, edge in self.active.values():
            much = fault.severity
            if fault.kind == "retry_storm":
                self.resend[edge] *= 1.5 + 5.0 * much
            elif fault.kind == "partition":
                self.loss[edge] = max(self.loss[edge], 0.05 + 0.75 * much)
            elif fault.kind == "edge_latency":
                self.delay_ms[edge] += 20.0 + 600.0 * much * much
            elif fault.kind == "cpu_hog":
                self.hog[service] += 0.3 + 1.2 * much
                self.slower[service] *= 1.2 + 2.0 * much
            elif fault.kind == "slow_service":
                self.slower[service] *= 1.5 + 8.0 * much
            elif fault.kind == "error_burst":
                self.errors[service] = max(self.errors[service], 0.03 + 0.5 * much)
