"""Requests that wait, by priority: who is next, who came first, who gives way."""

from __future__ import annotations

from collections import OrderedDict
from typing import TypeAlias, TypeVar

from hopline.errors import Overloaded
from hopline.scheduling.item import Item
from hopline.scheduling.policy import BatchPolicy, first_lane, lane_to_displace

I = TypeVar("I", bound=Item)  # noqa: E741 - the field's letter for an item type
#: Request -> the predicted microseconds that it holds of the queue, in order of arrival.
Lane: TypeAlias = OrderedDict[I, int]
Lanes: TypeAlias = tuple[Lane[I], Lane[I], Lane[I]]


def first_of(lane: Lane[I]) -> I:
    """The first request of a lane that has one."""
    return next(iter(lane))


def next_lane(lanes: Lanes[I]) -> Lane[I] | None:
    """The lane that goes next; None where nothing waits."""
    high, normal, low = lanes
    if not (high or low):
        return normal or None
    heads = [first_of(lane).enqueued if lane else None for lane in lanes]
    return lanes[first_lane(heads)]


def came_first(lanes: Lanes[I]) -> float | None:
    """When the request came that has waited longest; None where nothing waits."""
    return min((first_of(lane).enqueued for lane in lanes if lane), default=None)


def who_leaves(
    lanes: Lanes[I],
    policy: BatchPolicy,
    queued: tuple[int, int],
    held_us: int,
    item: I,
    retry_after_s: float,
) -> list[I]:
    """The requests that have to leave a queue so that another one may join it.

    Args:
        queued: microseconds and rows that are predicted for what waits.
        held_us: predicted for `item`, which would join.
        retry_after_s: to tell, where it may not.

    Raises:
        Overloaded: there is no room, and nobody whom it would overtake.
    """
    leaving: list[I] = []
    left_us, left_rows = queued
    walks = [reversed(lane) for lane in lanes]
    tails = [next(walk, None) for walk in walks]
    while why := policy.too_full(left_us, held_us, left_rows, item.rows, item.lane):
        came = [each.enqueued if each is not None else None for each in tails]
        lane = lane_to_displace(came, item.lane, item.enqueued)
        last = tails[lane] if lane is not None else None
        if lane is None or last is None:
            raise Overloaded(why, retry_after_s=retry_after_s)
        tails[lane] = next(walks[lane], None)
        left_us -= lanes[lane][last]
        left_rows -= last.rows
        leaving.append(last)
    return leaving
