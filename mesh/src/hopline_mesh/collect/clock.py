"""Two clocks that need not agree: ours, and that of Prometheus, which stamps the samples.

A question is about a moment by Prometheus' clock; a snapshot has a time by ours. Pure: times are arguments.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

#: A `Date` header has whole seconds and took its way: less than this is no difference.
TOLERANCE_S = 2.0


class Clock:
    """Follows how far Prometheus' clock is ahead of ours, and jumps of ours.

    Attributes:
        ahead_s: seconds that Prometheus' clock is ahead; 0.0 within the tolerance.
    """

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._now_s: float | None = None
        self._steady_s = 0.0
        self._stamp_s = 0.0

    def begin(self, now_s: float, steady_s: float) -> tuple[float, str]:
        """Begin an interval.

        A jump of our clock changes by as much how far the other one is ahead, so that the next question is
        about the right moment at once.

        Args:
            now_s: our clock, Unix seconds.
            steady_s: a clock that never jumps, seconds from any start.

        Returns: the time for the snapshot, later than each before (it stands still while our clock catches
            up after going back); and what is to be said about a jump, or "".
        """
        said = ""
        if self._now_s is not None:
            jump_s = now_s - self._now_s - (steady_s - self._steady_s)
            if abs(jump_s) > TOLERANCE_S:
                ahead_s = self.ahead_s - jump_s
                self.ahead_s = ahead_s if abs(ahead_s) > TOLERANCE_S else 0.0
            if now_s <= self._stamp_s:
                said = (
                    f"our clock is {self._stamp_s - now_s:.0f} s behind the last snapshot; "
                    "times of snapshots stand still until it has caught up"
                )
            elif jump_s > TOLERANCE_S:
                said = f"our clock went ahead by {jump_s:.0f} s, or this process was stopped for as long"
        self._now_s, self._steady_s = now_s, steady_s
        self._stamp_s = now_s if now_s > self._stamp_s else self._stamp_s + 0.001
        return self._stamp_s, said

    def compare(self, differences: Sequence[float]) -> None:
        """Learn from the answers of one interval.

        Args:
            differences: of each answer that had a `Date`: that minus our clock at its arrival.
        """
        if differences:
            # Dates are cut to whole seconds: half a second too early on average.
            ahead_s = statistics.median(differences) + 0.5
            self.ahead_s = ahead_s if abs(ahead_s) > TOLERANCE_S else 0.0
