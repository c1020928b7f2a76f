"""What is training and what is test, where a folder does not say.

Given a test, the training is the longest stretch without an event outside of it. Given a training, the test
is all the rest. Given neither, the longest stretch without an event is cut in half: the first half is the
training, the rest of the recording is the test, so that false alarms are counted in normal time too.
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
    """Training and test periods; what is given stays as it is.

    Args:
        whole: the time of the recording.
    Returns: training and test; the training is empty where events and the test leave no time at all.
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
    """What is left of a period, in order."""
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
