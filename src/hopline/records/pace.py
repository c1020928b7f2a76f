"""How a thread works beside the event loop without holding it up.

A thread that runs Python gives up the GIL only after 5 ms (sys.getswitchinterval), which the loop then
waits before it takes the next request. This one rests after every tenth of a millisecond of work. A sleep
of 0 would not do: the GIL is let go, and had again before a waiting thread has woken up.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_WORK_S = 100e-6
_REST_S = 100e-6


class Pace:
    """Rests when it is time to; call it between pieces of work.

    Args:
        clock, sleep: for tests.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._until = 0.0

    def __call__(self) -> None:
        """Go on, or rest first."""
        if self._clock() >= self._until:
            self._sleep(_REST_S)
            self._until = self._clock() + _WORK_S
