"""The ends of intervals: on a grid of the wall clock, without drift, also if clocks jump.

The grid is the same after a restart. A missed interval is skipped and counted, never repeated later. Knows
clocks, and not what happens at a tick.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

#: Tolerance for clocks and rounding, as a share of an interval.
_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class Tick:
    """The end of one interval.

    Attributes:
        wall_s: time of the wall clock, used for queries, Unix seconds.
        time_s: time of the interval: that of the wall clock, but always later than the previous tick.
        skipped: number of ticks that were left out before it.
        jump_s: by how much the wall clock was set since the previous tick; else 0.0.
    """

    wall_s: float
    time_s: float
    skipped: int = 0
    jump_s: float = 0.0


class Ticks:
    """The ticks of a grid.

    If the wall clock is set back, no time is repeated: the time of intervals runs at half speed until the
    clock has caught up. If the clock is set forward, or the machine slept, intervals are left out.

    Args:
        interval_s: from one tick to the next.
        last_s: time of the newest known interval; -inf for none.
        wall, monotonic: clocks, seconds.
        speed: seconds of these clocks per real second.
    """

    def __init__(
        self,
        interval_s: float,
        last_s: float = -math.inf,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        speed: float = 1.0,
    ) -> None:
        self._speed = speed
        self._interval_s = interval_s
        self._wall = wall
        self._monotonic = monotonic
        self._last_s = last_s
        #: number of the newest tick on the grid
        self._number = self._at(wall())
        self._is_first = True
        self._seen = (wall(), monotonic())

    def wait_s(self) -> float:
        """Return the real seconds until the next tick is due; 0.0 if it is due."""
        if self._wall() < (self._number - 0.5) * self._interval_s:  # the clock was set back
            self._number = self._at(self._wall())
        left = (self._number + 1) * self._interval_s - self._wall()
        return left / self._speed if left > _TOLERANCE * self._interval_s else 0.0

    def take(self) -> Tick:
        """Return the tick that is due. Call it when `wait_s` is 0."""
        wall, monotonic = self._wall(), self._monotonic()
        elapsed = monotonic - self._seen[1]
        jump = wall - self._seen[0] - elapsed
        if abs(jump) < self._interval_s / 2:  # clocks are adjusted by small amounts all the time
            jump = 0.0
        number = self._at(wall)
        # Count ticks that were missed by being late, not those that the clock jumped over.
        late = number - self._number if jump == 0.0 else round(elapsed / self._interval_s)
        skipped = 0 if self._is_first else max(0, late - 1)
        self._is_first = False
        self._number = number
        self._seen = (wall, monotonic)
        on_grid = number * self._interval_s
        self._last_s = max(on_grid, self._last_s + self._interval_s / 2)
        return Tick(on_grid, self._last_s, skipped, jump)

    def _at(self, wall_s: float) -> int:
        # A sleep may end slightly early, and quotients of floats are not exact.
        return math.floor(wall_s / self._interval_s + _TOLERANCE)
