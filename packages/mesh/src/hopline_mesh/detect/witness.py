"""Converts series out of bounds to clues, and computes the share that more load explains.

Reads the tables of the present interval; changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect import kernels
from hopline_mesh.detect.clues import Clue, Key
from hopline_mesh.detect.paths import Pairs, Paths
from hopline_mesh.detect.series import SeriesTable
from hopline_mesh.snapshot import Snapshot

#: Table (0 services, 1 call paths), slot and column of a series; many of them are int64 [n, 3].
Place = tuple[int, int, int]
Places = NDArray[np.int64]
_Surges = tuple[NDArray[np.float64], NDArray[np.float64]]

#: Maximum number of clues of an interval: the strongest. More would only make the step slow.
_MOST_FIRM = 1024
#: Score from which a series of a service in trouble, or of its neighbour, is a clue; and how many of
#: a table are looked at, the strongest.
_SUPPORTS, _MOST_SUPPORTS = 0.7, 256
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

    def firm(self, snapshot: Snapshot, found: Places) -> list[Clue]:
        """Return the strongest clues that lasted, without those that more load explains."""
        found = self._strongest(found)
        surges = self._surges(snapshot)
        clues: list[Clue] = []
        for _, seen in self._read(found):
            score = np.maximum(seen.score, 1.0)
            is_left = score * self._shares(seen, surges) >= 1.0
            clues += self._clues(seen, score, is_left, is_firm=True)
        return clues

    def _strongest(self, found: Places) -> Places:
        if len(found) <= _MOST_FIRM:
            return found
        scores = np.zeros(len(found))
        for number, table in enumerate(self._tables):
            mine = found[:, 0] == number
            scores[mine] = table.score[found[mine, 1], found[mine, 2]]
        return found[np.sort(np.argsort(-scores, kind="stable")[:_MOST_FIRM])]

    def supporting(self, snapshot: Snapshot, found: Places, also: Sequence[int]) -> list[Clue]:
        """Clues of this interval alone at the services in question and their neighbours.

        Args:
            found: what lasted, and is no clue again; also: slots of services with other clues.
        """
        near = self._services_near(snapshot, found)
        near[list(also)] = True
        most = _MOST_SUPPORTS + len(found)
        clues: list[Clue] = []
        for number, table in enumerate(self._tables):
            scores = table.score[: table.size]
            slots, columns = np.nonzero(scores >= _SUPPORTS)
            if number == 0:
                is_near = near[slots]
            else:
                is_near = near[self._pairs.src[slots]] & near[self._pairs.dst[slots]]
            slots, columns = slots[is_near], columns[is_near]
            if len(slots) > most:
                order = np.argsort(-scores[slots, columns], kind="stable")[:most]
                slots, columns = slots[order], columns[order]
            is_firm = np.zeros(scores.shape, bool)
            mine = found[found[:, 0] == number]
            is_firm[mine[:, 1], mine[:, 2]] = True
            others = np.flatnonzero(~is_firm[slots, columns])[:_MOST_SUPPORTS]
            seen = self._see(number, slots[others], columns[others])
            clues += self._clues(seen, seen.score, np.ones(len(others), bool), is_firm=False)
        return clues

    def _surges(self, snapshot: Snapshot) -> _Surges:
        """Return, by slot, how much more each service has to do than expected, and how much of it is usual.

        Both are logarithms, 0 where there is no more. Usual is what callers, or those outside, account for.
        """
        table, size = self._nodes, max(1, self._nodes.size)
        surge = np.zeros(size)
        if table.load >= 0:
            slow, near = table.slow[:size, table.load], table.near[:size, table.load]
            away = _nearer(slow.astype(np.float64), near.astype(np.float64))
            surge[: len(away)] = np.maximum(away * table.spread[:size, table.load], 0.0)
        above = np.full(size, -1.0)  # the largest surge of a caller; -1 without callers
        np.maximum.at(above, snapshot.edge_dst, surge[snapshot.edge_src])
        usual = np.where(above < 0, surge, np.minimum(surge, _AMPLIFIED * above + _NOISE))
        return surge, usual

    def shares(self, snapshot: Snapshot, found: Places) -> NDArray[np.float64]:
        """Share of each deviation that more load does not explain, 0 to 1."""
        surges, shares = self._surges(snapshot), np.ones(len(found))
        for is_here, seen in self._read(found):
            shares[is_here] = self._shares(seen, surges)
        return shares

    def _shares(self, seen: _Seen, surges: _Surges) -> NDArray[np.float64]:
        """Factor of the scores while there is more load, float64 [n].

        More load comes from callers who have more, or from outside; a caller that sends more than it gets
        more is not explained. What a service uses, and how long it takes, may rise with its load. Calls
        per request do not; where there are only fewer requests, they are no clue.
        """
        rise = np.log(np.maximum(seen.seen, 1e-9) / np.maximum(seen.expected, 1e-9))
        all_surges, usual = surges
        surge = usual[seen.service]
        shares = 1.0 / (1.0 + surge / _DOUBLING)
        is_load, is_call, is_unexplained, follows = (
            np.array([role in some for role in self._tables[seen.number].roles], bool)[seen.columns]
            for some in (("load",), ("calls",), ("errors",), ("resource", "traffic"))
        )
        shares[follows & (rise <= _AMPLIFIED * surge)] = 0.0
        more = np.where(
            seen.caller >= 0, _AMPLIFIED * all_surges[seen.caller] + _NOISE, 1.15 * surge + _NOISE
        )
        shares = np.where(is_load, rise > more, shares)
        shares = np.where(is_call, (rise > _REPEATED) & self._sends_more(seen, rise), shares)
        return np.where(seen.is_up & ~is_unexplained, shares, 1.0)

    def _sends_more(self, seen: _Seen, rise: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Mask: most of a rise of the calls per request, a logarithm, is more calls than lately.

        If not, it is fewer requests to their caller.
        """
        table = self._tables[1]
        if table.load < 0 or seen.number == 0:
            return np.zeros(len(rise), bool)
        near = table.near[seen.slots, table.load].astype(np.float64)
        return np.asarray(near * table.spread[seen.slots, table.load] > 0.5 * rise, bool)

    def _services_near(self, snapshot: Snapshot, found: Places) -> NDArray[np.bool_]:
        """bool [slots]: services of what was found, and those that they call or are called by."""
        there = np.zeros(max(1, self._nodes.size), bool)
        numbers, slots = found[:, 0], found[:, 1]
        there[slots[numbers == 0]] = True
        paths = slots[numbers == 1]
        there[self._pairs.src[paths]] = True
        there[self._pairs.dst[paths]] = True
        near = there.copy()
        near[snapshot.edge_src[there[snapshot.edge_dst]]] = True
        near[snapshot.edge_dst[there[snapshot.edge_src]]] = True
        return near

    def paths(self, snapshot: Snapshot, services: set[int]) -> Paths:
        """Return the call paths at these services."""
        there = np.zeros(self._nodes.size, bool)
        there[list(services)] = True
        touched = np.flatnonzero(there[snapshot.edge_src] | there[snapshot.edge_dst])[:_MOST_CALLS]
        return Paths(snapshot.edge_src[touched], snapshot.edge_dst[touched])

    def _read(self, found: Places) -> Iterator[tuple[NDArray[np.bool_], _Seen]]:
        """Yield for each table which of the places it has, and what was seen of them."""
        for number in range(len(self._tables)):
            is_here = found[:, 0] == number
            yield is_here, self._see(number, *found[is_here, 1:].T)

    def _see(self, number: int, slots: NDArray[np.int64], columns: NDArray[np.int64]) -> _Seen:
        table, where = self._tables[number], (slots, columns)
        dev, width, offset, u = (
            values[where].astype(np.float64) for values in (table.dev, table.wide, table.offset, table.now)
        )
        slow, near = (values[where].astype(np.float64) for values in (table.slow, table.near))
        is_up = dev > 0
        weight = table.polarity[columns, np.where(is_up, 0, 1)] * table.quiet[where]
        counted = weight.astype(np.float64) * table.sharp[where].astype(np.float64)
        away = np.divide(dev, counted, out=np.zeros(len(dev)), where=counted != 0)
        # A deviation ends at the largest one.
        away = np.where(np.abs(away) > 0.9 * kernels.MAX_DEVIATION, _nearer(slow, near), away)
        kinds = table.kinds[columns]
        caller = np.full(len(slots), -1) if number == 0 else self._pairs.src[slots].astype(np.int64)
        return _Seen(
            number=number,
            slots=slots,
            columns=columns,
            service=slots if number == 0 else self._pairs.dst[slots].astype(np.int64),
            caller=caller,
            score=table.score[where].astype(np.float64),
            is_up=is_up,
            seen=_back(u, kinds, offset),
            expected=_back(u - width * away, kinds, offset),
        )

    def _clues(
        self, seen: _Seen, score: NDArray[np.float64], which: NDArray[np.bool_], *, is_firm: bool
    ) -> list[Clue]:
        """Return clues from the series for which `which` is true."""
        table = self._tables[seen.number]
        arrays = (seen.service, seen.caller, seen.columns, score, seen.is_up, seen.expected, seen.seen)
        return [
            Clue(service, caller, table.columns[f], table.roles[f], value, is_up, is_firm, expected, now)
            for service, caller, f, value, is_up, expected, now in zip(
                *(values[which].tolist() for values in arrays), strict=True
            )
        ]

    def scores(self, keys: Sequence[Key]) -> list[float | None]:
        """Return the scores of series in this interval; None where one was not measured."""
        callers, services = (np.array([key[end] for key in keys], np.int32) for end in (0, 1))
        paths = self._pairs.find(callers, services).tolist()
        columns = [{name: f for f, name in enumerate(table.columns)} for table in self._tables]
        found: list[float | None] = []
        for (caller, service, feature), path in zip(keys, paths, strict=True):
            number, slot = (0, service) if caller < 0 else (1, path)
            table, f = self._tables[number], columns[number].get(feature)
            if f is None:
                found.append(0.0)  # reported before, but no longer
            elif 0 <= slot < table.size and not math.isnan(table.slow.item(slot, f)):
                found.append(table.score.item(slot, f))
            else:
                found.append(None)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Observations of some series of one table, as arrays [n].

    Attributes:
        number: of the table.
        slots, columns: of the series.
        service, caller, score, is_up, seen, expected: see `Clue`.
    """

    number: int
    slots: NDArray[np.int64]
    columns: NDArray[np.int64]
    service: NDArray[np.int64]
    caller: NDArray[np.int64]
    score: NDArray[np.float64]
    is_up: NDArray[np.bool_]
    seen: NDArray[np.float64]
    expected: NDArray[np.float64]


def _nearer(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what `kernels.nearer` returns, of arrays; 0 also where one is NaN."""
    return np.where(a * b > 0, np.where(np.abs(a) < np.abs(b), a, b), 0.0)


def _back(
    v: NDArray[np.float64], kinds: NDArray[np.int8], offset: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return values in their column's unit."""
    amount = np.maximum(np.exp(np.minimum(v, 80.0)) - offset, 0.0)
    real = np.sinh(np.clip(v, -80, 80))
    return np.where(kinds == kernels.AMOUNT, amount, np.where(kinds == kernels.SHARE, v, real))
