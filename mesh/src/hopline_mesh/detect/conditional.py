"""Judges what the neighbour regression leaves of each series, by the rules for the series themselves.

What is left is a series as any other: it has a level, a spread, a window and a threshold, and a deviation
of it must last. It can raise an alarm although the series itself is within its bounds. Series and
regression share one budget of false alarms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect import calibrate
from hopline_mesh.detect.regression import NeighbourRegression
from hopline_mesh.detect.series import SeriesTable, part, prefixed

#: Factor on the thresholds. A regression was learned at few loads, and errs more at others: on three
#: simulated days (seeds 9101 to 9103) thresholds for one false incident a day were 2.5 times those of the
#: learned time, and 1.15 times for the series themselves.
CAUTION = 2.2


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
