"""Which streams of a connection there were, and which of those may still be sent to (RFC 9113, 5.1).

A stream that was reset here while its client was still sending may get frames that were in flight. A
frame for any other closed stream is a fault of the client.
"""

from __future__ import annotations

from collections import deque

#: Ended streams whose frames may still come; the oldest are forgotten.
_MAX_DISCARDED = 1024
#: Gaps between stream ids that are remembered; clients leave none.
_MAX_GAPS = 64


class ClosedStreams:
    """The closed streams of a connection, and how each was closed.

    Attributes:
        last: the largest id that was used; 0 before the first.
    """

    __slots__ = ("_discarded", "_gaps", "last")

    def __init__(self) -> None:
        self.last = 0
        self._discarded: dict[int, None] = {}
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_MAX_GAPS)

    def open(self, number: int) -> None:
        """A new stream, of a larger id than all before it."""
        if number > self.last + 2:
            self._gaps.append((self.last, number))
        self.last = number

    def is_idle(self, number: int) -> bool:
        """Whether a client has not used the stream, or cannot."""
        return number > self.last or number % 2 == 0

    def was_skipped(self, number: int) -> bool:
        """Whether a larger id was used instead of this one."""
        return any(start < number < end for start, end in self._gaps)

    def discard(self, number: int) -> None:
        """The stream was reset here, and its client may not know yet."""
        if len(self._discarded) >= _MAX_DISCARDED:
            del self._discarded[next(iter(self._discarded))]
        self._discarded[number] = None

    def takes(self, number: int, *, is_last: bool) -> bool:
        """Whether a frame may still come for a closed stream; behind the last one, none may."""
        if number not in self._discarded:
            return False
        if is_last:
            del self._discarded[number]
        return True
