"""Rules with bounds for each series: a value may differ from `centre` by `reach`, or by more for a short
time.

A value that was not measured is within bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S, Alarm, intervals_of
from hopline_mesh.evaluate.baselines.rows import Places, Rows, Values, interval_of
from hopline_mesh.incident import Evidence, Verdict
from hopline_mesh.snapshot import Snapshot

#: Largest anomaly score; a series that never moved in training has no reach.
_MAX_SCORE = 1e6
#: If snapshots are further apart than this number of intervals, the durations start again.
_GAP = 3.0


def watched(column: str) -> bool:
    """Whether bounds on a column's absolute value are useful by default.

    They are for latencies, shares and CPU time. Memory drifts, and would keep the alarm on for ever after a
    drift, which is worse than ignoring it. Rates follow the load.
    """
    return column.endswith(("_ms", "_share")) or column == "cpu_cores"


class Bounded:
    """A detector with bounds for each series.

    Args:
        name: of the detector.
        bounds: returns the bounds of each series from its normal values, float64 [snapshots, rows, columns]
            (NaN = not measured, never all of one series): centre and reach, each float64 [rows, columns].
        min_duration_s: how long a series must be out of bounds, in all snapshots of that time.
        columns: names of watched columns; default: those of `watched`.
    """

    def __init__(
        self,
        name: str,
        bounds: Callable[[Values], tuple[Values, Values]],
        *,
        min_duration_s: float = MIN_DURATION_S,
        columns: Sequence[str] | None = None,
    ) -> None:
        self._bounds = bounds
        self._min_duration_s = min_duration_s
        self._columns = None if columns is None else frozenset(columns)
        self._alarm = Alarm(name)
        self._rows = Rows()
        self._interval_s = 0.0
        self._last_s: float | None = None
        self._node_bounds = self._edge_bounds = (np.empty((0, 0)), np.empty((0, 0)))
        self._node_streaks = np.zeros((0, 0), dtype=np.int64)
        self._edge_streaks = np.zeros((0, 0), dtype=np.int64)

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """See `Detector.fit`."""
        self._rows = Rows()
        self._interval_s = interval_of(snapshots)
        nodes, edges = self._rows.stack(snapshots)
        schema = snapshots[0].schema
        self._node_bounds = self._learn(nodes, schema.node_features)
        self._edge_bounds = self._learn(edges, schema.edge_features)
        self._node_streaks = np.zeros(nodes.shape[1:], dtype=np.int64)
        self._edge_streaks = np.zeros(edges.shape[1:], dtype=np.int64)
        self._last_s = None

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """See `Detector.step`. Simple rules ignore planned changes."""
        if self._last_s is None or snapshot.time_s - self._last_s > _GAP * self._interval_s:
            self._node_streaks[:] = 0
            self._edge_streaks[:] = 0
        self._last_s = snapshot.time_s
        self._node_streaks, node_scores, node_held = self._judge(
            self._node_streaks,
            snapshot.nodes.astype(np.int64),
            snapshot.node_features,
            self._node_bounds,
            snapshot.schema.node_features,
        )
        self._edge_streaks, edge_scores, edge_held = self._judge(
            self._edge_streaks,
            self._rows.edges(snapshot),
            snapshot.edge_features,
            self._edge_bounds,
            snapshot.schema.edge_features,
        )
        score = max(node_scores.max(initial=0.0), edge_scores.max(initial=0.0))
        evidence = [
            Evidence(
                feature=snapshot.schema.node_features[column],
                service=snapshot.roster.name(int(snapshot.nodes[row])),
                caller=None,
                expected=self._expected(self._node_bounds, int(snapshot.nodes[row]), column),
                seen=float(snapshot.node_features[row, column]),
                score=float(node_scores[row, column]),
            )
            for row, column in np.argwhere(node_held).tolist()
        ]
        edge_rows = self._rows.edges(snapshot)
        evidence += [
            Evidence(
                feature=snapshot.schema.edge_features[column],
                service=snapshot.roster.name(int(snapshot.edge_dst[row])),
                caller=snapshot.roster.name(int(snapshot.edge_src[row])),
                expected=self._expected(self._edge_bounds, int(edge_rows[row]), column),
                seen=float(snapshot.edge_features[row, column]),
                score=float(edge_scores[row, column]),
            )
            for row, column in np.argwhere(edge_held).tolist()
        ]
        return self._alarm.verdict(snapshot, float(score), evidence)

    def scale_thresholds(self, times: float) -> None:
        """Move all bounds away from their centre, to compare detectors at equal false alarms."""
        self._node_bounds = self._node_bounds[0], times * self._node_bounds[1]
        self._edge_bounds = self._edge_bounds[0], times * self._edge_bounds[1]

    def reach_of_new(self, column: str) -> float:
        """Return the reach, around 0, of a series without values in the training; NaN: no bounds."""
        return float("nan")

    def _learn(self, values: Values, columns: Sequence[str]) -> tuple[Values, Values]:
        unseen = np.isnan(values).all(axis=0)
        filled = np.where(unseen, 0.0, values)
        if not filled.size:
            return np.zeros(values.shape[1:]), np.full(values.shape[1:], np.nan)
        centre, reach = self._bounds(filled)
        new = np.array([self.reach_of_new(column) for column in columns])
        return np.where(unseen, 0.0, centre), np.where(unseen, new, reach)

    def _judge(
        self,
        streaks: Places,
        rows: Places,
        values: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
        bounds: tuple[Values, Values],
        columns: Sequence[str],
    ) -> tuple[Places, Values, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
        """Return updated streaks [rows, columns]; anomaly scores and out-of-bounds series, [n, columns]."""
        known = len(bounds[1])
        centre = np.zeros((len(rows), len(columns)))
        reach = np.tile([self.reach_of_new(column) for column in columns], (len(rows), 1))
        old = rows < known
        centre[old], reach[old] = bounds[0][rows[old]], bounds[1][rows[old]]
        away = np.abs(values.astype(np.float64) - centre)
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.minimum(away / reach, _MAX_SCORE)
        scores = np.where(np.isnan(scores), 0.0, scores)
        scores[:, [not self._watches(column) for column in columns]] = 0.0
        fresh = np.zeros((max(len(streaks), int(rows.max(initial=-1)) + 1), len(columns)), dtype=np.int64)
        before = np.zeros_like(fresh)
        before[: len(streaks)] = streaks
        fresh[rows] = np.where(scores > 1, before[rows] + 1, 0)
        needed = intervals_of(self._min_duration_s, self._interval_s)
        return fresh, scores, fresh[rows] >= needed

    def _watches(self, column: str) -> bool:
        return watched(column) if self._columns is None else column in self._columns

    @staticmethod
    def _expected(bounds: tuple[Values, Values], row: int, column: int) -> float | None:
        """Return the bound itself, the largest expected value."""
        if row >= len(bounds[0]):
            return None
        return float(bounds[0][row, column] + bounds[1][row, column])
