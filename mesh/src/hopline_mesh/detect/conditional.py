"""Judges what the neighbour regression leaves of each series, by the rules for the series themselves.

What is left is a series as any other: it has a level, a spread, a window and a threshold, and a deviation
of it must last. It can raise an alarm although the series itself is within its bounds. Series and
regression share one budget of false alarms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect import calibrate
from hopline_mesh.detect.regression import FOLDS, Fit, FloatArray, NeighbourRegression
from hopline_mesh.detect.series import SeriesTable, part, prefixed
from hopline_mesh.roster import SlotArray
from hopline_mesh.snapshot import Snapshot

#: Factor on the thresholds. A regression was learned at few loads, and errs more at others: on three
#: simulated days (seeds 9101 to 9103) thresholds for one false incident a day were 2.5 times those of the
#: learned time, and 1.15 times for the series themselves.
CAUTION = 2.2
#: Maximum of series times intervals to learn a regression from.
_MOST_ROWS = 10_000_000


class Conditional:
    """A regression, and the series of what it leaves.

    Args:
        nodes, edges: the series of services and of call paths, which it reads.

    Attributes:
        tables: what is left of them, with the same slots and columns.
    """

    def __init__(self, nodes: SeriesTable, edges: SeriesTable) -> None:
        self._of = (nodes, edges)
        self.regression = NeighbourRegression(nodes, edges)
        self.tables = tuple(
            SeriesTable(table.columns, table.window, calibrate.UNKNOWN, are_plain=True)
            for table in (nodes, edges)
        )
        self._apart: list[list[dict[int, FloatArray]]] = []
        self._fit: Fit | None = None

    # Learning

    def learn(self, snapshot: Snapshot, paths: SlotArray, number: int, count: int) -> None:
        """Learn from an interval, which the tables observed last; `number` of `count`, from 0."""
        nodes, edges = self._of
        if self._fit is None:
            self._fit = Fit(self.regression, (nodes.size, edges.size))
        every = max(1, -(-count * (nodes.size + edges.size) // _MOST_ROWS))
        if number % every == 0:
            predictors = self.regression.predictors(snapshot, paths)
            self._fit.take(predictors, (snapshot.nodes, paths), self._fold(number, count))

    def solve(self) -> None:
        """Compute the weights. Until `learned`, each interval is predicted by what the others taught."""
        assert self._fit is not None
        self._apart = self._fit.solve()
        self._fit = None

    def learned(self) -> None:
        """Use the weights of all intervals from now on."""
        self._apart = []

    def left(
        self, snapshot: Snapshot, paths: SlotArray, number: int = 0, count: int = 1
    ) -> list[FloatArray]:
        """Return what is left of an interval: float32 [n, F] and [e, Fe]; NaN = not predicted."""
        weights = self._apart[self._fold(number, count)] if self._apart else None
        predictors = self.regression.predictors(snapshot, paths)
        return list(self.regression.left(predictors, (snapshot.nodes, paths), weights))

    @staticmethod
    def _fold(number: int, count: int) -> int:
        return min(FOLDS - 1, number * FOLDS // max(1, count))

    # Judging

    def forget(self, slot: int, columns: NDArray[np.bool_], paths: NDArray[np.int64]) -> None:
        """Set the levels of a service and of its call paths again, because it was changed as planned."""
        nodes, edges = self.tables
        nodes.level[slot, columns] = np.nan
        edges.level[paths] = np.nan

    def show(self) -> None:
        """Have the series show what is left of them, where that is the more unusual.

        Scores, and deviations as `Witness` reads them: their expected values are those of the regression.
        """
        for table, left in zip(self._of, self.tables, strict=True):
            size = table.size
            more = left.score[:size] > table.score[:size]
            table.score[:size][more] = left.score[:size][more]
            table.dev[:size][more] = (left.dev[:size] * left.spread[:size] * table.sharp[:size])[more]

    # Keeping

    def export(self) -> dict[str, NDArray[Any]]:
        """Return the state."""
        nodes, edges = (table.export() for table in self.tables)
        weights = prefixed("weights.", self.regression.export())
        return weights | prefixed("nodes.", nodes) | prefixed("edges.", edges)

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the state of `export`.

        Raises:
            StateDamaged: a part is missing, or does not match the columns or the window.
        """
        self.regression.restore(part("weights.", arrays))
        for name, table in zip(("nodes.", "edges."), self.tables, strict=True):
            table.restore(part(name, arrays))


def merged(found: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return table (0 = services), slot and column of each series that is out of bounds, int64 [n, 3].

    Args:
        found: slots and columns by table, int64 [n, 2], of the series and then of what is left of them.
    """
    if not any(map(len, found)):
        return np.zeros((0, 3), np.int64)
    places = [np.insert(some, 0, number % 2, axis=1) for number, some in enumerate(found)]
    together: NDArray[np.int64] = np.unique(np.concatenate(places), axis=0)
    return together
