"""The result of a training, as numbers for people."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.detect import MeshDetector
from hopline_mesh.detect.calibrate import RUN, tail_level
from hopline_mesh.evaluate.times import clock
from hopline_mesh.roster import Roster

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
    detector: MeshDetector, arrays: Mapping[str, NDArray[Any]], days: float, percentile: float
) -> tuple[Column, ...]:
    """Return the report of each column of a detector.

    Args:
        arrays: of `MeshDetector.export`.
        days: length of the time that it learned from.
        percentile: above which tails are fitted.
    """
    found = []
    for kind in ("node", "edge"):
        fitted, seen = arrays[f"{kind}s.fitted"] == 1, arrays[f"{kind}s.seen"] > 0
        thresholds = [each for each in detector.thresholds.items() if each[0].startswith(kind)]
        for f, (name, threshold) in enumerate(thresholds):
            alarms = _exceeded(arrays[f"{kind}s.histogram"][f], threshold, percentile) / RUN / days
            series = int(np.count_nonzero(fitted[:, f]))
            left_out = int(np.count_nonzero(seen[:, f] & ~fitted[:, f]))
            found.append(Column(name, series, left_out, round(threshold, 2), round(alarms, 3)))
    return tuple(found)


def rare_of(arrays: Mapping[str, NDArray[Any]], roster: Roster) -> tuple[str, ...]:
    """Return services without any learned baseline that have at least one measurement."""
    rare = (arrays["nodes.seen"] > 0).any(axis=1) & ~(arrays["nodes.fitted"] == 1).any(axis=1)
    return tuple(roster.name(slot) for slot in np.flatnonzero(rare).tolist())


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
