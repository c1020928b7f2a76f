"""A recorded mesh: its snapshots, planned changes and troubles, and labelled events.

Knows values in memory and the split into training and test, but no files or detectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.changes import Context
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.times import clock
from hopline_mesh.snapshot import FloatArray, Snapshot

_DAY_S = 86_400.0
#: Least number of snapshots of a training, as the watch needs before its first verdict (`warm_up`).
LEAST_TRAINING = 10


class Period(msgspec.Struct, frozen=True):
    """A period of time, Unix seconds; it includes `start_s` and excludes `end_s`."""

    start_s: float
    end_s: float

    def __contains__(self, time_s: object) -> bool:
        return isinstance(time_s, (int, float)) and self.start_s <= time_s < self.end_s


class Event(msgspec.Struct, frozen=True):
    """A labelled event: a known fault.

    Attributes:
        start_s: when it began, Unix seconds.
        end_s: when its effect ended.
        service: the root cause. For a call path, the end that is the root cause: the callee, or a caller
            that calls too often.
        caller: for a call path, its caller; else None.
        kind: such as "cpu_contention"; scores are also reported by kind.
        callee: the call path's callee; None is `service`.
    """

    start_s: float
    end_s: float
    service: str
    caller: str | None = None
    kind: str = ""
    callee: str | None = None

    @property
    def path(self) -> tuple[str, str] | None:
        """Caller and callee of a fault of a call path; else None."""
        return None if self.caller is None else (self.caller, self.callee or self.service)

    def moved(self, by_s: float) -> Event:
        """Return a copy with its times moved by this number of seconds."""
        return msgspec.structs.replace(self, start_s=self.start_s + by_s, end_s=self.end_s + by_s)


@dataclass(frozen=True, eq=False)
class Recording:
    """A recording to evaluate detectors on.

    Attributes:
        snapshots: oldest first, one schema and roster.
        contexts: planned changes and troubles at the time of each snapshot.
        events: labelled events, ordered by start.
        train: training periods.
        test: test periods; disjoint from `train`.
        interval_s: seconds from one snapshot to the next.
        cpu_limits: CPU limit of services in cores, where known, for static thresholds.
        name: for tables.
        notes: what a reader of the results should know of it.

    Raises:
        SnapshotInvalid: not one context for each snapshot, snapshots out of order, or a training period
            that overlaps a test period.
    """

    snapshots: Sequence[Snapshot]
    contexts: Sequence[Context]
    events: Sequence[Event]
    train: tuple[Period, ...]
    test: tuple[Period, ...]
    interval_s: float
    cpu_limits: Mapping[str, float] = field(default_factory=dict)
    name: str = "mesh"
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.snapshots) != len(self.contexts):
            raise SnapshotInvalid(
                f"{self.name}: {len(self.snapshots)} snapshots with {len(self.contexts)} contexts; "
                "each needs one"
            )
        times = [snapshot.time_s for snapshot in self.snapshots]
        for before, after in itertools.pairwise(times):
            if after <= before:
                raise SnapshotInvalid(
                    f"{self.name}: the snapshot at {after:.0f} s follows the one at {before:.0f} s; "
                    "they must be in order, without duplicate times"
                )
        if both := overlaps(self.train, self.test):
            one, other = both[0]
            raise SnapshotInvalid(
                f"{self.name}: training {one.start_s:.0f} to {one.end_s:.0f} s overlaps the test "
                f"{other.start_s:.0f} to {other.end_s:.0f} s"
            )

    def period(self) -> Period:
        """Return the time of the recording."""
        return recorded_period([snapshot.time_s for snapshot in self.snapshots], self.interval_s)

    def training(self) -> tuple[list[Snapshot], list[Context]]:
        """Return snapshots and contexts of the training periods, for `Detector.fit`."""
        return self._within(self.train)

    def testing(self) -> tuple[list[Snapshot], list[Context]]:
        """Return snapshots and contexts of the test periods, for one `Detector.step` each."""
        return self._within(self.test)

    def test_events(self) -> list[Event]:
        """Return events that begin in a test period, and not in a hole of the recording."""
        return [event for event in self.events if within(event.start_s, self.test) and self.saw(event)]

    def saw(self, event: Event) -> bool:
        """True if a snapshot was recorded during an event, or within an interval after it."""
        return any(event.start_s <= each.time_s <= event.end_s + self.interval_s for each in self.snapshots)

    def why_not_counted(self, event: Event) -> str:
        """Return why an event counts neither in the training nor in the test; "" if it does."""
        if within(event.start_s, (*self.train, *self.test)):
            return "" if self.saw(event) else "in a hole of the recording"
        is_recorded = within(event.start_s, [self.period()])
        return "outside of training and test" if is_recorded else "outside of the recording"

    def check_measured(self) -> None:
        """Refuse a training or a test without a measured value, and a training that is too short.

        Raises:
            SnapshotInvalid: there is one.
        """
        for what, (snapshots, _) in (("training", self.training()), ("test", self.testing())):
            if not snapshots:
                raise SnapshotInvalid(f"{self.name}: no snapshot is in the {what}")
            if what == "training" and len(snapshots) < LEAST_TRAINING:
                raise SnapshotInvalid(
                    f"{self.name}: {len(snapshots)} snapshots to learn from; a detector needs at least "
                    f"{LEAST_TRAINING}, better some hundred"
                )
            if not any(
                np.isfinite(values).any()
                for each in snapshots
                for values in (each.node_features, each.edge_features)
            ):
                raise SnapshotInvalid(
                    f"{self.name}: no value was measured in the {what}, {clock(snapshots[0].time_s)} to "
                    f"{clock(snapshots[-1].time_s)}"
                )

    def averaged(self, interval_s: float) -> Recording:
        """Return the recording with one snapshot for each interval of this length, if its own is shorter.

        A value is the mean of those that were measured. A service or call path exists in an interval if it
        has a row in it. The time of an interval is its end, so no snapshot has values of its future.
        Planned changes are those of the newest snapshot. Labels and periods are unchanged.
        """
        if interval_s <= 1.05 * self.interval_s:
            return self
        times = np.array([snapshot.time_s for snapshot in self.snapshots])
        begin_s = times[0] - self.interval_s
        ends = begin_s + interval_s * np.ceil((times - begin_s) / interval_s)
        _, firsts = np.unique(ends, return_index=True)
        cuts = itertools.pairwise([*firsts.tolist(), len(times)])
        return replace(
            self,
            snapshots=[_mean(self.snapshots[a:b], float(ends[a])) for a, b in cuts],
            contexts=[self.contexts[after - 1] for after in [*firsts[1:].tolist(), len(times)]],
            interval_s=interval_s,
        )

    def in_playing_order(self) -> Recording:
        """Return the recording with the part before the training moved after its end.

        A detector sees time in one direction only. If faults were injected before the normal time, the
        earlier part is played last: all its times are moved by the same whole number of days, so the time
        of day is unchanged.
        """
        begin = min((period.start_s for period in self.train), default=None)
        if begin is None or not self.snapshots or self.snapshots[0].time_s >= begin:
            return self
        days = 1 + (self.snapshots[-1].time_s - self.snapshots[0].time_s) // _DAY_S
        shift = days * _DAY_S
        early = sum(snapshot.time_s < begin for snapshot in self.snapshots)

        def cut(periods: Iterable[Period]) -> tuple[Period, ...]:
            return (
                *(Period(max(each.start_s, begin), each.end_s) for each in periods if each.end_s > begin),
                *(
                    Period(each.start_s + shift, min(each.end_s, begin) + shift)
                    for each in periods
                    if each.start_s < begin
                ),
            )

        moved = [replace(each, time_s=each.time_s + shift) for each in self.snapshots[:early]]
        return replace(
            self,
            snapshots=[*self.snapshots[early:], *moved],
            contexts=[*self.contexts[early:], *(each.moved(shift) for each in self.contexts[:early])],
            events=[
                *(event for event in self.events if event.start_s >= begin),
                *(event.moved(shift) for event in self.events if event.start_s < begin),
            ],
            train=cut(self.train),
            test=cut(self.test),
        )

    def _within(self, periods: tuple[Period, ...]) -> tuple[list[Snapshot], list[Context]]:
        chosen = [
            (snapshot, context)
            for snapshot, context in zip(self.snapshots, self.contexts, strict=True)
            if within(snapshot.time_s, periods)
        ]
        return [snapshot for snapshot, _ in chosen], [context for _, context in chosen]


def _mean(snapshots: Sequence[Snapshot], time_s: float) -> Snapshot:
    """Return the mean of snapshots of one roster."""
    size = len(snapshots[0].roster)
    nodes, node_features = _means([(each.nodes, each.node_features) for each in snapshots])
    paths, edge_features = _means(
        [(each.edge_src.astype(np.int64) * size + each.edge_dst, each.edge_features) for each in snapshots]
    )
    source, destination = (ends.astype(np.int32) for ends in np.divmod(paths, size))
    return replace(
        snapshots[0],
        time_s=time_s,
        nodes=nodes.astype(np.int32),
        node_features=node_features,
        edge_src=source,
        edge_dst=destination,
        edge_features=edge_features,
    )


def _means(parts: Sequence[tuple[NDArray[Any], FloatArray]]) -> tuple[NDArray[Any], FloatArray]:
    """Return all keys of some tables, and the mean of each cell over the tables that have a number."""
    keys, rows = np.unique(np.concatenate([keys for keys, _ in parts]), return_inverse=True)
    values = np.concatenate([values for _, values in parts]).astype(np.float64)
    total, count = np.zeros((2, len(keys), values.shape[1]))
    np.add.at(total, rows, np.nan_to_num(values, nan=0.0))
    np.add.at(count, rows, ~np.isnan(values))
    means = np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)
    return keys, means.astype(np.float32)


def within(time_s: float, periods: Iterable[Period]) -> bool:
    """True if a time is in one of the periods."""
    return any(time_s in period for period in periods)


def recorded_period(times: Sequence[float], interval_s: float) -> Period:
    """Return the time of a recording with snapshots at these times, oldest first."""
    return Period(times[0], times[-1] + max(interval_s, 1.0))


def overlaps(some: Iterable[Period], others: Iterable[Period]) -> list[tuple[Period, Period]]:
    """Return the pairs of periods that overlap."""
    return [
        (one, other)
        for one, other in itertools.product(some, others)
        if one.start_s < other.end_s and other.start_s < one.end_s
    ]


def complete(
    whole: Period,
    events: Sequence[Event],
    train: tuple[Period, ...] | None,
    test: tuple[Period, ...] | None,
) -> tuple[tuple[Period, ...], tuple[Period, ...]]:
    """Return training and test periods; given ones are unchanged.

    With a test, the training is the longest stretch without an event outside of it. With a training, the
    test is all other time. With neither, the first half of the longest stretch without an event is the
    training, and all other time is the test, so that false alarms are also counted in normal time.

    Args:
        whole: the time of the recording.
    Returns: training and test; the training is empty if events and the test leave no time.
    """
    if train is not None:
        return train, test if test is not None else without(whole, train)
    taken = [Period(event.start_s, event.end_s) for event in events] + list(test or ())
    longest = max(without(whole, taken), key=lambda period: period.end_s - period.start_s, default=None)
    if longest is None:
        return (), test if test is not None else (whole,)
    if test is not None:
        return (longest,), test
    half = Period(longest.start_s, (longest.start_s + longest.end_s) / 2)
    return (half,), without(whole, [half])


def without(whole: Period, taken: Sequence[Period]) -> tuple[Period, ...]:
    """Return the parts of a period that are not taken, in order."""
    left, at = [], whole.start_s
    for period in (*sorted(taken, key=lambda period: period.start_s), Period(whole.end_s, whole.end_s)):
        left.append(Period(at, min(period.start_s, whole.end_s)))
        at = max(at, period.end_s)
    return tuple(period for period in left if period.end_s > period.start_s)
