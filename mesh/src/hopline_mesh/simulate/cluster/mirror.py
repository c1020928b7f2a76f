"""Updates the API's objects from the simulated mesh: writes the differences after each step."""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np

from hopline_mesh.simulate import names
from hopline_mesh.simulate.cluster import objects
from hopline_mesh.simulate.cluster.log import Log
from hopline_mesh.simulate.cluster.objects import Clock
from hopline_mesh.simulate.fleet import DEADLINE_S
from hopline_mesh.simulate.world import World

#: Maximum number of events; Kubernetes deletes them after an hour.
_EVENTS = 500


class Mirror:
    """Objects of a world in a log; call `update` after each of its steps."""

    def __init__(self, world: World, log: Log, clock: Clock) -> None:
        self._world, self._log, self._clock = world, log, clock
        self._pods: dict[int, tuple[tuple[Any, ...], str, str]] = {}
        self._services: dict[int, tuple[Any, ...]] = {}
        self._wishes: dict[int, tuple[tuple[int, ...], int, float]] = {}
        self._versions: dict[int, set[int]] = {}
        self._complete: dict[int, int] = {}
        self._groups = world.topology.groups
        self._numbers = itertools.count()
        self._events: deque[tuple[str, str]] = deque()

    def update(self) -> None:
        """Update the log from the world."""
        changed = self._update_pods()
        self._update_services(changed)
        notes = self._world.fleet.notes
        while notes:
            body = objects.event(self._world, notes.popleft(), next(self._numbers), self._clock)
            self._log.put("events", body)
            self._events.append((body["metadata"]["namespace"], body["metadata"]["name"]))
        while len(self._events) > _EVENTS:
            self._log.drop("events", *self._events.popleft())

    def _update_pods(self) -> set[int]:
        """Write changed pods; returns the services of which any pod changed."""
        world, pods, touched, seen = self._world, self._world.pods, set(), set()
        for row, (serial, service) in enumerate(
            zip(pods.serial.tolist(), pods.service.tolist(), strict=True)
        ):
            seen.add(serial)
            state = objects.pod_state(world, row)
            known = self._pods.get(serial)
            if known is None or known[0] != state:
                body = objects.pod(world, row, self._clock)
                meta = body["metadata"]
                self._pods[serial] = (state, meta["namespace"], meta["name"])
                self._log.put("pods", body)
                touched.add(service)
        for serial in self._pods.keys() - seen:
            _, space, name = self._pods.pop(serial)
            self._log.drop("pods", space, name)
            touched.add(next((s for s, known in self._services.items() if serial in known[-1]), -1))
        return touched

    def _update_services(self, touched: set[int]) -> None:
        world, fleet, log = self._world, self._world.fleet, self._log
        pods = world.pods
        for service, full in enumerate(world.topology.names):
            space, name = names.split(full)
            if not fleet.running[service]:
                if self._services.pop(service, None) is not None:
                    for plural in ("horizontalpodautoscalers", "deployments"):
                        log.drop(plural, space, name)
                    self._drop_service(service)
                    self._drop_versions(service, set())
                    self._wishes.pop(service, None)
                continue
            wish = (int(fleet.revision[service]), int(fleet.desired[service]))
            known = self._wishes.get(service)
            if known is None or known[0] != wish:
                self._wishes[service] = (wish, 1 if known is None else known[1] + 1, world.now_s)
            stuck = service in fleet.failing and world.now_s - self._wishes[service][2] > DEADLINE_S
            state = (wish, stuck, service in fleet.shifted)
            if service not in touched and self._services.get(service, ((), None))[0] == state:
                continue
            rows = np.flatnonzero(pods.service == service)
            self._services[service] = (state, frozenset(pods.serial[rows].tolist()))
            generation, since_s = self._wishes[service][1:]
            if objects.rolled_out(world, service):
                self._complete[service] = wish[0]
            complete = self._complete.get(service) == wish[0]
            log.put(
                "deployments",
                objects.deployment(world, service, generation, since_s, complete, self._clock),
            )
            versions = set(pods.revision[rows].tolist()) | {wish[0]}
            for revision in sorted(versions):
                log.put("replicasets", objects.replica_set(world, service, revision, self._clock))
            self._drop_versions(service, versions)
            log.put("services", objects.service(world, service, self._clock))
            log.put("endpointslices", objects.endpoint_slice(world, service, self._clock))
            if world.topology.max_replicas[service] > world.topology.replicas[service]:
                log.put("horizontalpodautoscalers", objects.autoscaler(world, service, self._clock))

    def _drop_service(self, service: int) -> None:
        """Drop the Service of a workload, unless others are behind it."""
        world, log = self._world, self._log
        behind = np.flatnonzero(self._groups == self._groups[service])
        if world.fleet.running[behind].any():
            log.put("endpointslices", objects.endpoint_slice(world, service, self._clock))
            return
        space, name = names.split(world.topology.services[service])
        log.drop("endpointslices", space, f"{name}-abcde")
        log.drop("services", space, name)

    def _drop_versions(self, service: int, keep: set[int]) -> None:
        """Drop replica sets of versions without pods."""
        full = self._world.topology.names[service]
        for revision in self._versions.get(service, set()) - keep:
            self._log.drop("replicasets", names.split(full)[0], names.replica_set(full, revision))
        self._versions[service] = keep
