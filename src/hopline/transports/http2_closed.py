"""The closed streams of a connection, and which of them may still receive frames (RFC 9113, 5.1).

If the server ended a stream while its client was still sending, frames may still arrive. A frame for any
other closed stream is an error of the client.
"""

from __future__ import annotations

from collections import deque

#: Limit of ended streams whose frames may still arrive; the oldest are dropped.
_MAX_DISCARDED = 1024
#: Limit of stored gaps between stream ids; usual clients leave none.
_MAX_GAPS = 64


class ClosedStreams:
    """The stream ids that a connection has used.

    Attributes:
        last: the largest used id; 0 before the first.
    """

    __slots__ = ("_discarded", "_gaps", "last")

    def __init__(self) -> None:
        self.last = 0
        self._discarded: dict[int, None] = {}
        self._gaps: deque[tuple[int, int]] = deque(maxlen=_MAX_GAPS)

    def open(self, number: int) -> None:
        """Add a new stream, with a larger id than all before."""
        if number > self.last + 2:
            self._gaps.append((self.last, number))
        self.last = number

    def is_idle(self, number: int) -> bool:
        """True if a client has not used the stream, or cannot use it."""
        return number > self.last or number % 2 == 0

    def was_skipped(self, number: int) -> bool:
        """True if the id was skipped in favour of a larger one."""
        return any(start < number < end for start, end in self._gaps)

    def discard(self, number: int) -> None:
        """Mark a stream that the server ended before its client did."""
        if len(self._discarded) >= _MAX_DISCARDED:
            del self._discarded[next(iter(self._discarded))]
        self._discarded[number] = None

    def takes(self, number: int, *, is_last: bool) -> bool:
        """True if a frame may still arrive for a closed stream; not after the last one."""
        if number not in self._discarded:
            return False
        if is_last:
            del self._discarded[number]
        return True
