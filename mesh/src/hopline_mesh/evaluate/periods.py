"""Chooses the training and test periods if a folder does not define them.

With a test, the training is the longest stretch without an event outside of it. With a training, the test
is all other time. With neither, the first half of the longest stretch without an event is the training, and
all other time is the test, so that false alarms are also counted in normal time.
"""

from __future__ import annotations

from collections.abc import Sequence

from hopline_mesh.evaluate.recording import Event, Period


def complete(
    whole: Period,
    events: Sequence[Event],
    train: tuple[Period, ...] | None,
    test: tuple[Period, ...] | None,
) -> tuple[tuple[Period, ...], tuple[Period, ...]]:
    """Return training and test periods; given ones are unchanged.

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
    left = []
    at = whole.start_s
    for period in sorted(taken, key=lambda period: period.start_s):
        if period.start_s > at:
            left.append(Period(at, min(period.start_s, whole.end_s)))
        at = max(at, period.end_s)
        if at >= whole.end_s:
            break
    if at < whole.end_s:
        left.append(Period(at, whole.end_s))
    return tuple(period for period in left if period.end_s > period.start_s)
