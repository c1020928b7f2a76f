"""A mesh as one vector of series: the columns of all services, then those of all call paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect.paths import Pairs
from hopline_mesh.incident import Evidence
from hopline_mesh.roster import Roster
from hopline_mesh.snapshot import Snapshot

Values = NDArray[np.float64]
Places = NDArray[np.int64]


class MeshVector:
    """The series of a mesh: those of its first services, and of the call paths in normal snapshots.

    Args:
        snapshots: normal ones of one schema; at least one.
        services: number of services; those with this slot or a higher one have no series.

    Attributes:
        columns: name of the column of each series.
        services: int64 [series], slots; of call paths, the callees.
        callers: int64 [series], slots; -1 for services.
    """

    def __init__(self, snapshots: Sequence[Snapshot], services: int) -> None:
        schema = snapshots[0].schema
        self._pairs = Pairs()
        for snapshot in snapshots:
            self._pairs.slots(snapshot.edge_src, snapshot.edge_dst)
        self._size = services
        self._width, width = len(schema.node_features), len(schema.edge_features)
        self.columns = [*schema.node_features * services, *schema.edge_features * len(self._pairs)]
        ends = np.repeat(self._pairs.dst, width), np.repeat(self._pairs.src, width)
        own = np.repeat(np.arange(services), self._width)
        self.services: Places = np.concatenate([own, ends[0]])
        self.callers: Places = np.concatenate([np.full(len(own), -1), ends[1]])

    def places(self, snapshot: Snapshot) -> Places:
        """Return the series of each value of a snapshot (nodes, then edges), int64 [values]; -1: none."""
        nodes, paths = snapshot.nodes, self._pairs.find(snapshot.edge_src, snapshot.edge_dst)
        width = len(snapshot.schema.edge_features)
        of_nodes = nodes[:, None] * self._width + np.arange(self._width)
        of_paths = self._size * self._width + paths[:, None] * width + np.arange(width)
        of_nodes[nodes >= self._size] = -1
        of_paths[paths < 0] = -1
        return np.concatenate([of_nodes.ravel(), of_paths.ravel()])

    def of(self, snapshots: Sequence[Snapshot]) -> Values:
        """Return vectors, float64 [snapshots, series]; NaN = not measured, or not there."""
        vectors = np.full((len(snapshots), len(self.columns)), np.nan)
        for vector, snapshot in zip(vectors, snapshots, strict=True):
            places = self.places(snapshot)
            values = np.concatenate([snapshot.node_features.ravel(), snapshot.edge_features.ravel()])
            vector[places[places >= 0]] = values[places >= 0]
        return vectors

    def evidence(
        self, series: Sequence[int], roster: Roster, *, expected: Values, seen: Values, scores: Values
    ) -> list[Evidence]:
        """Return evidence for some series; the arrays have all of them, float64 [series]."""
        return [
            Evidence(
                self.columns[each],
                roster.name(int(self.services[each])),
                roster.name(int(self.callers[each])) if self.callers[each] >= 0 else None,
                float(expected[each]),
                float(seen[each]),
                float(scores[each]),
            )
            for each in series
        ]
