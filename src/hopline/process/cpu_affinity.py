"""Keeps background work, such as a shadow candidate, off the CPUs that serve requests.

Low priority alone does not do that: where background work ran, the CPU's caches hold its memory, and
Linux moves threads between CPUs, so that a serving thread may wake up with a cold cache. Background work is
therefore pinned to half of the CPUs, and a serving thread that wakes it leaves that half first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Collection

_AVAILABLE = sys.platform == "linux" and hasattr(os, "sched_setaffinity")
_current = ctypes.CDLL(None).sched_getcpu if _AVAILABLE else lambda: -1


def background_cpus(allowed: Collection[int]) -> set[int]:
    """The CPUs for background work: the last half of those allowed; empty where only one is allowed."""
    return set(sorted(allowed)[-(len(allowed) // 2) :]) if len(allowed) > 1 else set()


def pin_to_background_cpus() -> set[int]:
    """Pin this thread, and all threads that it starts from now on, to the background CPUs.

    Returns: the CPUs that were allowed before, for `restore_cpus`; empty where nothing was done.
    """
    if not _AVAILABLE:
        return set()
    allowed = os.sched_getaffinity(0)
    if not (background := background_cpus(allowed)):
        return set()
    os.sched_setaffinity(0, background)
    return allowed


def restore_cpus(allowed: Collection[int]) -> None:
    """Let all threads of this process run on these CPUs again."""
    if not _AVAILABLE:
        return
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it may have ended by now
            os.sched_setaffinity(int(thread), allowed)


def leave_cpu() -> bool:
    """Move this thread off the background CPUs, now; it may come back later.

    Returns: True if the thread was on one of them.
    """
    if not _AVAILABLE:
        return False
    allowed = os.sched_getaffinity(0)
    background = background_cpus(allowed)
    if _current() not in background:
        return False
    os.sched_setaffinity(0, allowed - background)  # moves it immediately
    os.sched_setaffinity(0, allowed)
    return True
