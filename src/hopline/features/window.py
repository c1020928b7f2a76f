"""Counts of two kinds of events over the last seconds. Pure: the clock is an argument."""

from __future__ import annotations


class SlidingWindow:
    """Counts events of kind 0 and of kind 1 in the last `span_s` seconds.

    Time is divided into slices that are dropped as a whole, so an event is included for between
    `span_s × (1 − 1 / num_slices)` and `span_s`. The cost of adding and reading does not depend on the
    number of events.

    Args:
        span_s: length of the window, seconds.
        num_slices: with more slices, counts fall more evenly.
    """

    __slots__ = ("_current", "_num_slices", "_slice_s", "_slices", "totals")

    def __init__(self, span_s: float, num_slices: int = 10) -> None:
        self._slice_s = span_s / num_slices
        self._num_slices = num_slices
        self.clear()

    def clear(self) -> None:
        """Drop all events."""
        self._slices = [[0, 0] for _ in range(self._num_slices)]
        self._current: int | None = None
        #: [kind 0, kind 1]; as of the last `add` or `advance`.
        self.totals = [0, 0]

    def add(self, kind: int, now: float) -> None:
        """Count one event of kind 0 or 1."""
        current = self.advance(now)
        self._slices[current % self._num_slices][kind] += 1
        self.totals[kind] += 1

    def advance(self, now: float) -> int:
        """Drop old events, so that `totals` are those of `now`; return the slice's number."""
        current = int(now / self._slice_s)
        last = self._current
        if last is None:
            self._current = current
        elif current > last:
            for number in range(last + 1, min(current, last + self._num_slices) + 1):
                old = self._slices[number % self._num_slices]
                self.totals[0] -= old[0]
                self.totals[1] -= old[1]
                old[0] = old[1] = 0
            self._current = current
        else:
            current = last  # the clock did not advance, or was read before
        return current
