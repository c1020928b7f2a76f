"""Answers of one HTTP/1.1 connection, in order: what waits for its turn, bodies in pieces, early bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from turnserve.http1.messages import BodyStream, Request
from turnserve.outbox import Outbox
from turnserve.turns import TURN_S

#: Waiting pipelined requests of one connection at which reading pauses.
MAX_PIPELINED = 16
#: Bytes of requests behind one that is being answered, at which reading pauses.
_MAX_BEHIND_BYTES = 64 * 1024
#: Requests of one connection that start in one turn of the loop.
_MAX_STARTED = 16
#: Status -> the first line of an answer.
STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus
}


class Backlog:
    """Requests of one connection that wait for earlier ones or for a turn, and unread input behind them.

    Args:
        clock: seconds.

    Attributes:
        requests: those that wait, the oldest first.
        unread: received bytes that wait for the parser while other connections have their turn.
        num_started: requests that were started in this turn of the connection.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.requests: deque[Request] = deque()
        self.unread = b""
        self.num_started = 0
        self._num_bytes = 0
        self._turn_ends = 0.0

    def put(self, request: Request) -> None:
        """Append a request."""
        self.requests.append(request)
        self._num_bytes += len(request.body)

    def pop(self) -> Request:
        """Remove the oldest request."""
        request = self.requests.popleft()
        self._num_bytes -= len(request.body)
        return request

    def is_full(self, num_arriving: int) -> bool:
        """Return True if no more may be read behind a request that is being answered.

        Args:
            num_arriving: bytes of an incomplete body.
        """
        return len(self.requests) >= MAX_PIPELINED or self._num_bytes + num_arriving > _MAX_BEHIND_BYTES

    def begin_turn(self) -> None:
        """Begin a turn of this connection."""
        self.num_started = 0
        self._turn_ends = 0.0

    @property
    def turn_is_over(self) -> bool:
        """True if the turn is over; the first check starts the time, since most turns need no limit."""
        now = self._clock()
        self._turn_ends = self._turn_ends or now + TURN_S
        return self.num_started >= _MAX_STARTED or now > self._turn_ends


class StreamedBody:
    """A body that is sent in pieces: the `Sink` of the application's `BodyStream`.

    Args:
        stream: makes the pieces.
        outbox: of the connection.
        ended: called after the last piece; with False if the body is incomplete.
        is_chunked: the pieces are chunks; otherwise the end of the connection ends the body.
    """

    def __init__(
        self, stream: BodyStream, outbox: Outbox, ended: Callable[[bool], None], *, is_chunked: bool
    ) -> None:
        self._stream = stream
        self._outbox = outbox
        self._ended = ended
        self._is_chunked = is_chunked
        self._is_open = True

    def start(self) -> None:
        """Let the application write."""
        self._stream.start(self)

    def resumed(self) -> None:
        """Let the application continue, since the client reads again."""
        self._stream.resumed()

    def close(self) -> None:
        """Drop what is written from now on."""
        self._is_open = False

    def gone(self) -> None:
        """Stop the application, since the client is gone."""
        self.close()
        self._stream.gone()

    @property
    def is_blocked(self) -> bool:
        """As `Sink.is_blocked`."""
        return self._outbox.is_blocked

    def write(self, data: bytes) -> None:
        """As `Sink.write`."""
        if self._is_open and data:
            self._outbox.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def end(self) -> None:
        """As `Sink.end`."""
        if self._is_open:
            if self._is_chunked:
                self._outbox.write(b"0\r\n\r\n")
            self._is_open = False
            self._ended(True)

    def fail(self) -> None:
        """As `Sink.fail`: the connection closes without the end of the chunks."""
        if self._is_open:
            self._is_open = False
            self._ended(False)


#: Every answer begins with these bytes, so they can be sent early.
_EARLY_BYTES = b"HTTP/1.1 "
#: Seconds from the first byte to the second; each wait is `_PROBE_GROWTH` times the one before, the last
#: three minutes.
_PROBE_S, _PROBE_GROWTH = 0.002, 5


class Probes:
    """Bytes of an answer that are sent early, one at a time, to a client that stopped sending.

    A client that closed looks like one that only stopped sending, until something is written to it: a
    closed client resets the connection, and the next byte reports that.

    Args:
        transport: of the connection.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._num_sent = 0
        self._next: asyncio.TimerHandle | None = None

    def send(self) -> None:
        """Send a byte now, and others later, until `stop` or `rest`."""
        self.stop()
        if self._num_sent < len(_EARLY_BYTES):
            self._transport.write(_EARLY_BYTES[self._num_sent : self._num_sent + 1])
            wait_s = _PROBE_S * _PROBE_GROWTH**self._num_sent
            self._num_sent += 1
            self._next = asyncio.get_running_loop().call_later(wait_s, self.send)

    def stop(self) -> None:
        """Send no more bytes."""
        if self._next is not None:
            self._next.cancel()
            self._next = None

    def rest(self, head: bytes) -> bytes:
        """Return the bytes of a head that were not sent early, and send no more of them."""
        self.stop()
        num_sent, self._num_sent = self._num_sent, 0
        return head[num_sent:]
