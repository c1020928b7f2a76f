"""Converts series out of bounds to clues, and computes the share that more load explains.

Reads the tables of the present interval; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.snapshot import Snapshot
from hopline_mesh.tagae import kernels
from hopline_mesh.tagae.clues import Clue, Key
from hopline_mesh.tagae.pairs import Pairs
from hopline_mesh.tagae.roles import role_of
from hopline_mesh.tagae.series import SeriesTable

#: Table (0 services, 1 call paths), slot and column of a series.
Place = tuple[int, int, int]

#: Score from which a series of a service in trouble, or of its neighbour, is a clue; and how many of
#: a table are looked at.
_SUPPORTS, _MOST_SUPPORTS = 0.7, 2048
#: Call paths that are followed from the services in trouble.
_MOST_CALLS = 10_000
#: How much more than its callers' a load may rise, and the rise of the load (as a logarithm) that excuses
#: twice the usual deviation; in addition to noise.
_AMPLIFIED, _DOUBLING, _NOISE = 1.3, 0.7, 0.1
#: Rise of the calls per request, as a logarithm, from which a caller repeats its calls: once each makes
#: twice as many, less what noise takes; other requests than usual need some more calls, too.
_REPEATED = 0.64


class Witness:
    """Reads clues from the tables of services and call paths.

    Args:
        nodes, edges: the tables.
        pairs: call paths of the rows of `edges`.
    """

    def __init__(self, nodes: SeriesTable, edges: SeriesTable, pairs: Pairs) -> None:
        self._nodes = nodes
        self._tables = (nodes, edges)
        self._pairs = pairs
        self._roles = [[role_of(column) for column in table.columns] for table in self._tables]

    def firm(self, snapshot: Snapshot, found: Sequence[Place]) -> list[Clue]:
        """Return clues that lasted, without those that more load explains."""
        clues = [self._clue(*where, is_firm=True) for where in found]
        return [clue for clue in clues if clue.score * self._share(clue, snapshot) >= 1.0]

    def supporting(self, snapshot: Snapshot, found: Sequence[Place], also: Sequence[int]) -> list[Clue]:
        """Clues of this interval alone at the services in question and their neighbours.

        Args:
            found: what lasted, and is no clue again; also: slots of services with other clues.
        """
        firm = set(found)
        near = self._services_near(snapshot, found)
        near[list(also)] = True
        clues = []
        for number, table in enumerate(self._tables):
            out = np.argwhere(table.score[: table.size] >= _SUPPORTS)
            for slot, column in out[:_MOST_SUPPORTS]:
                where = (number, int(slot), int(column))
                if where not in firm and self._touches(where, near):
                    clues.append(self._clue(*where, is_firm=False))
        return clues

    def _surge(self, slot: int) -> float:
        """Logarithm of how many times more a service has to do than expected; 0 where it has not."""
        table = self._nodes
        if table.load < 0 or slot < 0:
            return 0.0
        away = kernels.nearer(float(table.slow[slot, table.load]), float(table.near[slot, table.load]))
        return max(0.0, float(away) * float(table.spread[slot, table.load])) if away == away else 0.0

    def shares(self, snapshot: Snapshot, found: Sequence[Place]) -> list[float]:
        """How much of each deviation more load leaves to be explained, 0 to 1."""
        return [self._share(self._clue(*where, is_firm=True), snapshot) for where in found]

    def _share(self, clue: Clue, snapshot: Snapshot) -> float:
        """What a clue's score is multiplied by since there is more load.

        More load comes from callers who have more, or from outside; a caller that sends more than it gets
        more is not explained. What a service uses, and how long it takes, may rise with its load. Calls
        per request do not; where there are only fewer requests, they are no clue.
        """
        if not clue.is_up or clue.role in ("errors", "trouble"):
            return 1.0
        rise = np.log(max(clue.seen or 0.0, 1e-9) / max(clue.expected or 0.0, 1e-9))
        if clue.role == "calls":
            return float(rise > _REPEATED and self._sends_more(clue.caller, clue.service, float(rise)))
        if clue.role == "load":
            if clue.caller >= 0:
                return float(rise > _AMPLIFIED * self._surge(clue.caller) + _NOISE)
            return float(rise > 1.15 * self._usual_surge(clue.service, snapshot) + _NOISE)
        surge = self._usual_surge(clue.service, snapshot)
        if clue.role in ("resource", "traffic") and rise <= _AMPLIFIED * surge:
            return 0.0
        return 1.0 / (1.0 + surge / _DOUBLING)

    def _sends_more(self, caller: int, callee: int, rise: float) -> bool:
        """Whether most of a rise of the calls per request, a logarithm, is more calls than lately.

        If not, it is fewer requests to their caller.
        """
        table = self._tables[1]
        found = np.flatnonzero((self._pairs.src == caller) & (self._pairs.dst == callee))
        if table.load < 0 or not len(found):
            return False
        where = int(found[0]), table.load
        return float(table.near[where]) * float(table.spread[where]) > 0.5 * rise

    def _usual_surge(self, slot: int, snapshot: Snapshot) -> float:
        """How much of `_surge` callers, or those outside, account for."""
        surge = self._surge(slot)
        callers = snapshot.edge_src[snapshot.edge_dst == slot]
        if surge == 0.0 or not len(callers):
            return surge
        return min(surge, _AMPLIFIED * max(self._surge(int(caller)) for caller in callers) + _NOISE)

    def _services_near(self, snapshot: Snapshot, found: Sequence[Place]) -> NDArray[np.bool_]:
        """bool [slots]: services of what was found, and those that they call or are called by."""
        there = np.zeros(max(1, self._nodes.size), bool)
        for number, slot, _ in found:
            if number == 0:
                there[slot] = True
            else:
                there[[self._pairs.src[slot], self._pairs.dst[slot]]] = True
        near = there.copy()
        near[snapshot.edge_src[there[snapshot.edge_dst]]] = True
        near[snapshot.edge_dst[there[snapshot.edge_src]]] = True
        return near

    def _touches(self, where: Place, near: NDArray[np.bool_]) -> bool:
        number, slot, _ = where
        if number == 0:
            return bool(near[slot])
        return bool(near[self._pairs.src[slot]] and near[self._pairs.dst[slot]])

    def calls(self, snapshot: Snapshot, services: set[int]) -> list[tuple[int, int]]:
        """Caller and callee of the call paths at these services."""
        if not services:
            return []
        there = np.zeros(self._nodes.size, bool)
        there[list(services)] = True
        touched = np.flatnonzero(there[snapshot.edge_src] | there[snapshot.edge_dst])[:_MOST_CALLS]
        return [(int(snapshot.edge_src[k]), int(snapshot.edge_dst[k])) for k in touched]

    def _clue(self, number: int, slot: int, column: int, *, is_firm: bool) -> Clue:
        table = self._tables[number]
        dev = float(table.dev[slot, column])
        seen, expected = self._values(table, slot, column, dev)
        service, caller = (
            (slot, -1) if number == 0 else (int(self._pairs.dst[slot]), int(self._pairs.src[slot]))
        )
        return Clue(
            service, caller, table.columns[column], self._roles[number][column],
            max(float(table.score[slot, column]), 1.0 if is_firm else 0.0),
            dev > 0, is_firm, expected, seen,
        )  # fmt: skip

    @staticmethod
    def _values(table: SeriesTable, slot: int, column: int, dev: float) -> tuple[float, float]:
        """Seen and expected, in the column's unit."""
        kind, offset = int(table.kinds[column]), float(table.offset[slot, column])
        width = float(table.spread[slot, column])
        counted = float(table.polarity[column, 0 if dev > 0 else 1] * table.quiet[slot, column])
        counted *= float(table.sharp[slot, column])
        dev = dev / counted if counted else 0.0
        if abs(dev) > 0.9 * kernels.MAX_DEVIATION:  # it ends there
            dev = kernels.nearer(float(table.slow[slot, column]), float(table.near[slot, column]))
        u = float(table.level[slot, column]) + width * float(table.slow[slot, column])

        def back(v: float) -> float:
            if kind == kernels.AMOUNT:
                return max(float(np.exp(min(v, 80.0))) - offset, 0.0)
            return v if kind == kernels.SHARE else float(np.sinh(np.clip(v, -80, 80)))

        return back(u), back(u - width * dev)

    def score(self, key: Key) -> float | None:
        """Score of something in this interval; None where it was not measured."""
        caller, service, feature = key
        if feature not in self._tables[caller >= 0].columns:
            return 0.0  # reported before, but no longer
        number = 0 if caller < 0 else 1
        table = self._tables[number]
        column = table.columns.index(feature)
        if number == 0:
            slot = service
        else:
            found = np.flatnonzero((self._pairs.src == caller) & (self._pairs.dst == service))
            if not len(found):
                return None
            slot = int(found[0])
        if slot >= table.size or np.isnan(table.slow[slot, column]):
            return None
        return float(table.score[slot, column])
