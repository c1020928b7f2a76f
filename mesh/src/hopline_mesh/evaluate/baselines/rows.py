"""Series of a mesh as rows of arrays: one row for each service, one for each call path.

Rows are assigned when services and call paths are first seen, and never change. Knows no bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect.paths import Pairs
from hopline_mesh.incident import Evidence
from hopline_mesh.roster import Roster, SlotArray
from hopline_mesh.snapshot import FloatArray, Snapshot

Values = NDArray[np.float64]
Places = NDArray[np.int64]


class Side(NamedTuple):
    """The services, or the call paths, of one snapshot.

    Attributes:
        rows: int64 [n].
        values: float32 [n, columns]; NaN = not measured.
        columns: their names.
        services: int32 [n], slots; of call paths, the callees.
        callers: int32 [n], slots; None for services.
    """

    rows: Places
    values: FloatArray
    columns: tuple[str, ...]
    services: SlotArray
    callers: SlotArray | None

    def evidence(
        self, at: int, column: int, roster: Roster, expected: float | None, score: float
    ) -> Evidence:
        """Return evidence for the series at a position and column."""
        return Evidence(
            self.columns[column],
            roster.name(int(self.services[at])),
            None if self.callers is None else roster.name(int(self.callers[at])),
            expected,
            float(self.values[at, column]),
            score,
        )


class Rows:
    """The rows of call paths; the row of a service is its slot."""

    def __init__(self) -> None:
        self._pairs = Pairs()

    def sides(self, snapshot: Snapshot) -> tuple[Side, Side]:
        """Return the services and the call paths of a snapshot, with new rows for new ones."""
        schema, src, dst = snapshot.schema, snapshot.edge_src, snapshot.edge_dst
        rows = snapshot.nodes.astype(np.int64)
        paths = self._pairs.slots(src, dst).astype(np.int64)
        return (
            Side(rows, snapshot.node_features, schema.node_features, snapshot.nodes, None),
            Side(paths, snapshot.edge_features, schema.edge_features, dst, src),
        )

    def stack(self, snapshots: Sequence[Snapshot]) -> list[Values]:
        """Return all values of several snapshots of one schema.

        Returns: float64 [snapshots, services, node features] and [snapshots, call paths, edge features];
            NaN if a service or call path did not exist, or a value was not measured.
        """
        stacked = []
        for sides in zip(*map(self.sides, snapshots), strict=True):
            size = 1 + max(int(side.rows.max(initial=-1)) for side in sides)
            values = np.full((len(sides), size, len(sides[0].columns)), np.nan)
            for at, side in enumerate(sides):
                values[at, side.rows] = side.values
            stacked.append(values)
        return stacked


def interval_of(snapshots: Sequence[Snapshot]) -> float:
    """Return the median seconds between snapshots; 0 if there are fewer than two."""
    times = np.array([snapshot.time_s for snapshot in snapshots])
    return float(np.median(np.diff(times))) if len(times) > 1 else 0.0
