"""The time of a stream's work; tests put their own in its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clock:
    """The wall clock and waiting.

    Attributes:
        now: seconds since 1970.
        sleep: waits for seconds.
    """

    now: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
