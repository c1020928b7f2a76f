"""What a detector has learned, as numbers for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.evaluate.times import clock
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.tagae import Tagae
from hopline_mesh.tagae.calibrate import tail_level
from hopline_mesh.tagae.calls import CallsPerRequest

#: Exceedances of a threshold follow each other; so many are one false alarm, as thresholds are set.
_RUN = 2.0
#: Bisections of a logarithm.
_HALVINGS = 40
#: Series that are told of a time that was not learned from.
_NAMED = 4


class Column(msgspec.Struct, frozen=True):
    """One column of services or call paths.

    Attributes:
        name: such as "node.p99_ms".
        series: of these the level and spread were learned.
        left_out: measured now and then, too rarely to learn from; the watch learns them on its way.
        threshold: in spreads; a deviation beyond it, for long enough, is an incident.
        false_alarms_per_day: that this threshold is expected to give, by the tail of what was seen.
    """

    name: str
    series: int
    left_out: int
    threshold: float
    false_alarms_per_day: float


class Abnormal(msgspec.Struct, frozen=True):
    """A time that was not learned from, since it would be an incident whatever is learned.

    Attributes:
        since_s, until_s: of its first and last interval, Unix seconds.
        series: what was so far out, such as "shop/pay p99_ms" and "shop/pay → shop/db client_ms".
    """

    since_s: float
    until_s: float
    series: tuple[str, ...]

    def told(self) -> str:
        """One line for people."""
        few = ", ".join(self.series[:_NAMED]) + (", …" if len(self.series) > _NAMED else "")
        return f"{clock(self.since_s)} to {clock(self.until_s)} UTC: {few}"


class Learned(msgspec.Struct, frozen=True):
    """What there is to say after a training.

    Attributes:
        source: where the intervals are from.
        state_dir: where it was written.
        intervals: that were learned from.
        not_measured: intervals in which nothing was, and that were left out.
        excepted: intervals that were left out as asked.
        abnormal: times that were left out, since they were no normal ones.
        interval_s: seconds of one.
        since_s, until_s: times of the first and last one, Unix seconds.
        services, call_paths: of which there was anything.
        columns: by their names.
        false_alarms_per_day: expected of all columns together.
        calibrated_to: what was asked for.
        model: whether the graph model was trained.
        rare_services: that were seen in too few intervals for any level.
        notes: what else there is to say.
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
    model: bool
    rare_services: tuple[str, ...]
    notes: tuple[str, ...]


def abnormal_of(detector: Tagae, roster: Roster) -> tuple[Abnormal, ...]:
    """The times that a detector was given and did not learn from, with names."""

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
    """Each column of an exported detector.

    Args:
        arrays: of `Tagae.export`.
        snapshots: that it learned from.
        percentile: from where on tails are fitted.
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
    """Services of which no level was learned, though something of them was measured."""
    fitted = arrays["nodes.fitted"]
    some = _ever(snapshots, fitted.shape).any(axis=1) & ~(fitted == 1).any(axis=1)
    return tuple(snapshots[0].roster.name(slot) for slot in np.flatnonzero(some).tolist())


def call_paths(snapshots: Sequence[Snapshot]) -> int:
    """How many different ones there are."""
    keys = [(each.edge_src.astype(np.int64) << 32) | each.edge_dst for each in snapshots]
    return len(np.unique(np.concatenate(keys))) if keys else 0


def services(snapshots: Sequence[Snapshot]) -> int:
    """How many different ones there are."""
    return len(np.unique(np.concatenate([each.nodes for each in snapshots])))


def _ever(snapshots: Sequence[Snapshot], shape: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which numbers of services were measured at least once, bool [slots, columns]."""
    ever = np.zeros(shape, bool)
    for each in snapshots:
        ever[each.nodes] |= np.isfinite(each.node_features)
    return ever


def _ever_called(snapshots: Sequence[Snapshot], calls: CallsPerRequest) -> NDArray[np.bool_]:
    """The same of call paths, those that are counted too, with a row for each path, in any order."""
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
    """How often a threshold would have been exceeded, by the tail that thresholds are set by.

    Its inverse, by bisection: the number that is allowed for which it gives this threshold.
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
