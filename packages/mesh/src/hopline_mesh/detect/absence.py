"""Services that disappear: those that are missing without a planned change or a failed query."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.changes import Change
from hopline_mesh.detect.series import SeriesTable
from hopline_mesh.snapshot import Gap, Snapshot

#: Absent intervals of a service that was removed as planned; largest plausible share of services that
#: disappear together; logarithm of the requests per second that a missing service must have had.
_FORGOTTEN, _MANY, _BUSY = 1_000_000, 0.2, -2.0


class Absence:
    """Counts the intervals since each service was last there.

    Args:
        nodes, edges: the series of services and of call paths.

    Attributes:
        intervals: int32 [slots].
    """

    def __init__(self, nodes: SeriesTable, edges: SeriesTable) -> None:
        self._nodes = nodes
        self._called = edges.load
        self.intervals = np.zeros(0, np.int32)

    def observe(self, snapshot: Snapshot) -> None:
        """Count an interval, after `nodes` has grown to its roster. One without services shows nothing."""
        new = self._nodes.size - len(self.intervals)
        self.intervals = np.concatenate([self.intervals, np.full(new, _FORGOTTEN, np.int32)])
        self.intervals += len(snapshot.nodes) > 0
        self.intervals[snapshot.nodes[~self._are_silent(snapshot)]] = 0

    def _are_silent(self, snapshot: Snapshot) -> NDArray[np.bool_]:
        """Return which services are not measured and get no calls, bool [services].

        The counters of a caller's proxy outlive the service that it called, and stand still.
        """
        calls = np.full(self._nodes.size, np.nan)
        if self._called >= 0:
            np.fmax.at(calls, snapshot.edge_dst, snapshot.edge_features[:, self._called])
        silent = np.isnan(snapshot.node_features).all(axis=1) & (calls[snapshot.nodes] == 0)
        return np.asarray(silent, bool)

    def forget_planned(self, changed: Sequence[tuple[int, Change]]) -> None:
        """Do not report services as missing that disappear during their own planned change."""
        for slot, change in changed:
            if change.kind != "added" and self.intervals[slot]:
                self.intervals[slot] = _FORGOTTEN

    def gone(self, snapshot: Snapshot, hold: int) -> list[int]:
        """Return the slots of busy services that are missing for at least `hold` intervals.

        None if a large share of all is missing, because then something else is wrong.
        """
        absent, nodes = self.intervals, self._nodes
        gone = np.flatnonzero((absent >= hold) & (absent < nodes.window))
        known = nodes.seen[gone].max(axis=1, initial=0) >= nodes.window // 2
        if nodes.load >= 0:
            known &= nodes.level[gone, nodes.load] > _BUSY
        gone = gone[known & self._would_be_seen(gone, snapshot.gaps)]
        return gone.tolist() if len(gone) <= max(1, _MANY * len(snapshot.nodes)) else []

    def _would_be_seen(self, slots: NDArray[np.int64], gaps: Sequence[Gap]) -> NDArray[np.bool_]:
        """Return which services would be measured in spite of the gaps, bool [slots].

        A query without a response hides a service only if no other query ever found the service. So a
        query that never has one, such as that for connections on a mesh without TCP metrics, hides none.
        """
        lacking = {gap.what for gap in gaps}
        if "prometheus" in lacking:
            return np.zeros(len(slots), bool)
        present = [f for f, name in enumerate(self._nodes.columns) if f"node.{name}" not in lacking]
        seen = self._nodes.seen[slots][:, present].max(axis=1, initial=0) > 0
        return np.asarray(seen, bool)
