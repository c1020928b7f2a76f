"""Output of one HTTP/2 connection: its frames, its window, and answers that its client has not taken.

A client takes as much as its windows and its socket allow. Answers beyond that wait in their streams, and
count in the memory of the connection (`Held`). While more than a share waits, no further request
of the connection begins. The connection is still read: its windows are renewed by frames.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from turnserve.budget import Budget
from turnserve.http2.frames import DEFAULT_WINDOW
from turnserve.outbox import Progress, num_buffered
from turnserve.peers import Peer
from turnserve.turns import TURN_S, Turns

#: Bytes of a connection's requests that need not be reserved.
FREE_BYTES: Final = 64 * 1024
#: Least amount that is reserved at a time, and unit of the release.
_STEP_BYTES = 256 * 1024


class Held:
    """Counts the memory of a connection's unanswered requests.

    Args:
        budget: memory budget of the process.

    Attributes:
        num_bytes: memory of unanswered requests.
        num_arriving: part of it for requests that are incomplete or have not begun.
        num_allowed: limit of `num_bytes` without a new reservation. Below it, callers change `num_bytes`
            directly.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.num_allowed = FREE_BYTES
        self.num_bytes = 0
        self.num_arriving = 0

    def allow(self, num_bytes: int) -> bool:
        """Reserve memory for this total; return False if the budget has no room."""
        missing = num_bytes - self.num_allowed
        for wanted in (max(missing, _STEP_BYTES), missing):
            if self._budget.take(wanted):
                self.num_allowed += wanted
                return True
        return False

    def shrink(self) -> None:
        """Release the unused part of the reservation."""
        keep = max(FREE_BYTES, self.num_bytes)
        if keep == FREE_BYTES or self.num_allowed - keep > 2 * _STEP_BYTES:
            self._budget.give_back(self.num_allowed - keep)
            self.num_allowed = keep


#: Bytes of waiting answers above which no further request of the connection begins.
SHARE_BYTES: Final = 1 << 20


class Sender(Protocol):
    """A stream whose answer, or whose request, waits.

    Attributes:
        send_window: bytes that the client accepts.
    """

    send_window: int

    def notify_sent(self) -> None:
        """Report that all written data were sent, or that a request may begin now."""


class Unsent:
    """The waiting answers of one connection; see the module docstring.

    Args:
        turns: schedules requests that begin later.
        now: seconds, on the clock of `has_stopped`.

    Attributes:
        num_bytes: bytes that wait, of all streams.
        num_sent: bytes that no longer wait, since the connection began.
        num_taken: answers that were sent to their end.
        streams: streams that wait for the connection's window or its socket, in their order.
    """

    def __init__(self, turns: Turns, now: float) -> None:
        self._turns = turns
        self._progress = Progress(now)
        #: Whether something waited at the last check.
        self._waits = False
        #: Streams with a request that begins when less than the share waits.
        self._due: dict[Sender, None] = {}
        self.num_bytes = self.num_sent = self.num_taken = 0
        #: Of the last check that found another number: how many, and its time.
        self._last_taken = (0, now)
        self.streams: dict[Sender, None] = {}

    @property
    def is_full(self) -> bool:
        """True if the client has to take some answers before a request begins."""
        return self.num_bytes > SHARE_BYTES

    def may_begin(self, stream: Sender) -> bool:
        """Return True if a request of this stream may begin; if not, its receiver is called later."""
        if not self.is_full:
            return True
        self._due[stream] = None
        return False

    def add(self, num_bytes: int) -> None:
        """Count bytes that wait."""
        self.num_bytes += num_bytes

    def sent(self, num_bytes: int) -> None:
        """Count bytes that were sent."""
        self.num_sent += num_bytes
        self.drop(num_bytes)

    def drop(self, num_bytes: int) -> None:
        """Count bytes that no longer wait; requests that are due begin in a later turn."""
        self.num_bytes -= num_bytes
        if self._due and not self.is_full:
            self._turns.wait(self)

    def queue(self, stream: Sender, *, is_through: bool) -> None:
        """Move a stream to the end of the queue, if it waits for the connection."""
        self.streams.pop(stream, None)
        if not is_through and stream.send_window > 0:
            self.streams[stream] = None

    def forget(self, stream: Sender) -> None:
        """Remove a stream that has ended."""
        self.streams.pop(stream, None)
        self._due.pop(stream, None)

    def go_on(self) -> None:
        """Begin requests that are due, for one turn."""
        until = self._turns.clock() + TURN_S
        while self._due and not self.is_full:
            stream = next(iter(self._due))
            del self._due[stream]
            stream.notify_sent()
            if self._due and self._turns.clock() > until:
                self._turns.wait(self)
                return

    def close(self) -> None:
        """Begin no more."""
        self._turns.leave(self)

    def is_due(self, stream: Sender) -> bool:
        """Return True if a request of this stream waits until the client has taken earlier answers."""
        return stream in self._due

    def takes_none(self, now: float, limit_s: float) -> bool:
        """Return True if the client took no answer to its end within the limit."""
        return now > self._last_taken[1] + limit_s

    def has_stopped(self, now: float, limit_s: float, transport: Any, *, is_blocked: bool) -> bool:
        """Return True if the connection, not one stream alone, takes too little.

        Args:
            is_blocked: True if the transport accepts no more.
        """
        if self.num_taken != self._last_taken[0]:
            self._last_taken = self.num_taken, now
        if not self.streams and not is_blocked:
            self._waits = False
            return False
        num_taken = self.num_sent - num_buffered(transport)
        if not self._waits:
            self._waits = True
            self._progress.begin(num_taken, now)
        return self._progress.has_stopped(num_taken, now, limit_s)


class Output:
    """The windows, memory and frames that the streams of one connection share.

    Args:
        budget: memory of the process.
        turns: schedules postponed work.
        now: seconds, on the clock of `Unsent.has_stopped`.

    Attributes:
        held: memory of the connection's requests, and of answers that wait.
        is_blocked: True if the client does not read.
        is_late: True if the last answer was a refusal: the next input has low priority.
        num_resets: streams that were reset within this second.
        peer: holder of the client's certificate.
        resize: prefix of the next head, if the client reduced its header table, which we do not use.
        send_window: bytes that the client accepts, for all streams together.
        turns: the turns of the listener.
        unsent: the answers that wait.
    """

    def __init__(self, budget: Budget, turns: Turns, now: float) -> None:
        self._transport: Any = None
        #: Frames that are written while input is read.
        self._frames: list[bytes] | None = None
        self.held = Held(budget)
        self.is_blocked = self.is_late = False
        self.num_resets = 0
        self.peer: Peer | None = None
        self.resize = b""
        self.send_window = DEFAULT_WINDOW
        self.turns = turns
        self.unsent = Unsent(turns, now)

    def open(self, transport: Any, peer: Peer | None) -> None:
        """Begin to write to a transport."""
        self._transport, self.peer = transport, peer

    def write(self, data: bytes) -> None:
        """Send frames."""
        if self._frames is not None:
            self._frames.append(data)
        elif self._transport is not None:
            self._transport.write(data)

    @property
    def is_reading(self) -> bool:
        """True if input is read now: what is large is sent after it."""
        return self._frames is not None

    def collect(self) -> None:
        """Collect frames while input is read, until `flush`."""
        self._frames = []

    def flush(self) -> None:
        """Send the collected frames."""
        frames, self._frames = self._frames, None
        if frames:
            self.write(b"".join(frames))

    def send_only(self, data: bytes) -> None:
        """Send only this of what was collected."""
        self._frames = [data]
