"""Work on slots by two threads, where there is enough of it to wake a second one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

#: Series from which a second thread is worth waking. Most of the work is waiting for memory: at 80,000 two
#: threads took as long as one (measured).
_SHARED_FROM = 200_000

_Result = TypeVar("_Result")


@functools.cache
def _second() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, thread_name_prefix="mesh-series")


def in_parts(series: int, size: int, work: Callable[[int, int, int], _Result]) -> list[_Result]:
    """Do `work(begin, end, part)` for all slots, in one part or in two at once.

    Args:
        series: how many there are in all.
        size: slots; work must release the GIL, and not touch slots outside `begin` to `end`.
    """
    if series < _SHARED_FROM:
        return [work(0, size, 0)]
    other = _second().submit(work, size // 2, size, 1)
    first = work(0, size // 2, 0)
    return [first, other.result()]
