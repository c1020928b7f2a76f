"""Finds the slot, or the pair of slots, of a series. Names are read once.

A service is a slot, a call path is `caller << 32 | callee`. Both are int64, so one table works for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.collect.answer import UNREADABLE
from hopline_mesh.collect.names import full_name
from hopline_mesh.collect.owners import Owners
from hopline_mesh.collect.query import Labels, Query
from hopline_mesh.roster import Roster
from hopline_mesh.scope import Scope

IdArray = NDArray[np.int64]

#: Ids of series without a service: no label with a name; a namespace that is not watched; the roster is
#: full.
NAMELESS, UNWATCHED, NO_ROOM = -1, -2, -3
_NEW = -4

#: Maximum number of cached labels and names, in addition to four times those of the last interval.
_SPARE = 50_000

#: Namespace and service, as in the labels.
_Name = tuple[str, str]

_labels = msgspec.json.Decoder(dict[str, str])


class Recalled(NamedTuple):
    """The cached ids of a response's series.

    Attributes:
        ids: int64 [n].
        new: position and labels of series without a cached id.
    """

    ids: IdArray
    new: list[tuple[int, bytes]]


class Places:
    """Maps labels, as they were sent, to services.

    Args:
        roster: gets a slot for each watched name.
        watched: namespaces.
        owners: of pods.
        most_names: maximum number of names in the roster, which never forgets one.
    """

    def __init__(self, roster: Roster, watched: Scope, owners: Owners, most_names: int) -> None:
        self._roster = roster
        self._watched = watched
        self._owners = owners
        self._most_names = most_names
        self._known: dict[tuple[Labels, Labels | None], dict[bytes, int]] = {}
        self._slots: dict[_Name, int] = {}
        #: called name -> workload that answers for it
        self._answering: dict[_Name, _Name] = {}
        #: slots with the name of a pod, because its owner is unknown; see `ownerless`
        self._ownerless: set[int] = set()

    @property
    def ownerless(self) -> IdArray:
        """Slots, int64 [n], of pods without a known owner; each has the name of its pod."""
        return np.fromiter(self._ownerless, np.int64, len(self._ownerless))

    def begin(self, num_series: int) -> None:
        """Begin an interval; clear caches that have far more labels than the last one."""
        remembered = sum(map(len, self._known.values())) + len(self._slots) + len(self._answering)
        if remembered > 4 * num_series + _SPARE:
            self._known.clear()
            self._slots.clear()
            self._answering.clear()
            self._owners.forget_missed()

    def forget_pods(self) -> None:
        """Join pods to their owners again."""
        for service, caller in list(self._known):
            if service.pod or (caller is not None and caller.pod):
                del self._known[service, caller]

    def recall(self, query: Query, labels: Sequence[bytes]) -> Recalled:
        """Return the cached ids of series.

        Args:
            labels: JSON objects, as in a response.
        """
        known = self._known.get((query.service, query.caller), {})
        ids = np.fromiter((known.get(raw, _NEW) for raw in labels), np.int64, len(labels))
        return Recalled(ids, [(at, labels[at]) for at in np.flatnonzero(ids == _NEW).tolist()])

    def find(self, query: Query, recalled: Recalled) -> IdArray:
        """Return the id of each series.

        Returns: int64 [n]; below 0 for a series without a watched service.
        """
        ids = recalled.ids.copy()
        known = self._known.setdefault((query.service, query.caller), {})
        late = []
        for position, raw in recalled.new:
            # Another response of this interval may have had the same labels.
            place = known.get(raw)
            if place is None:
                place = self._read(query, raw)
            if place is None:
                late.append((position, raw))
            else:
                known[raw] = ids[position] = place
        # Called names without an answer: by now the workloads that answer for them are known.
        for position, raw in late:
            place = self._read(query, raw, late=True)
            assert place is not None
            ids[position] = place
        return ids

    def _read(self, query: Query, raw: bytes, *, late: bool = False) -> int | None:
        """Return the id; None if it may change after other series are read (never if `late`)."""
        try:
            labels = _labels.decode(raw)
        except UNREADABLE:
            return NAMELESS
        callee, settled = self._name(query.service, labels)
        caller = None
        if query.caller is not None:
            caller, caller_settled = self._name(query.caller, labels)
            settled = settled and caller_settled
        if not settled and not late:
            return None
        if callee is None or (query.caller is not None and caller is None):
            return NAMELESS
        if caller is None:
            slot = self._slot(callee)
            if query.service.pod and slot >= 0:
                pod = _first(query.service.service, labels)
                change = (
                    self._ownerless.discard if self._owners.knows(callee[0], pod) else self._ownerless.add
                )
                change(slot)
            return slot
        # A name gets a slot only if both ends are watched.
        if not (caller[0] in self._watched and callee[0] in self._watched):
            return UNWATCHED
        source, target = self._slot(caller), self._slot(callee)
        return source << 32 | target if source >= 0 and target >= 0 else NO_ROOM

    def _name(self, where: Labels, labels: dict[str, str]) -> tuple[_Name | None, bool]:
        """Return the name in the labels, and whether it is final."""
        service = _first(where.service, labels)
        namespace = _first(where.namespace, labels)
        if where.pod and service:
            service = self._owners.find(namespace, service)
        name = (namespace, service) if service else None
        if where.otherwise is None:
            return name, True
        called, _ = self._name(where.otherwise, labels)
        if name is None:
            return (None, True) if called is None else (self._answering.get(called, called), False)
        if called is not None and self._answering.setdefault(called, name) != name:
            # Several workloads answer for the name: assign calls without an answer to the name itself.
            self._answering[called] = called
        return name, True

    def _slot(self, key: _Name) -> int:
        slot = self._slots.get(key)
        if slot is None:
            namespace, service = key
            name = full_name(namespace, service)
            if namespace not in self._watched:
                slot = UNWATCHED
            elif name in self._roster or len(self._roster) < self._most_names:
                slot = self._roster.slot(name)
            else:
                return NO_ROOM
            self._slots[key] = slot
        return slot


def _first(names: tuple[str, ...], labels: dict[str, str]) -> str:
    for name in names:
        value = labels.get(name, "")
        if value and value != "unknown":
            return value
    return ""
