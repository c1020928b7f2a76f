"""When the next interval ends: on a grid of the wall clock, without drift, whatever the clocks do.

The grid is the same after a restart. An interval that cannot be kept is left out and counted, never made up
for. Knows clocks; nothing of what is done at a tick.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Share of an interval that counts as nothing.
_HAIR = 1e-3


@dataclass(frozen=True, slots=True)
class Tick:
    """One interval's end.

    Attributes:
        wall_s: the wall clock's time of it, by which others are asked, Unix seconds.
        time_s: the interval's own time: that of the wall clock, but always later than the tick before.
        skipped: ticks that were left out before it.
        jump_s: by how much the wall clock was set since the tick before; 0.0 where it was not.
    """

    wall_s: float
    time_s: float
    skipped: int = 0
    jump_s: float = 0.0


class Ticks:
    """The ticks of a grid.

    A wall clock that is set back makes no time that was there before: the intervals' own time goes on at
    half its speed until the clock has caught up. One that is set forward, or a machine that slept, leaves
    intervals out.

    Args:
        interval_s: from one tick to the next.
        last_s: time of the newest interval that is known; -inf where there is none.
        wall, monotonic: clocks, seconds.
    """

    def __init__(
        self,
        interval_s: float,
        last_s: float = -math.inf,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval_s = interval_s
        self._wall = wall
        self._monotonic = monotonic
        self._last_s = last_s
        #: number of the grid's newest tick
        self._number = self._at(wall())
        self._is_first = True
        self._seen = (wall(), monotonic())

    def wait_s(self) -> float:
        """Seconds until the next tick is due; 0.0 where it is."""
        if self._wall() < (self._number - 0.5) * self._interval_s:  # the clock was set back
            self._number = self._at(self._wall())
        left = (self._number + 1) * self._interval_s - self._wall()
        return left if left > _HAIR * self._interval_s else 0.0

    def take(self) -> Tick:
        """The tick that is due. To be called when `wait_s` is 0."""
        wall, monotonic = self._wall(), self._monotonic()
        elapsed = monotonic - self._seen[1]
        jump = wall - self._seen[0] - elapsed
        if abs(jump) < self._interval_s / 2:  # clocks are trimmed all the time
            jump = 0.0
        number = self._at(wall)
        # What was missed by being late; what the clock jumped over never was.
        late = number - self._number if jump == 0.0 else round(elapsed / self._interval_s)
        skipped = 0 if self._is_first else max(0, late - 1)
        self._is_first = False
        self._number = number
        self._seen = (wall, monotonic)
        on_grid = number * self._interval_s
        self._last_s = max(on_grid, self._last_s + self._interval_s / 2)
        return Tick(on_grid, self._last_s, skipped, jump)

    def _at(self, wall_s: float) -> int:
        # A sleep may end a hair before its time, and quotients of floats are no whole numbers.
        return math.floor(wall_s / self._interval_s + _HAIR)
