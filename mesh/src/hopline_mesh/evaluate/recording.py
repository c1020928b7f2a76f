"""A recorded mesh: its snapshots, planned changes and troubles, and labelled events.

Knows values in memory and the split into training and test, but no files or detectors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from hopline_mesh.changes import Context
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.snapshot import Snapshot

_DAY_S = 86_400.0


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
        """Return events that begin in a test period."""
        return [event for event in self.events if within(event.start_s, self.test)]

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


def within(time_s: float, periods: Iterable[Period]) -> bool:
    """Whether a time is in one of the periods."""
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
