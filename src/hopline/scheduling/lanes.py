"""Requests that wait, by priority: which is next, which came first, which give way."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias

from hopline.errors import Overloaded
from hopline.scheduling.policy import BatchPolicy, first_lane, lane_to_displace
from hopline.scheduling.work import Work

#: Request -> the predicted microseconds that it holds of the queue, in order of arrival.
Lane: TypeAlias = OrderedDict[Work, int]
Lanes: TypeAlias = tuple[Lane, Lane, Lane]


def first_of(lane: Lane) -> Work:
    """The first request of a lane that has one."""
    return next(iter(lane))


def next_lane(lanes: Lanes) -> Lane | None:
    """The lane that goes next; None where nothing waits."""
    high, normal, low = lanes
    if not (high or low):
        return normal or None
    heads = [first_of(lane).entered if lane else None for lane in lanes]
    return lanes[first_lane(heads)]


def came_first(lanes: Lanes) -> float | None:
    """Arrival time of the request that has waited longest; None where nothing waits."""
    return min((first_of(lane).entered for lane in lanes if lane), default=None)


def displaced_by(
    lanes: Lanes,
    policy: BatchPolicy,
    queued: tuple[int, int],
    held_us: int,
    work: Work,
    retry_after_s: float,
) -> list[Work]:
    """The requests that have to leave a queue so that another one may join it.

    Args:
        queued: microseconds and rows that are predicted for what waits.
        held_us: predicted for `work`, which would join.
        retry_after_s: for the error.

    Raises:
        Overloaded: there is no room, and no request that is less urgent.
    """
    leaving: list[Work] = []
    left_us, left_rows = queued
    walks = [reversed(lane) for lane in lanes]
    tails = [next(walk, None) for walk in walks]
    while why := policy.too_full(left_us, held_us, left_rows, work.rows, work.lane):
        came = [each.entered if each is not None else None for each in tails]
        lane = lane_to_displace(came, work.lane, work.entered)
        last = tails[lane] if lane is not None else None
        if lane is None or last is None:
            raise Overloaded(why, retry_after_s=retry_after_s)
        tails[lane] = next(walks[lane], None)
        left_us -= lanes[lane][last]
        left_rows -= last.rows
        leaving.append(last)
    return leaving
