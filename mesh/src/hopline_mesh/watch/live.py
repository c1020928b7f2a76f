"""Keeps a `LiveState` up to date while clients use it, and releases it afterwards."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from hopline_mesh.detect.live import LiveState, replay
from hopline_mesh.event import Event
from hopline_mesh.watch.judge import Judge

#: Intervals after the last use for which the state is kept up to date.
_INTERVALS_IN_USE = 40
#: Maximum number of recent events that are applied again to the state of a new interval.
_MAX_EVENTS = 10_000


class Live:
    """Deviations between intervals, on the event loop; states are created on the thread of the steps.

    Args:
        judge: creates states.
        thread: the thread of the steps.
        lock: held while the judge works, on any thread.
        clock: Unix seconds.
    """

    def __init__(
        self,
        judge: Judge,
        thread: Executor,
        lock: asyncio.Lock,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._judge = judge
        self._thread = thread
        self._lock = lock
        self._clock = clock
        self._state: LiveState | None = None
        self._left = 0
        self._events: deque[tuple[float, Event]] = deque(maxlen=_MAX_EVENTS)

    @property
    def now(self) -> LiveState | None:
        """The state, or None; reading it counts as use. `state` creates one."""
        if self._state is not None:
            self._left = _INTERVALS_IN_USE
        return self._state

    async def state(self) -> LiveState:
        """Return the state; create it if it is missing.

        Raises:
            ModelNotReady: there is no verdict yet.
        """
        if self._state is None:
            async with self._lock:
                if self._state is None:
                    self._state = await self._make()
        self._left = _INTERVALS_IN_USE
        return self._state

    def take(self, event: Event) -> list[str]:
        """Apply an event to the state; it stays in effect until a later interval.

        Returns, raises: see `LiveState.take`; [] if there is no state.
        """
        if self._state is None:
            return []
        touched = self._state.take(event)
        self._events.append((self._clock(), event))
        return touched

    async def renew(self) -> None:
        """Update the state to the newest interval. Call it with the lock held."""
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
