"""Keeps what only works beside, such as a candidate that answers copies, and those who serve apart.

It takes nothing from them by its priority. But wherever it ran, the processor's caches hold its memory, and
Linux moves threads out of each other's way, which costs whoever moves a cold cache. Bound to half of the
processors, with those who serve on the others at the moment when it awakes, it costs them least.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Collection

_AVAILABLE = sys.platform == "linux" and hasattr(os, "sched_setaffinity")
_current = ctypes.CDLL(None).sched_getcpu if _AVAILABLE else lambda: -1


def processors_aside(allowed: Collection[int]) -> set[int]:
    """Those for work that nobody waits for: the last half, so that much of it has room; empty for one."""
    return set(sorted(allowed)[-(len(allowed) // 2) :]) if len(allowed) > 1 else set()


def keep_aside() -> set[int]:
    """Bind this thread, and those that it starts from now on, to those processors.

    Returns: where it could run before, for `come_back`; empty where nothing was done.
    """
    if not _AVAILABLE:
        return set()
    allowed = os.sched_getaffinity(0)
    aside = processors_aside(allowed)
    if not aside:
        return set()
    os.sched_setaffinity(0, aside)
    return allowed


def come_back(allowed: Collection[int]) -> None:
    """Let all threads of this process run on these processors again."""
    if not _AVAILABLE:
        return
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it may have ended by now
            os.sched_setaffinity(int(thread), allowed)


def make_room() -> bool:
    """Go on elsewhere if this thread is on one of those; whether it was. It may come back later."""
    if not _AVAILABLE:
        return False
    allowed = os.sched_getaffinity(0)
    aside = processors_aside(allowed)
    if _current() not in aside:
        return False
    os.sched_setaffinity(0, allowed - aside)  # moves it at once
    os.sched_setaffinity(0, allowed)
    return True
