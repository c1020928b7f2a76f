"""Keeps a `LiveState` up to date while somebody uses it, and none otherwise."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Protocol

from hopline_mesh.event import Event
from hopline_mesh.tagae.live import LiveState, replay

#: Intervals after the last use for which it is made anew.
_IN_USE = 40
#: Events that are taken again after an interval that they came behind of.
_MOST_EVENTS = 10_000


class Lives(Protocol):
    """What can tell how things are right now."""

    def live(self) -> LiveState:
        """From what was judged last.

        Raises:
            ModelNotReady: nothing was judged yet, or without a model.
        """


class Live:
    """Lives on the event loop of the watch; states are made on the thread of the steps.

    Args:
        judge: makes them.
        thread: on which.
        lock: is held while the judge is at work, on whatever thread.
        clock: Unix seconds.
    """

    def __init__(
        self, judge: Lives, thread: Executor, lock: asyncio.Lock, clock: Callable[[], float] = time.time
    ) -> None:
        self._judge = judge
        self._thread = thread
        self._lock = lock
        self._clock = clock
        self._state: LiveState | None = None
        self._left = 0
        self._events: deque[tuple[float, Event]] = deque(maxlen=_MOST_EVENTS)

    @property
    def now(self) -> LiveState | None:
        """The state, where there is one; to ask for it is to use it. `state` makes one."""
        if self._state is not None:
            self._left = _IN_USE
        return self._state

    async def state(self) -> LiveState:
        """The state.

        Raises:
            ModelNotReady: nothing was judged yet, or without a model.
        """
        if self._state is None:
            async with self._lock:
                if self._state is None:
                    self._state = await self._make()
        self._left = _IN_USE
        return self._state

    def take(self, event: Event) -> list[str]:
        """Have the state that there is take an event, which counts until an interval that is later.

        Returns, raises: as `LiveState.take`; nothing where there is no state.
        """
        if self._state is None:
            return []
        touched = self._state.take(event)
        self._events.append((self._clock(), event))
        return touched

    async def renew(self) -> None:
        """An interval was judged; called with the lock held."""
        if self._state is None:
            return
        self._left -= 1
        if self._left < 0:
            self._state = None
            self._events.clear()
            return
        state = await self._make()
        while self._events and self._events[0][0] <= state.time_s:
            self._events.popleft()
        replay(state, [event for _, event in self._events])
        self._state = state

    async def _make(self) -> LiveState:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._judge.live)
