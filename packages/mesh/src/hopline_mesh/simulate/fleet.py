"""Deployments: the wanted number and version of pods of each service, and the controllers that create them.

Rolling updates as in Kubernetes (a quarter more pods for a while, none fewer), autoscaling on CPU use,
drains of nodes. Knows no requests.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline_mesh.changes import ChangeKind
from hopline_mesh.simulate import names
from hopline_mesh.simulate.journal import Journal
from hopline_mesh.simulate.lognormal import Floats
from hopline_mesh.simulate.plan import Operation
from hopline_mesh.simulate.pods import START_S, Pods
from hopline_mesh.simulate.topology import Topology

#: Autoscaling runs at this interval, aims at this share of the requested CPU, and scales in only to the
#: largest number of pods that it wanted during the last five minutes.
HPA_S = 15.0
HPA_TARGET = 0.65
_HPA_TOLERANCE = 0.1
_HPA_LOOKS = 20
#: Share of pods that run the new version during a shift.
SHIFT = 0.3
#: A rollout without progress for this time is stuck.
DEADLINE_S = 120.0
#: Changes that end when all wanted pods are ready.
_DONE: tuple[ChangeKind, ...] = ("scale", "rollout", "drain", "added")


class Note(NamedTuple):
    """A message of a controller, which Kubernetes stores as an Event."""

    time_s: float  # simulated
    kind: str  # of its object: Node or HorizontalPodAutoscaler
    subject: int  # number of the node, or of the service
    reason: str  # as in Kubernetes, like the message
    message: str


class Fleet:
    """Wanted pods of each service, and the controllers.

    Attributes:
        running: bool [s], whether the service exists.
        desired: int64 [s], wanted pods.
        revision: int64 [s], version of new pods.
        shifted: service with a share of pods on a new version -> version of the other pods.
        failing: services whose newest version never becomes ready.
        progress_s: services whose rollout is under way -> time of its last progress.
        generation, changed_s: int64 and float64 [s], number and time of the last change of what is wanted.
        notes: the newest messages; a reader takes them out.
    """

    def __init__(
        self, topology: Topology, pods: Pods, journal: Journal, now_s: float, rng: np.random.Generator,
        window_s: float = 60.0,
    ) -> None:  # fmt: skip
        self._topology, self._pods, self._journal, self._rng = topology, pods, journal, rng
        self.running = topology.spare_of < 0
        self.desired = np.where(self.running, topology.replicas, 0)
        self.revision = np.ones(len(topology.names), dtype=np.int64)
        self.shifted: dict[int, int] = {}
        self.failing: set[int] = set()
        self._highest = self.revision.copy()
        self._dirty: set[int] = set()
        self.progress_s: dict[int, float] = {}
        self.generation = self.revision.copy()
        self.changed_s = np.full(len(topology.names), now_s)
        self._looks = np.tile(self.desired, (_HPA_LOOKS, 1))
        self._looked_s = now_s
        # Weight of the newest measurement in the smoothed use.
        self._newest = 1.0 - math.exp(-HPA_S / window_s) if window_s else 1.0
        self._usage = np.zeros(len(topology.names))
        self._pods_seen = np.zeros(len(topology.names), dtype=np.int64)
        self.notes: deque[Note] = deque(maxlen=200)
        for service in np.flatnonzero(self.running):
            pods.create(int(service), int(self.desired[service]), 1, now_s - 3600.0, rng, START_S)

    def operate(self, operation: Operation, now_s: float) -> None:
        """Begin a planned change.

        Raises:
            BadRequest: the service does not run, or runs already.
        """
        service, kind = self._topology.find(operation.service), operation.kind
        if self.running[service] == (kind == "add"):
            state = "runs already" if kind == "add" else "does not run"
            raise BadRequest(f"{kind}: {operation.service} {state}")
        if kind == "scale":
            self._looks[:, service] = operation.replicas
            self._scale(service, operation.replicas, now_s)
        elif kind == "rollout":
            self.roll_out(service, now_s)
        elif kind == "shift":
            before = int(self.revision[service]) - (service in self.failing)
            self.roll_out(service, now_s)
            self.shifted[service] = before
        elif kind == "drain":
            self._drain(service, now_s)
        elif kind == "add":
            self._add(service, now_s)
        else:
            self._remove(service, now_s)

    def roll_out(self, service: int, now_s: float, *, fails: bool = False) -> None:
        """Replace all pods by pods of a new version, which never becomes ready if it fails."""
        self._new_version(service, now_s)
        self.shifted.pop(service, None)
        if fails:
            self.failing.add(service)
        else:
            self._recover(service, now_s)
        self.progress_s[service] = now_s
        self._journal.begin("rollout", service, now_s, f"revision {self.revision[service]}")

    def roll_back(self, service: int, now_s: float) -> None:
        """Return to the previous version, if the present one fails."""
        if service in self.failing:
            self._recover(service, now_s)
            self.revision[service] -= 1
            self._wants(service, now_s)

    def _recover(self, service: int, now_s: float) -> None:
        self.failing.discard(service)
        self._journal.end(now_s, service, "stuck_rollout")

    def is_stuck(self, service: int, now_s: float) -> bool:
        """True if the newest version of a service fails, and its deadline is over."""
        return service in self.failing and now_s - self.progress_s.get(service, now_s) > DEADLINE_S

    def _new_version(self, service: int, now_s: float) -> None:
        self._highest[service] += 1
        self.revision[service] = self._highest[service]
        self._wants(service, now_s)

    def _wants(self, service: int, now_s: float) -> None:
        """Note that other pods are wanted."""
        self._dirty.add(service)
        self.generation[service] += 1
        self.changed_s[service] = now_s

    def _scale(self, service: int, replicas: int, now_s: float) -> None:
        before = int(self.desired[service])
        if replicas != before:
            self.desired[service] = replicas
            self._wants(service, now_s)
            self._journal.begin("scale", service, now_s, pods=(before, replicas))

    def _add(self, service: int, now_s: float) -> None:
        self.running[service] = True
        self.generation[service] = 0
        self._new_version(service, now_s)
        self.desired[service] = max(2, math.ceil(0.5 * self._topology.replicas[service]))
        self._looks[:, service] = self.desired[service]
        self.progress_s[service] = now_s
        self._journal.begin("added", service, now_s, f"{self.desired[service]} pods")

    def _remove(self, service: int, now_s: float) -> None:
        """Remove a service; its callers stop calling it immediately."""
        self.running[service] = False
        self.desired[service] = 0
        self.shifted.pop(service, None)
        self._dirty.discard(service)
        pods = self._pods
        self._journal.end(now_s, service, *_DONE, "stuck_rollout")
        self._journal.begin("removed", service, now_s, "deleted")
        self._journal.end(now_s, service, "removed")
        pods.delete(np.flatnonzero((pods.service == service) & pods.staying()), now_s)

    def _drain(self, service: int, now_s: float) -> None:
        """Evict the pods of a node of the service, never all pods of a service (a disruption budget)."""
        pods, staying = self._pods, self._pods.staying()
        rows = np.flatnonzero((pods.service == service) & staying)
        machine = int(pods.node[rows[0]]) if rows.size else 0
        ready = np.bincount(pods.service[pods.ready(now_s)], minlength=len(self.desired))
        on_it = np.flatnonzero((pods.node == machine) & staying)
        node = names.machine(machine)
        self.notes.append(Note(now_s, "Node", machine, "NodeNotSchedulable", f"Node {node} is cordoned"))
        for owner in np.unique(pods.service[on_it]).tolist():
            rows = on_it[pods.service[on_it] == owner][: ready[owner] // 2]
            if rows.size:
                pods.delete(rows, now_s, evicted=True)
                self._dirty.add(owner)
                self._journal.begin("drain", owner, now_s, node)

    def autoscale(self, cpu_cores: Floats, ready: NDArray[np.int64], now_s: float) -> None:
        """Scale with the load, as the horizontal pod autoscaler does.

        Args:
            cpu_cores: used by all pods of each service.
            ready: ready pods of each service.
        """
        if now_s - self._looked_s < HPA_S:
            return
        self._looked_s = now_s
        topology = self._topology
        pods = np.maximum(ready, 1)
        usage = cpu_cores / (pods * topology.cpu_request)
        # Added pods share the work immediately, so the previous use is no longer comparable.
        smoothed = usage * self._newest + self._usage * (1.0 - self._newest)
        usage = np.where(pods == self._pods_seen, smoothed, usage)
        self._usage, self._pods_seen = usage, pods
        ratio = usage / HPA_TARGET
        wanted = np.where(np.abs(ratio - 1.0) > _HPA_TOLERANCE, np.ceil(pods * ratio - 1e-9), self.desired)
        wanted = np.clip(wanted, np.minimum(2, topology.replicas), topology.max_replicas)
        wanted = np.minimum(wanted, np.maximum(2 * self.desired, 4)).astype(np.int64)
        self._looks = np.roll(self._looks, 1, axis=0)
        self._looks[0] = wanted
        wanted = np.where(wanted > self.desired, wanted, np.minimum(self._looks.max(axis=0), self.desired))
        free = self.running & (topology.max_replicas > topology.replicas) & (wanted != self.desired)
        for service in np.flatnonzero(free).tolist():
            if ready[service] and service not in self.progress_s:
                text = f"New size: {wanted[service]}; reason: cpu resource utilization"
                kind, reason = "HorizontalPodAutoscaler", "SuccessfulRescale"
                self.notes.append(Note(now_s, kind, service, reason, text))
                self._scale(service, int(wanted[service]), now_s)

    def reconcile(self, now_s: float) -> None:
        """Run one round of the controllers, which moves pods towards the wanted state."""
        for service in sorted(self._dirty):
            self._reconcile(service, now_s)
        self._pods.forget(now_s)

    def _reconcile(self, service: int, now_s: float) -> None:
        pods, desired = self._pods, int(self.desired[service])
        rows = np.flatnonzero((pods.service == service) & pods.staying())
        ready = pods.ready(now_s)[rows]
        is_new = pods.revision[rows] == self.revision[service]
        wanted_new = math.ceil(SHIFT * desired) if service in self.shifted else desired
        wanted_old = desired - wanted_new
        new, old = int(is_new.sum()), int((~is_new).sum())
        if new == wanted_new and old == wanted_old and ready.all():
            self._dirty.discard(service)
            self.progress_s.pop(service, None)
            self._journal.end(now_s, service, *_DONE)
            return
        if new > wanted_new:
            # Delete pods that are not ready first, then the youngest.
            order = np.lexsort((-pods.created_s[rows], ready))
            chosen = rows[order][is_new[order]][: new - wanted_new]
            pods.delete(chosen, now_s)
        spare = int(ready.sum()) - desired
        if old > wanted_old:
            order = np.lexsort((pods.created_s[rows], ready))
            order = order[~is_new[order]]
            idle = int((~ready[order]).sum())
            pods.delete(rows[order][: min(old - wanted_old, idle + max(0, spare))], now_s)
            if spare > 0 or idle:
                self.progress_s[service] = now_s
        room = max(0, desired + max(1, math.ceil(0.25 * desired)) - len(rows))
        if new < wanted_new and room:
            count = min(wanted_new - new, room)
            # A failing version never becomes ready; the old one keeps running.
            start_s = np.inf if service in self.failing else START_S
            pods.create(service, count, int(self.revision[service]), now_s, self._rng, start_s)
            room -= count
        if old < wanted_old and room:
            count = min(wanted_old - old, room)
            pods.create(service, count, self.shifted[service], now_s, self._rng, START_S)
        if self.is_stuck(service, now_s):
            text = f"revision {self.revision[service]} has no ready pod"
            self._journal.trouble("stuck_rollout", service, now_s, text)
