"""The result of a training, as numbers for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect import MeshDetector
from hopline_mesh.detect.calibrate import tail_level
from hopline_mesh.detect.calls import CallsPerRequest
from hopline_mesh.evaluate.times import clock
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot

#: Exceedances of a threshold come in runs; this many are one false alarm, as for the thresholds.
_RUN = 2.0
#: Steps of the bisection of a logarithm.
_HALVINGS = 40
#: Maximum number of series that the text of an abnormal time lists.
_NAMED = 4


class Column(msgspec.Struct, frozen=True):
    """One column of services or call paths.

    Attributes:
        name: such as "node.p99_ms".
        series: number of series with a learned baseline.
        left_out: number of series with too few measurements; the watch learns them while it runs.
        threshold: in spreads; a deviation beyond it, for long enough, is an incident.
        false_alarms_per_day: expected for this threshold, from the tail of the deviations.
    """

    name: str
    series: int
    left_out: int
    threshold: float
    false_alarms_per_day: float


class Abnormal(msgspec.Struct, frozen=True):
    """A time that was left out of the training, because it is an incident for any baseline.

    Attributes:
        since_s, until_s: of its first and last interval, Unix seconds.
        series: those with large deviations, such as "shop/pay p99_ms" and "shop/pay → shop/db client_ms".
    """

    since_s: float
    until_s: float
    series: tuple[str, ...]

    def text(self) -> str:
        """Return one line for people."""
        few = ", ".join(self.series[:_NAMED]) + (", …" if len(self.series) > _NAMED else "")
        return f"{clock(self.since_s)} to {clock(self.until_s)} UTC: {few}"


class Learned(msgspec.Struct, frozen=True):
    """The report of a training.

    Attributes:
        source: of the intervals.
        state_dir: folder of the result.
        intervals: number of intervals that were used.
        not_measured: number of intervals without any measurement, which were left out.
        excepted: number of intervals that `--except` left out.
        abnormal: times that were left out as abnormal.
        interval_s: seconds between intervals.
        since_s, until_s: times of the first and last interval, Unix seconds.
        services, call_paths: numbers of those that were seen.
        columns: in the order of the schema.
        false_alarms_per_day: expected for all columns together.
        calibrated_to: the setting `false_alarms_per_day`.
        rare_services: those with too few measurements for any baseline.
        notes: other notes for people.
    """

    source: str
    state_dir: str
    intervals: int
    not_measured: int
    excepted: int
    abnormal: tuple[Abnormal, ...]
    interval_s: float
    since_s: float
    until_s: float
    services: int
    call_paths: int
    columns: tuple[Column, ...]
    false_alarms_per_day: float
    calibrated_to: float
    rare_services: tuple[str, ...]
    notes: tuple[str, ...]


def abnormal_of(detector: MeshDetector, roster: Roster) -> tuple[Abnormal, ...]:
    """Return the times that a detector left out of its training, with names."""

    def name(caller: int, service: int, feature: str) -> str:
        path = f"{roster.name(caller)} → " if caller >= 0 else ""
        return f"{path}{roster.name(service)} {feature}"

    return tuple(
        Abnormal(out.since_s, out.until_s, tuple(sorted(name(*key) for key in out.series)))
        for out in detector.left_out
    )


def columns_of(
    schema: Schema,
    arrays: Mapping[str, NDArray[Any]],
    snapshots: Sequence[Snapshot],
    interval_s: float,
    percentile: float,
) -> tuple[Column, ...]:
    """Return the report of each column of an exported detector.

    Args:
        arrays: of `MeshDetector.export`.
        snapshots: that it learned from.
        percentile: above which tails are fitted.
    """
    days = len(snapshots) * interval_s / 86_400
    found = []
    calls = CallsPerRequest(schema)
    for of, names in (("node", schema.node_features), ("edge", (*schema.edge_features, *calls.columns))):
        fitted = arrays[f"{of}s.fitted"] == 1
        ever = _ever(snapshots, fitted.shape) if of == "node" else _ever_called(snapshots, calls)
        for f, name in enumerate(names):
            threshold = float(arrays[f"{of}s.threshold"][f])
            alarms = _exceeded(arrays[f"{of}s.histogram"][f], threshold, percentile) / _RUN / days
            series = int(np.count_nonzero(fitted[:, f]))
            left_out = max(0, int(np.count_nonzero(ever[:, f])) - series)
            found.append(Column(f"{of}.{name}", series, left_out, round(threshold, 2), round(alarms, 3)))
    return tuple(found)


def rare_of(arrays: Mapping[str, NDArray[Any]], snapshots: Sequence[Snapshot]) -> tuple[str, ...]:
    """Return services without any learned baseline that have at least one measurement."""
    fitted = arrays["nodes.fitted"]
    some = _ever(snapshots, fitted.shape).any(axis=1) & ~(fitted == 1).any(axis=1)
    return tuple(snapshots[0].roster.name(slot) for slot in np.flatnonzero(some).tolist())


def call_paths(snapshots: Sequence[Snapshot]) -> int:
    """Return the number of different call paths."""
    keys = [(each.edge_src.astype(np.int64) << 32) | each.edge_dst for each in snapshots]
    return len(np.unique(np.concatenate(keys))) if keys else 0


def services(snapshots: Sequence[Snapshot]) -> int:
    """Return the number of different services."""
    return len(np.unique(np.concatenate([each.nodes for each in snapshots])))


def _ever(snapshots: Sequence[Snapshot], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Return which columns of services were measured at least once, bool [slots, columns]."""
    ever = np.zeros(shape, bool)
    for each in snapshots:
        ever[each.nodes] |= np.isfinite(each.node_features)
    return ever


def _ever_called(snapshots: Sequence[Snapshot], calls: CallsPerRequest) -> NDArray[np.bool_]:
    """As `_ever`, for call paths including `calls_per_request`; one row for each path, in any order."""
    seen: dict[tuple[int, int], NDArray[np.bool_]] = {}
    for each in snapshots:
        measured = np.isfinite(calls.of(each))
        for row, pair in enumerate(zip(each.edge_src.tolist(), each.edge_dst.tolist(), strict=True)):
            if pair in seen:
                seen[pair] |= measured[row]
            else:
                seen[pair] = measured[row].copy()
    return np.array(list(seen.values()), bool).reshape(len(seen), calls.width)


def _exceeded(histogram: NDArray[np.int64], threshold: float, percentile: float) -> float:
    """Return how often a threshold is expected to be exceeded, by the fitted tail.

    Inverts `tail_level` by bisection.
    """
    low, high = math.log(1e-6), math.log(max(1.0, float(histogram.sum())))
    if tail_level(histogram, math.exp(low), percentile) <= threshold:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if tail_level(histogram, math.exp(middle), percentile) > threshold:
            low = middle
        else:
            high = middle
    return math.exp(high)
