"""Series of a mesh as rows of arrays: one row for each service, one for each call path.

Rows are assigned when services and call paths are first seen, and never change. Knows no bounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.snapshot import Snapshot

Values = NDArray[np.float64]
Places = NDArray[np.int64]


class Rows:
    """The rows of call paths; the row of a service is its slot."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[int, int], int] = {}
        self._last: tuple[NDArray[np.int32], NDArray[np.int32], Places] | None = None

    @property
    def num_edges(self) -> int:
        """Number of call paths so far."""
        return len(self._pairs)

    def edges(self, snapshot: Snapshot) -> Places:
        """Return rows of the snapshot's call paths, with new rows for new paths: int64 [e]."""
        last = self._last
        if last is not None and last[0] is snapshot.edge_src and last[1] is snapshot.edge_dst:
            return last[2]
        pairs = zip(snapshot.edge_src.tolist(), snapshot.edge_dst.tolist(), strict=True)
        rows = np.array([self._pairs.setdefault(pair, len(self._pairs)) for pair in pairs], dtype=np.int64)
        self._last = (snapshot.edge_src, snapshot.edge_dst, rows)
        return rows

    def stack(self, snapshots: Sequence[Snapshot]) -> tuple[Values, Values]:
        """Return all values of several snapshots of one schema.

        Returns: float64 [snapshots, services, node features] and [snapshots, call paths, edge features];
            NaN if a service or call path did not exist, or a value was not measured.
        """
        edge_rows = [self.edges(snapshot) for snapshot in snapshots]
        schema = snapshots[0].schema
        num_services = 1 + max((int(s.nodes.max()) for s in snapshots if s.nodes.size), default=-1)
        nodes = np.full((len(snapshots), num_services, len(schema.node_features)), np.nan)
        edges = np.full((len(snapshots), self.num_edges, len(schema.edge_features)), np.nan)
        for at, (snapshot, rows) in enumerate(zip(snapshots, edge_rows, strict=True)):
            nodes[at, snapshot.nodes] = snapshot.node_features
            edges[at, rows] = snapshot.edge_features
        return nodes, edges


def interval_of(snapshots: Sequence[Snapshot]) -> float:
    """Return the median seconds between snapshots; 0 if there are fewer than two."""
    times = np.array([snapshot.time_s for snapshot in snapshots])
    return float(np.median(np.diff(times))) if len(times) > 1 else 0.0
