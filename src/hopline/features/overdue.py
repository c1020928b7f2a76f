"""One timer for many items with the same delay."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Overdue(Generic[T]):
    """Calls `notify` with each item `after_s` seconds after it was added.

    Items are not removed early: `notify` is also called for an item that has ended, and must ignore it. A
    timer per item would nearly always be set and cancelled unused, which costs more than all bookkeeping of
    a fetch.

    Args:
        after_s: delay, seconds.
        notify: called on the event loop with the item.
    """

    __slots__ = ("_after_s", "_notify", "_timer", "_waiting")

    def __init__(self, after_s: float, notify: Callable[[T], object]) -> None:
        self._after_s = after_s
        self._notify = notify
        self._waiting: deque[tuple[float, T]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, thing: T, loop: asyncio.AbstractEventLoop) -> None:
        """Add an item; its delay begins now."""
        due = loop.time() + self._after_s
        self._waiting.append((due, thing))
        if self._timer is None:
            self._timer = loop.call_at(due, self._ring, loop)

    def clear(self) -> None:
        """Drop all items."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        waiting = self._waiting
        # The first is due, regardless of the clock's resolution; others may be due too.
        while waiting:
            due, thing = waiting[0]
            if due > now + 1e-4:
                break
            waiting.popleft()
            self._notify(thing)
        if waiting and self._timer is None:
            self._timer = loop.call_at(waiting[0][0], self._ring, loop)
