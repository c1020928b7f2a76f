"""Distinguishes a silent process that hangs from one that computes.

A process reports once a second. An engine may hold it for longer: a step of a large model over a long
prompt takes seconds, and more where other programs take the processor. So silence alone is no proof.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

#: Between looks, in seconds.
_LOOK_S = 0.5
#: States of a thread that will continue (proc(5)): it runs or waits for a processor, or for a disk.
_WORKING = frozenset("RD")


class Activity(NamedTuple):
    """Present activity of a process.

    Attributes:
        ticks: processor time that it has used.
        is_working: whether a thread runs, or waits only for a processor or a disk.
    """

    ticks: int
    is_working: bool


class Silence:
    """Counts looks since the last message of a process.

    Looks are counted instead of seconds: where this process was stopped as well, no time has passed.

    Args:
        pid: of the process.
        hang_s: seconds of silence after which it hangs, if it does nothing or lets deadlines pass.
        activity: reads what it does.

    Attributes:
        pid: of the process.
        period_s: seconds between two looks.
    """

    def __init__(self, pid: int, hang_s: float, activity: Callable[[int], Activity] | None = None) -> None:
        self.period_s = min(_LOOK_S, hang_s / 4)
        self.pid = pid
        self._hang_s = hang_s
        self._activity = activity or activity_of
        self._ticks = -1
        self._num_silent = self._num_idle = 0
        self._due = math.inf

    @property
    def is_long(self) -> bool:
        """True if the process was silent for most of the time after which it would hang."""
        return 2 * self._num_silent * self.period_s >= self._hang_s

    def heard(self) -> None:
        """A message came."""
        self._num_silent = self._num_idle = 0
        self._due = math.inf

    def look(self, deadlines: Iterable[float], now: float) -> bool:
        """Look once; whether the process hangs.

        Args:
            deadlines: of texts that it has not ended, on the clock of `now`.
        """
        self._num_silent += 1
        self._due = min(self._due, *deadlines, math.inf)
        if self._num_silent * self.period_s < 1.0:  # it reports once a second
            return False
        ticks, is_working = self._activity(self.pid)
        self._num_idle = 0 if is_working or ticks != self._ticks else self._num_idle + 1
        self._ticks = ticks
        if self._num_idle * self.period_s >= self._hang_s:
            return True
        return self._num_silent * self.period_s >= self._hang_s and now >= self._due + self._hang_s


def activity_of(pid: int) -> Activity:
    """Activity of a process; one that has ended does not hang."""
    try:
        stats = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has ended meanwhile
        return Activity(0, True)
    # The name before the last parenthesis may have any character.
    fields = [stat.rpartition(")")[2].split() for stat in stats]
    ticks = sum(int(user) + int(system) for user, system in (field[11:13] for field in fields))
    return Activity(ticks, not fields or any(field[0] in _WORKING for field in fields))
