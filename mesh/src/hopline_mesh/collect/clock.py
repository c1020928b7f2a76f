"""Two clocks that may differ: ours, and that of Prometheus, which sets the times of samples.

A query has a time by Prometheus' clock; a snapshot has a time by ours. Pure: times are arguments.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

#: Differences below this are ignored, because a `Date` header has whole seconds and a delay.
TOLERANCE_S = 2.0


class Clock:
    """Measures how far Prometheus' clock is ahead of ours, and jumps of ours.

    Attributes:
        ahead_s: seconds that Prometheus' clock is ahead; 0.0 within the tolerance.
    """

    def __init__(self) -> None:
        self.ahead_s = 0.0
        self._now_s: float | None = None
        self._steady_s = 0.0
        self._snapshot_s = 0.0

    def begin(self, now_s: float, steady_s: float) -> tuple[float, str]:
        """Begin an interval.

        A jump of our clock changes the difference by the same amount, so the next query has the right time
        immediately.

        Args:
            now_s: our clock, Unix seconds.
            steady_s: a clock that never jumps, seconds from any start.

        Returns: the time for the snapshot, later than all previous ones (it stands still while our clock
            catches up after it was set back); and a text about a jump, or "".
        """
        text = ""
        if self._now_s is not None:
            jump_s = now_s - self._now_s - (steady_s - self._steady_s)
            if abs(jump_s) > TOLERANCE_S:
                ahead_s = self.ahead_s - jump_s
                self.ahead_s = ahead_s if abs(ahead_s) > TOLERANCE_S else 0.0
            if now_s <= self._snapshot_s:
                text = (
                    f"our clock is {self._snapshot_s - now_s:.0f} s behind the last snapshot; "
                    "times of snapshots stand still until it has caught up"
                )
            elif jump_s > TOLERANCE_S:
                text = f"our clock went ahead by {jump_s:.0f} s, or this process was stopped for that time"
        self._now_s, self._steady_s = now_s, steady_s
        self._snapshot_s = now_s if now_s > self._snapshot_s else self._snapshot_s + 0.001
        return self._snapshot_s, text

    def compare(self, differences: Sequence[float]) -> None:
        """Update the difference from the responses of one interval.

        Args:
            differences: for each response with a `Date`: the date minus our clock at its arrival.
        """
        if differences:
            # Dates are cut to whole seconds, which is half a second too early on average.
            ahead_s = statistics.median(differences) + 0.5
            self.ahead_s = ahead_s if abs(ahead_s) > TOLERANCE_S else 0.0
