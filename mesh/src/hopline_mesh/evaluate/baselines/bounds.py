"""Rules with bounds for each series: a value may differ from `centre` by `reach`, or by more for a short
time.

A value that was not measured is within bounds. All rules but `static` learn the bounds from the normal
values of the series itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S, Alarm, intervals_of
from hopline_mesh.evaluate.baselines.rows import Places, Rows, Side, Values, interval_of
from hopline_mesh.incident import Verdict
from hopline_mesh.snapshot import Snapshot

#: Largest anomaly score; a series that never moved in training has no reach.
_MAX_SCORE = 1e6
#: If snapshots are further apart than this number of intervals, the durations start again.
_GAP = 3.0
#: Least interquartile range, as a share of the median: a series that hardly moves would have none.
_LEAST = 0.01

#: Returns centre and reach of series, each float64 [rows, columns], from their normal values, float64
#: [snapshots, rows, columns] (NaN = not measured, never all of one series); the names of the columns; and
#: for services the names of the rows, else None.
Rule = Callable[[Values, Sequence[str], Sequence[str] | None], tuple[Values, Values]]


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
        rule: sets the bounds.
        min_duration_s: how long a series must be out of bounds, in all snapshots of that time.
        columns: names of watched columns; default: those of `watched`.
        fixed: column -> reach, around 0, for services without values in the training.
    """

    def __init__(
        self,
        name: str,
        rule: Rule,
        *,
        min_duration_s: float = MIN_DURATION_S,
        columns: Sequence[str] | None = None,
        fixed: Mapping[str, float] | None = None,
    ) -> None:
        self._rule = rule
        self._min_duration_s = min_duration_s
        self._columns = None if columns is None else frozenset(columns)
        self._fixed = fixed or {}
        self._alarm = Alarm(name)

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """See `Detector.fit`."""
        self._rows = Rows()
        self._interval_s = interval_of(snapshots)
        schema, names = snapshots[0].schema, snapshots[0].roster.names
        nodes, edges = self._rows.stack(snapshots)
        self._new = [
            np.array([self._fixed.get(column, np.nan) for column in schema.node_features]),
            np.full(len(schema.edge_features), np.nan),
        ]
        self._bounds = [
            self._learned(nodes, self._new[0], schema.node_features, names),
            self._learned(edges, self._new[1], schema.edge_features, None),
        ]
        self._streaks: list[Places] = [
            np.zeros(values.shape[1:], dtype=np.int64) for values in (nodes, edges)
        ]
        self._last_s: float | None = None

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """See `Detector.step`. Simple rules ignore planned changes."""
        if self._last_s is None or snapshot.time_s - self._last_s > _GAP * self._interval_s:
            for streaks in self._streaks:
                streaks[:] = 0
        self._last_s = snapshot.time_s
        needed = intervals_of(self._min_duration_s, self._interval_s)
        most, evidence = 0.0, []
        for number, side in enumerate(self._rows.sides(snapshot)):
            centre, reach, scores = self._judged(number, side)
            most = max(most, float(scores.max(initial=0.0)))
            # The expected value is the bound itself, the largest one.
            evidence += [
                side.evidence(at, column, snapshot.roster, bound, float(scores[at, column]))
                for at, column in np.argwhere(self._streaks[number][side.rows] >= needed).tolist()
                for bound in [float(centre[at, column] + reach[at, column])]
            ]
        return self._alarm.verdict(snapshot, most, evidence)

    def scale_thresholds(self, times: float) -> None:
        """Move all bounds away from their centre, to compare detectors at equal false alarms."""
        self._bounds = [(centre, times * reach) for centre, reach in self._bounds]

    def _learned(
        self, values: Values, new: Values, columns: Sequence[str], names: Sequence[str] | None
    ) -> tuple[Values, Values]:
        unseen = np.isnan(values).all(axis=0)
        if not values.size:
            return np.zeros(values.shape[1:]), np.full(values.shape[1:], np.nan)
        centre, reach = self._rule(np.where(unseen, 0.0, values), columns, names)
        return np.where(unseen, 0.0, centre), np.where(unseen, new, reach)

    def _judged(self, number: int, side: Side) -> tuple[Values, Values, Values]:
        """Return centre, reach and anomaly score of each series, [n, columns]; updates the streaks."""
        known_centre, known_reach = self._bounds[number]
        rows, old = side.rows, side.rows < len(known_reach)
        centre, reach = np.zeros(side.values.shape), np.tile(self._new[number], (len(rows), 1))
        centre[old], reach[old] = known_centre[rows[old]], known_reach[rows[old]]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.minimum(np.abs(side.values.astype(np.float64) - centre) / reach, _MAX_SCORE)
        scores = np.where(np.isnan(scores), 0.0, scores)
        scores[:, [not self._watches(column) for column in side.columns]] = 0.0
        before = self._streaks[number]
        after = np.zeros((max(len(before), int(rows.max(initial=-1)) + 1), len(side.columns)), np.int64)
        after[: len(before)] = before
        lasts = np.where(scores > 1, after[rows] + 1, 0)
        after[:] = 0
        after[rows] = lasts
        self._streaks[number] = after
        return centre, reach, scores

    def _watches(self, column: str) -> bool:
        return watched(column) if self._columns is None else column in self._columns


def percentile(percent: float = 99.0, **options: Any) -> Bounded:
    """Return a detector with a bound at a percentile of the normal values; for options see `Bounded`."""
    return Bounded(
        "percentile", lambda values, *_: _from_zero(np.nanpercentile(values, percent, axis=0)), **options
    )


def maximum(times: float = 1.2, **options: Any) -> Bounded:
    """Return a detector with a bound at a multiple of the largest normal value."""
    return Bounded("maximum", lambda values, *_: _from_zero(times * np.nanmax(values, axis=0)), **options)


def sigma(sigmas: float = 6.0, **options: Any) -> Bounded:
    """Return a detector with bounds at a number of standard deviations from the mean, on both sides."""

    def rule(values: Values, *_: object) -> tuple[Values, Values]:
        return np.nanmean(values, axis=0), sigmas * np.nanstd(values, axis=0)

    return Bounded("sigma", rule, **options)


def robust(ranges: float = 5.0, **options: Any) -> Bounded:
    """Return a detector with bounds at a number of interquartile ranges from the median.

    The scorer of BARO (Pham et al., 2024, https://arxiv.org/abs/2405.09330): suspects are ranked by the
    largest distance from the median, in interquartile ranges. BARO's change point detection is not part of
    it.
    """

    def rule(values: Values, *_: object) -> tuple[Values, Values]:
        low, middle, high = np.nanpercentile(values, [25, 50, 75], axis=0)
        spread = np.maximum(high - low, _LEAST * np.abs(middle))
        # A series that is always 0, such as errors that never happen, has no range to measure by.
        return middle, ranges * np.where(spread > 0, spread, np.nan)

    return Bounded("robust", rule, **options)


def static(
    *,
    cpu_share: float = 0.8,
    p99_ms: float = 1000.0,
    error_share: float | None = None,
    cpu_limits: Mapping[str, float] | None = None,
    min_duration_s: float = MIN_DURATION_S,
) -> Bounded:
    """Return a detector with the same thresholds for every service, as in most alert rules.

    Args:
        cpu_share: maximum share of a service's CPU limit.
        p99_ms: maximum 99th percentile of its latency.
        error_share: maximum share of failed requests; None: ignored.
        cpu_limits: CPU limit of each service in cores; without it, CPU time is ignored, unless the
            recording has it as a share (column `cpu_share`).
        min_duration_s: see `Bounded`.
    """
    fixed = {"cpu_share": cpu_share, "p99_ms": p99_ms}
    if error_share is not None:
        fixed["error_share"] = error_share

    def rule(values: Values, columns: Sequence[str], names: Sequence[str] | None) -> tuple[Values, Values]:
        reach = np.full(values.shape[1:], np.nan)
        for column, name in enumerate(columns if names is not None else ()):
            reach[:, column] = fixed.get(name, np.nan)
            if name == "cpu_cores" and names is not None:
                limits = [(cpu_limits or {}).get(each, np.nan) for each in names[: len(reach)]]
                reach[:, column] = cpu_share * np.array(limits)
        return np.zeros(reach.shape), reach

    columns = [*fixed, "cpu_cores"]
    return Bounded("static", rule, min_duration_s=min_duration_s, columns=columns, fixed=fixed)


def _from_zero(reach: Values) -> tuple[Values, Values]:
    return np.zeros_like(reach), reach
