"""Pauses a thread so that it does not delay the event loop.

A thread that runs Python gives up the GIL only after 5 ms (sys.getswitchinterval), for which the loop waits
before it can read the next request. This thread pauses after every tenth of a millisecond of work. A sleep
of 0 is not enough: the GIL is released, and taken again before a waiting thread has woken up.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_WORK_S = 100e-6
_REST_S = 100e-6


class Pace:
    """Sleeps when a pause is due; call it between pieces of work."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._until = 0.0

    def __call__(self) -> None:
        """Sleep if a pause is due."""
        if self._clock() >= self._until:
            self._sleep(_REST_S)
            self._until = self._clock() + _WORK_S
