"""Updates the API's objects from the simulated mesh: writes the differences after each step."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from typing import Any

from hopline_mesh.simulate.cluster.log import Key, Log
from hopline_mesh.simulate.cluster.objects import Clock, Objects
from hopline_mesh.simulate.world import World

#: Maximum number of events; Kubernetes deletes them after an hour.
_EVENTS = 500


class Mirror:
    """Objects of a world in a log; call `update` after each of its steps."""

    def __init__(self, world: World, log: Log, clock: Clock) -> None:
        self._world, self._log, self._objects = world, log, Objects(world, clock)
        self._states: dict[int, list[tuple[Any, ...]]] = {}
        self._written: dict[int, set[Key]] = {}
        self._numbers = itertools.count()
        self._events: deque[Key] = deque()

    def update(self) -> None:
        """Update the log from the world."""
        states = self._group_states()
        for group, state in states.items():
            if self._states.get(group) != state:
                self._write(group)
        self._states = states
        notes = self._world.fleet.notes
        while notes:
            event = self._objects.event(notes.popleft(), next(self._numbers))
            self._events.append(self._log.put(*event))
        while len(self._events) > _EVENTS:
            self._log.drop(self._events.popleft())

    def _write(self, group: int) -> None:
        """Write the objects of the workloads behind one Service, and drop those that exist no more."""
        keys = {self._log.put(*each) for each in self._objects.of_group(group)}
        for key in sorted(self._written.get(group, set()) - keys):
            self._log.drop(key)
        self._written[group] = keys

    def _group_states(self) -> dict[int, list[tuple[Any, ...]]]:
        """Return the values that define the objects of each group: while they are equal, so are these."""
        fleet, pods, now_s = self._world.fleet, self._world.pods, self._world.now_s
        groups = self._world.topology.groups
        found: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
        services = zip(groups.tolist(), fleet.running.tolist(), fleet.generation.tolist(), strict=True)
        for service, (group, *state) in enumerate(services):
            found[group].append((*state, service in fleet.progress_s, fleet.is_stuck(service, now_s)))
        columns = (
            groups[pods.service], pods.serial, pods.ready(now_s), pods.down_s > now_s,
            pods.restarts, pods.deleted_s,
        )  # fmt: skip
        for group, *state in zip(*(column.tolist() for column in columns), strict=True):
            found[group].append(tuple(state))
        return found
