"""One timer for many things that are all due the same time after they began."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Overdue(Generic[T]):
    """Reports each item when it has been here for `after_s`.

    Nothing is removed early: an item that has ended by then is reported as well, and must be ignored.
    A timer for each thing would be set and cancelled nearly always unused, which costs more than all of the
    bookkeeping of a fetch.

    Args:
        after_s: seconds.
        tell: called on the event loop with the thing.
    """

    __slots__ = ("_after_s", "_tell", "_timer", "_waiting")

    def __init__(self, after_s: float, tell: Callable[[T], object]) -> None:
        self._after_s = after_s
        self._tell = tell
        self._waiting: deque[tuple[float, T]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, thing: T, loop: asyncio.AbstractEventLoop) -> None:
        """The time of `thing` begins."""
        due = loop.time() + self._after_s
        self._waiting.append((due, thing))
        if self._timer is None:
            self._timer = loop.call_at(due, self._ring, loop)

    def clear(self) -> None:
        """Report nothing more."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        waiting = self._waiting
        # The first is due by definition, whatever the clock's resolution; others may be due with it.
        while waiting:
            due, thing = waiting[0]
            if due > now + 1e-4:
                break
            waiting.popleft()
            self._tell(thing)
        if waiting and self._timer is None:
            self._timer = loop.call_at(waiting[0][0], self._ring, loop)
