"""Decides whether a process hangs: one rule for workers, isolated models and generative models.

    no message for hang_s, and it neither runs nor waits for a processor or a disk ─► it hangs
    no progress for hang_s since something was overdue ────────────────────────────► it hangs

Silence alone proves nothing: a process that computes may hold its event loop for seconds, and for longer
where other programs take the processor. Messages alone prove nothing either: the event loop may turn while
the thread that computes is stuck.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

#: Longest time between two looks, and between two messages of a process that lives, in seconds.
_LOOK_S, _REPORT_S = 0.25, 1.0
#: States of a thread that will continue (proc(5)): it runs or waits for a processor, or for a disk.
_WORKING = frozenset("RD")


class Silence:
    """Counts looks since the last message and the last progress of a process.

    Looks are counted instead of seconds: where this process was stopped as well, no time has passed.

    Args:
        pid: of the process.
        hang_s: seconds after which it hangs, by one of the two rules.
        activity: as `activity_of`.

    Attributes:
        pid: of the process.
        period_s: seconds between two looks.
    """

    def __init__(
        self, pid: int, hang_s: float, activity: Callable[[int], tuple[int, bool]] | None = None
    ) -> None:
        self.period_s = look_s(hang_s)
        self.pid = pid
        self._hang_s = hang_s
        self._activity = activity or activity_of
        self._ticks = -1
        self._num_silent = self._num_idle = self._num_stuck = 0
        self._due = math.inf

    @property
    def is_long(self) -> bool:
        """True if the process was silent for most of the time after which it would hang."""
        return 2 * self._num_silent * self.period_s >= self._hang_s

    def reset(self, *, is_progress: bool = True) -> None:
        """Begin to count again: a message came, with `is_progress` one that shows that work was done."""
        self._num_silent = self._num_idle = 0
        if is_progress:
            self._num_stuck, self._due = 0, math.inf

    def look(self, deadlines: Iterable[float], now: float) -> bool:
        """Look once; True if the process hangs.

        Args:
            deadlines: of work that it has not ended, on the clock of `now`.
        """
        self._num_silent += 1
        self._num_stuck += 1
        is_silent = self._num_silent * self.period_s >= _REPORT_S
        due = min(deadlines, default=math.inf)
        if due == math.inf and not is_silent:  # it has nothing to do, and reports
            self._num_stuck, self._due = 0, math.inf
        self._due = min(self._due, due)
        if self._num_stuck * self.period_s >= self._hang_s and now >= self._due + self._hang_s:
            return True
        if not is_silent:
            return False
        ticks, is_working = self._activity(self.pid)
        self._num_idle = 0 if is_working or ticks != self._ticks else self._num_idle + 1
        self._ticks = ticks
        return self._num_idle * self.period_s >= self._hang_s


def look_s(hang_s: float) -> float:
    """Seconds between two looks."""
    return min(_LOOK_S, hang_s / 4)


def activity_of(pid: int) -> tuple[int, bool]:
    """Processor time of a process in ticks, and True if it works.

    It works if a thread runs, or waits only for a processor or a disk. One that has ended does not hang.
    """
    try:
        stats = [file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # a thread has ended meanwhile
        return 0, True
    # The name before the last parenthesis may have any character.
    fields = [stat.rpartition(")")[2].split() for stat in stats]
    ticks = sum(int(user) + int(system) for user, system in (field[11:13] for field in fields))
    return ticks, not fields or any(field[0] in _WORKING for field in fields)
