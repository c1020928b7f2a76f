"""Finds the slot, or the pair of slots, that a series is about. Names are read once.

A service is a slot, a call path `caller << 32 | callee`: both are int64, so that one table serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.collect.answer import UNREADABLE
from hopline_mesh.collect.names import full_name
from hopline_mesh.collect.options import NamespaceFilter
from hopline_mesh.collect.owners import Owners
from hopline_mesh.collect.query import Labels, Query
from hopline_mesh.roster import Roster

IdArray = NDArray[np.int64]

#: Series of no service: its labels do not say which; it is of a namespace that is not watched; the roster
#: has no room for another name.
NAMELESS, UNWATCHED, NO_ROOM = -1, -2, -3
_NEW = -4

#: Labels and names that are remembered beside four times what the last interval had.
_SPARE = 50_000

#: Namespace and service, as they are in labels.
_Who = tuple[str, str]

_labels = msgspec.json.Decoder(dict[str, str])


@dataclass(frozen=True, slots=True, eq=False)
class Recalled:
    """What is known of an answer's series at once.

    Attributes:
        ids: int64 [n].
        new: position and labels of those that were not seen before.
    """

    ids: IdArray
    new: list[tuple[int, bytes]]


class Places:
    """From labels, as they were sent, to services.

    Args:
        roster: gets a slot for each name that is watched.
        watched: which namespaces are.
        owners: of pods.
        most_names: that the roster may hold; it never forgets one.
    """

    def __init__(self, roster: Roster, watched: NamespaceFilter, owners: Owners, most_names: int) -> None:
        self._roster = roster
        self._watched = watched
        self._owners = owners
        self._most_names = most_names
        self._known: dict[tuple[Labels, Labels | None], dict[bytes, int]] = {}
        self._slots: dict[_Who, int] = {}
        #: what was called -> what answers there
        self._answering: dict[_Who, _Who] = {}

    def begin(self, num_series: int) -> None:
        """Begin an interval; forget labels where far more are known than the last one had."""
        remembered = sum(map(len, self._known.values())) + len(self._slots) + len(self._answering)
        if remembered > 4 * num_series + _SPARE:
            self._known.clear()
            self._slots.clear()
            self._answering.clear()
            self._owners.forget_missed()

    def forget_pods(self) -> None:
        """Join pods to their owners anew."""
        for service, caller in list(self._known):
            if service.pod or (caller is not None and caller.pod):
                del self._known[service, caller]

    def recall(self, query: Query, labels: Sequence[bytes]) -> Recalled:
        """The ids of series that were seen before.

        Args:
            labels: JSON objects, as in an answer.
        """
        known = self._known.get((query.service, query.caller), {})
        ids = np.fromiter((known.get(raw, _NEW) for raw in labels), np.int64, len(labels))
        return Recalled(ids, [(at, labels[at]) for at in np.flatnonzero(ids == _NEW).tolist()])

    def find(self, query: Query, recalled: Recalled) -> IdArray:
        """The id that each series is about.

        Returns: int64 [n]; below 0 for a series of no service that is watched.
        """
        ids = recalled.ids.copy()
        known = self._known.setdefault((query.service, query.caller), {})
        late = []
        for position, raw in recalled.new:
            # Another answer of this interval may have had the same labels.
            place = known.get(raw)
            if place is None:
                place = self._read(query, raw)
            if place is None:
                late.append((position, raw))
            else:
                known[raw] = ids[position] = place
        # What was called and did not answer: by now it is known what answers there, where anything does.
        for position, raw in late:
            place = self._read(query, raw, late=True)
            assert place is not None
            ids[position] = place
        return ids

    def _read(self, query: Query, raw: bytes, *, late: bool = False) -> int | None:
        """The id; None where it may be another one when all is read, unless it is late already."""
        try:
            labels = _labels.decode(raw)
        except UNREADABLE:
            return NAMELESS
        callee, settled = self._who(query.service, labels)
        caller = None
        if query.caller is not None:
            caller, caller_settled = self._who(query.caller, labels)
            settled = settled and caller_settled
        if not settled and not late:
            return None
        if callee is None or (query.caller is not None and caller is None):
            return NAMELESS
        if caller is None:
            return self._slot(callee)
        # A name gets a slot only where both ends are watched.
        if not (self._watched(caller[0]) and self._watched(callee[0])):
            return UNWATCHED
        source, target = self._slot(caller), self._slot(callee)
        return source << 32 | target if source >= 0 and target >= 0 else NO_ROOM

    def _who(self, where: Labels, labels: dict[str, str]) -> tuple[_Who | None, bool]:
        """Whom the labels name, and whether they always will."""
        service = _first(where.service, labels)
        namespace = _first(where.namespace, labels)
        if where.pod and service:
            service = self._owners.find(namespace, service)
        who = (namespace, service) if service else None
        if where.otherwise is None:
            return who, True
        called, _ = self._who(where.otherwise, labels)
        if who is None:
            return (None, True) if called is None else (self._answering.get(called, called), False)
        if called is not None and self._answering.setdefault(called, who) != who:
            # Several workloads answer there: what did not answer is the name that was called.
            self._answering[called] = called
        return who, True

    def _slot(self, who: _Who) -> int:
        slot = self._slots.get(who)
        if slot is None:
            namespace, service = who
            name = full_name(namespace, service)
            if not self._watched(namespace):
                slot = UNWATCHED
            elif name in self._roster or len(self._roster) < self._most_names:
                slot = self._roster.slot(name)
            else:
                return NO_ROOM
            self._slots[who] = slot
        return slot


def _first(names: tuple[str, ...], labels: dict[str, str]) -> str:
    for name in names:
        value = labels.get(name, "")
        if value and value != "unknown":
            return value
    return ""
