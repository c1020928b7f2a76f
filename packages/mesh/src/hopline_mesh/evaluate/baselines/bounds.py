"""Rules with bounds for each series: a value may differ from `centre` by `reach`, or by more for a short
time.

A value that was not measured is within bounds. All rules but `static` learn the bounds from the normal
values of the series itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.changes import Context
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S, Alarm
from hopline_mesh.evaluate.baselines.vector import MeshVector, Values
from hopline_mesh.incident import Verdict
from hopline_mesh.roles import is_processor_time, role_of, words_of
from hopline_mesh.schema import kind_of
from hopline_mesh.snapshot import Snapshot

#: Largest anomaly score; a series that never moved in training has no reach.
_MAX_SCORE = 1e6
#: Least interquartile range, as a share of the median: a series that hardly moves would have none.
_LEAST = 0.01

_NEEDS = "a latency, errors, a share or CPU time by its name, such as p99_ms, error_share or cpu_cores"
_STATIC_NEEDS = (
    "a service's latency with its unit, such as p99_ms or latency_seconds; or CPU time and the cpu_limits "
    "of mesh.toml"
)
#: Milliseconds of each unit of latency in a column's name.
_UNITS_MS = {
    unit: milliseconds
    for milliseconds, units in (
        (1.0, "ms msec millis millisecond milliseconds"),
        (1e3, "s sec secs second seconds"),
        (1e-3, "us usec micros microsecond microseconds"),
        (1e-6, "ns nanos nanosecond nanoseconds"),
    )
    for unit in units.split()
}
_P99 = re.compile(r"(?<!\d)99(?!\d)")

#: Returns centre and reach of each series, float64 [series], from normal snapshots; NaN = no bound.
Rule = Callable[[MeshVector, Sequence[Snapshot]], tuple[Values, Values]]


def watched(column: str) -> bool:
    """True if bounds on a column's absolute value are useful by default.

    They are for latencies, errors, shares and CPU time. Memory drifts, and would keep the alarm on for ever
    after a drift, which is worse than ignoring it. Rates follow the load.
    """
    by_role = role_of(column) in ("latency", "outgoing", "errors")
    return by_role or kind_of(column) == "share" or is_processor_time(column)


def unit_ms(column: str) -> float | None:
    """Return the milliseconds of one unit of a latency, by the name of its column; None if it has none."""
    units = [_UNITS_MS[word] for word in words_of(column) if word in _UNITS_MS]
    return units[0] if len(units) == 1 else None


def check_used(name: str, columns: Sequence[str], used: NDArray[np.bool_], needs: str = _NEEDS) -> None:
    """Refuse a recording of which a detector would judge no series.

    Args:
        columns: name of the column of each series.
        used: bool [series].

    Raises:
        SnapshotInvalid: no series is used.
    """
    if not used.any():
        these = ", ".join(dict.fromkeys(columns))
        raise SnapshotInvalid(
            f"{name} can judge no column of this recording ({these}); it needs {needs}, measured in the "
            "training"
        )


class Bounded:
    """A detector with bounds for each series.

    Args:
        name: of the detector.
        rule: sets the bounds.
        min_duration_s: how long a series must be out of bounds, in all snapshots of that time.
        columns: names of watched columns; default: those of `watched`.
        needs: the columns that it can judge, for the error if there are none.
    """

    def __init__(
        self,
        name: str,
        rule: Rule,
        *,
        min_duration_s: float = MIN_DURATION_S,
        columns: Sequence[str] | None = None,
        needs: str = _NEEDS,
    ) -> None:
        self._name, self._rule, self._needs = name, rule, needs
        self._watches = watched if columns is None else frozenset(columns).__contains__
        self._alarm = Alarm(name, min_duration_s)

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """See `Detector.fit`."""
        self._alarm.restart(snapshots)
        self._mesh = MeshVector(snapshots, len(snapshots[0].roster))
        self._centre, reach = self._rule(self._mesh, snapshots)
        self._reach = np.where([self._watches(column) for column in self._mesh.columns], reach, np.nan)
        check_used(self._name, self._mesh.columns, ~np.isnan(self._reach), self._needs)

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """See `Detector.step`. Simple rules ignore planned changes."""
        values = self._mesh.of([snapshot])[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = np.minimum(np.abs(values - self._centre) / self._reach, _MAX_SCORE)
        scores[np.isnan(scores)] = 0.0
        lasting = self._alarm.lasting(scores, snapshot.time_s)
        places = self._mesh.places(snapshot).tolist()
        evidence = self._mesh.evidence(
            [series for series in places if series >= 0 and lasting[series]],
            snapshot.roster,
            expected=self._centre + self._reach,  # the largest usual value
            seen=values,
            scores=scores,
        )
        return self._alarm.verdict(snapshot, float(scores.max(initial=0.0)), evidence)

    def scale_thresholds(self, times: float) -> None:
        """Move all bounds away from their centre, to compare detectors at equal false alarms."""
        self._reach = times * self._reach


def _learned(name: str, bounds: Callable[[Values], tuple[Values, Values]], **options: Any) -> Bounded:
    """Return a detector that learns centre and reach of each series from float64 [snapshots, series]."""

    def rule(mesh: MeshVector, snapshots: Sequence[Snapshot]) -> tuple[Values, Values]:
        values = mesh.of(snapshots)
        if not values.size:
            return np.empty(0), np.empty(0)
        unseen = np.isnan(values).all(axis=0)
        centre, reach = bounds(np.where(unseen, 0.0, values))
        return centre, np.where(unseen, np.nan, reach)

    return Bounded(name, rule, **options)


def percentile(percent: float = 99.0, **options: Any) -> Bounded:
    """Return a detector with a bound at a percentile of the normal values; for options see `Bounded`."""
    return _learned(
        "percentile", lambda values: _from_zero(np.nanpercentile(values, percent, axis=0)), **options
    )


def maximum(times: float = 1.2, **options: Any) -> Bounded:
    """Return a detector with a bound at a multiple of the largest normal value."""
    return _learned("maximum", lambda values: _from_zero(times * np.nanmax(values, axis=0)), **options)


def sigma(sigmas: float = 6.0, **options: Any) -> Bounded:
    """Return a detector with bounds at a number of standard deviations from the mean, on both sides."""
    return _learned(
        "sigma",
        lambda values: (np.nanmean(values, axis=0), sigmas * np.nanstd(values, axis=0)),
        **options,
    )


def robust(ranges: float = 5.0, **options: Any) -> Bounded:
    """Return a detector with bounds at a number of interquartile ranges from the median.

    The scorer of BARO (Pham et al., 2024, https://arxiv.org/abs/2405.09330): suspects are ranked by the
    largest distance from the median, in interquartile ranges. BARO's change point detection is not part of
    it.
    """

    def bounds(values: Values) -> tuple[Values, Values]:
        low, middle, high = np.nanpercentile(values, [25, 50, 75], axis=0)
        spread = np.maximum(high - low, _LEAST * np.abs(middle))
        # A series that is always 0, such as errors that never happen, has no range to measure by.
        return middle, ranges * np.where(spread > 0, spread, np.nan)

    return _learned("robust", bounds, **options)


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
        p99_ms: maximum 99th percentile of its latency in milliseconds, whatever the unit of the column; of
            each latency if none is a 99th percentile by its name.
        error_share: maximum share of failed requests; None: ignored.
        cpu_limits: CPU limit of each service in cores; without it, CPU time is ignored, unless the
            recording has it as a share (such as a column `cpu_share`).
        min_duration_s: see `Bounded`.
    """

    def rule(mesh: MeshVector, snapshots: Sequence[Snapshot]) -> tuple[Values, Values]:
        columns = snapshots[0].schema.node_features
        fixed = _latency_bounds(columns, p99_ms)
        cores = []
        for column in columns:
            is_share = kind_of(column) == "share"
            if is_share and role_of(column) == "errors" and error_share is not None:
                fixed[column] = error_share
            elif is_share and is_processor_time(column):
                fixed[column] = cpu_share
            elif is_processor_time(column):
                cores.append(column)
        reach = np.array([fixed.get(column, np.nan) for column in mesh.columns])
        for service, limit in (cpu_limits or {}).items():
            slot = snapshots[0].roster.find(service)
            for column in cores if slot is not None else ():
                unit = 1000.0 if words_of(column) & {"millicores", "mcores"} else 1.0
                here = (mesh.services == slot) & (np.array(mesh.columns) == column)
                reach[here] = cpu_share * limit * unit
        return _from_zero(np.where(mesh.callers < 0, reach, np.nan))

    return Bounded("static", rule, min_duration_s=min_duration_s, needs=_STATIC_NEEDS)


def _latency_bounds(columns: Sequence[str], p99_ms: float) -> dict[str, float]:
    """Return the bound of each 99th percentile of latency in its unit; without one, of each latency.

    Raises:
        SnapshotInvalid: such a column has no unit in its name.
    """
    latencies = [column for column in columns if role_of(column) == "latency"]
    bounds = {}
    for column in [column for column in latencies if _P99.search(column)] or latencies:
        milliseconds = unit_ms(column)
        if milliseconds is None:
            raise SnapshotInvalid(
                f"static cannot compare {column} with {p99_ms:g} ms: its name needs one unit, such as "
                f"{column}_ms or {column}_seconds"
            )
        bounds[column] = p99_ms / milliseconds
    return bounds


def _from_zero(reach: Values) -> tuple[Values, Values]:
    return np.zeros_like(reach), reach
