"""The plain, slow form of what an incident needs: one clue, one path at a time.

Oracle of `witness` and `clues.together`, which do the same with arrays. That of `blame` is `blame_rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect import kernels
from hopline_mesh.detect.clues import Clue, Key
from hopline_mesh.detect.paths import Pairs
from hopline_mesh.detect.series import SeriesTable
from hopline_mesh.detect.witness import (
    _AMPLIFIED,
    _DOUBLING,
    _MOST_CALLS,
    _MOST_FIRM,
    _MOST_SUPPORTS,
    _NOISE,
    _REPEATED,
    _SUPPORTS,
    Place,
)
from hopline_mesh.roles import role_of
from hopline_mesh.snapshot import Snapshot


def together(clues: Iterable[Clue], calls: Iterable[tuple[int, int]]) -> list[list[Clue]]:
    """Return clues in groups that call paths connect.

    Args:
        calls: caller and callee of call paths at the services of the clues. Services are also connected
            through one service in between.
    """
    parent: dict[int, int] = {}

    def root(slot: int) -> int:
        parent.setdefault(slot, slot)
        while parent[slot] != slot:
            parent[slot] = parent[parent[slot]]
            slot = parent[slot]
        return slot

    kept = list(clues)
    for clue in kept:
        root(clue.service)
        if clue.caller >= 0:
            parent[root(clue.caller)] = root(clue.service)
    with_clues = set(parent)
    above: dict[int, int] = {}
    for caller, callee in calls:
        if caller in with_clues and callee in with_clues:
            parent[root(caller)] = root(callee)
        elif caller in with_clues:
            above[callee] = caller
    for caller, callee in calls:
        if callee in with_clues and caller in above:
            parent[root(callee)] = root(above[caller])
    groups: dict[int, list[Clue]] = {}
    for clue in kept:
        groups.setdefault(root(clue.service), []).append(clue)
    return list(groups.values())


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
        self._columns = [{name: at for at, name in enumerate(table.columns)} for table in self._tables]
        self._surges: tuple[Snapshot | None, NDArray[np.float64], NDArray[np.float64]] = (
            None,
            np.zeros(0),
            np.zeros(0),
        )

    def firm(self, snapshot: Snapshot, found: Sequence[Place]) -> list[Clue]:
        """Return the strongest clues that lasted, without those that more load explains."""
        clues = [self._clue(*where, is_firm=True) for where in self._strongest(found)]
        return [clue for clue in clues if clue.score * self._share(clue, snapshot) >= 1.0]

    def _strongest(self, found: Sequence[Place]) -> Sequence[Place]:
        if len(found) <= _MOST_FIRM:
            return found
        scores = [float(self._tables[number].score[slot, column]) for number, slot, column in found]
        order = np.argsort(-np.array(scores), kind="stable")[:_MOST_FIRM]
        return [found[place] for place in sorted(order.tolist())]

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
            scores = table.score[: table.size]
            slots, columns = np.nonzero(scores >= _SUPPORTS)
            if number == 0:
                is_near = near[slots]
            else:
                is_near = near[self._pairs.src[slots]] & near[self._pairs.dst[slots]]
            slots, columns = slots[is_near], columns[is_near]
            if len(slots) > _MOST_SUPPORTS + len(firm):
                order = np.argsort(-scores[slots, columns], kind="stable")[: _MOST_SUPPORTS + len(firm)]
                slots, columns = slots[order], columns[order]
            places = [(number, *place) for place in zip(slots.tolist(), columns.tolist(), strict=True)]
            others = [place for place in places if place not in firm][:_MOST_SUPPORTS]
            clues += [self._clue(*place, is_firm=False) for place in others]
        return clues

    def _all_surges(self, snapshot: Snapshot) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return, by slot, how much more each service has to do than expected, and how much of it is usual.

        Both are logarithms, 0 where there is no more. Usual is what callers, or those outside, account for.
        """
        if self._surges[0] is snapshot:
            return self._surges[1:]
        table, size = self._nodes, max(1, self._nodes.size)
        surge = np.zeros(size)
        if table.load >= 0:
            slow, near = (
                values[:size, table.load].astype(np.float64) for values in (table.slow, table.near)
            )
            least = np.where(np.abs(slow) < np.abs(near), slow, near)
            away = np.where(slow * near > 0, least, 0.0)  # as `kernels.nearer`; 0 also if not measured
            surge[: len(away)] = np.maximum(away * table.spread[:size, table.load], 0.0)
        above = np.full(size, -1.0)  # the largest surge of a caller; -1 without callers
        np.maximum.at(above, snapshot.edge_dst, surge[snapshot.edge_src])
        usual = np.where(above < 0, surge, np.minimum(surge, _AMPLIFIED * above + _NOISE))
        self._surges = snapshot, surge, usual
        return surge, usual

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
        all_surges, usual = self._all_surges(snapshot)
        if clue.role == "load":
            if clue.caller >= 0:
                return float(rise > _AMPLIFIED * float(all_surges[clue.caller]) + _NOISE)
            return float(rise > 1.15 * float(usual[clue.service]) + _NOISE)
        surge = float(usual[clue.service])
        if clue.role in ("resource", "traffic") and rise <= _AMPLIFIED * surge:
            return 0.0
        return 1.0 / (1.0 + surge / _DOUBLING)

    def _sends_more(self, caller: int, callee: int, rise: float) -> bool:
        """Whether most of a rise of the calls per request, a logarithm, is more calls than lately.

        If not, it is fewer requests to their caller.
        """
        table = self._tables[1]
        slot = self._find(caller, callee)
        if table.load < 0 or slot < 0:
            return False
        where = slot, table.load
        return float(table.near[where]) * float(table.spread[where]) > 0.5 * rise

    def _services_near(self, snapshot: Snapshot, found: Sequence[Place]) -> NDArray[np.bool_]:
        """bool [slots]: services of what was found, and those that they call or are called by."""
        there = np.zeros(max(1, self._nodes.size), bool)
        if found:
            numbers, slots, _ = np.array(found, np.int64).T
            there[slots[numbers == 0]] = True
            paths = slots[numbers == 1]
            there[self._pairs.src[paths]] = True
            there[self._pairs.dst[paths]] = True
        near = there.copy()
        near[snapshot.edge_src[there[snapshot.edge_dst]]] = True
        near[snapshot.edge_dst[there[snapshot.edge_src]]] = True
        return near

    def calls(self, snapshot: Snapshot, services: set[int]) -> list[tuple[int, int]]:
        """Caller and callee of the call paths at these services."""
        if not services:
            return []
        there = np.zeros(self._nodes.size, bool)
        there[list(services)] = True
        touched = np.flatnonzero(there[snapshot.edge_src] | there[snapshot.edge_dst])[:_MOST_CALLS]
        ends = snapshot.edge_src[touched].tolist(), snapshot.edge_dst[touched].tolist()
        return list(zip(*ends, strict=True))

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
        width = float(table.wide[slot, column])
        counted = float(table.polarity[column, 0 if dev > 0 else 1] * table.quiet[slot, column])
        counted *= float(table.sharp[slot, column])
        dev = dev / counted if counted else 0.0
        if abs(dev) > 0.9 * kernels.MAX_DEVIATION:  # it ends there
            dev = kernels.nearer(float(table.slow[slot, column]), float(table.near[slot, column]))
        u = float(table.now[slot, column])

        def back(v: float) -> float:
            if kind == kernels.AMOUNT:
                return max(float(np.exp(min(v, 80.0))) - offset, 0.0)
            return v if kind == kernels.SHARE else float(np.sinh(np.clip(v, -80, 80)))

        return back(u), back(u - width * dev)

    def score(self, key: Key) -> float | None:
        """Score of something in this interval; None where it was not measured."""
        caller, service, feature = key
        number = 0 if caller < 0 else 1
        column = self._columns[number].get(feature)
        if column is None:
            return 0.0  # reported before, but no longer
        table = self._tables[number]
        slot = service if number == 0 else self._find(caller, service)
        if slot < 0:
            return None
        if slot >= table.size or np.isnan(table.slow[slot, column]):
            return None
        return float(table.score[slot, column])

    def _find(self, src: int, dst: int) -> int:
        fits = np.flatnonzero((self._pairs.src == src) & (self._pairs.dst == dst))
        return int(fits[0]) if len(fits) else -1
