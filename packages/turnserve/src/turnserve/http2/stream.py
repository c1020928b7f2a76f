"""One stream of an HTTP/2 connection: its two directions, its windows, and data that wait to be sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from turnserve.http2.frames import (
    DATA,
    DEFAULT_FRAME_SIZE,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEADERS,
    ErrorCode,
    rst_stream,
    window_update,
)
from turnserve.http2.output import FREE_BYTES, Output
from turnserve.outbox import SMALL_ANSWER_BYTES, Progress

#: Bytes that a stream may send before the window is renewed.
RECEIVE_WINDOW = 1 << 20
#: Bytes of waiting data that are written at a time.
_PIECE_BYTES = 4 * DEFAULT_FRAME_SIZE
#: A smaller window takes not even a small answer; usual clients have 64 KiB.
_LEAST_WINDOW = 1024
_HEADERS, _DATA, _TRAILERS = range(3)


class Receiver(Protocol):
    """The handler of a stream's data.

    Attributes:
        begun: True if one of several answers was sent.
    """

    begun: bool

    def data(self, data: bytes, is_last: bool) -> None:
        """Handle a piece of the client's data; nothing follows the last one."""

    def gone(self) -> None:
        """Handle that the client or the connection ended the stream: answers are not read."""

    def sent(self) -> None:
        """Handle that all written data were sent, or that a request may begin now."""

    def check_time(self, now: float) -> None:
        """Check time limits; called once a second."""


class StreamOwner(Protocol):
    """The streams of one connection."""

    def forget(self, stream: Stream) -> None:
        """Remove a stream that has ended."""


class Stream:
    """One stream of a connection.

    Args:
        owner: the streams of the connection.
        output: of the connection.
        number: stream id.
        send_window: bytes that the client accepts.

    Attributes:
        receiver: the handler; None until the request is checked, and if it was refused.
        has_ended: True if the client has sent its last byte.
        lasts: True if the client may send for any time.
        num_held: stored bytes, reserved in the connection's `held`.
        num_arriving: part of them for requests that have not begun.
        content_left: announced bytes that have not arrived; None without a content length.
        is_open: True if data may still be sent: not all was sent, and the stream was not reset.
        num_pending: bytes that wait until the client accepts more.
        num_sent: bytes of them that were sent.
    """

    __slots__ = (
        "_held",
        "_holds",
        "_output",
        "_owner",
        "_pending",
        "_progress",
        "_receive_window",
        "content_left",
        "has_ended",
        "is_open",
        "lasts",
        "num_arriving",
        "num_held",
        "num_pending",
        "num_sent",
        "number",
        "receiver",
        "send_window",
    )

    def __init__(self, owner: StreamOwner, output: Output, number: int, send_window: int) -> None:
        self._owner = owner
        self._output = output
        self._held = output.held
        self.number = number
        self.send_window = send_window
        self.receiver: Receiver | None = None
        self.has_ended = False
        self.is_open = True
        self.lasts = False
        self.num_pending = 0
        self.num_sent = 0
        self.num_held = 0
        self.num_arriving = 0
        self.content_left: int | None = None
        self._pending: deque[tuple[int, memoryview]] = deque()
        self._receive_window = RECEIVE_WINDOW
        self._holds = False
        #: Of the data that wait; None while none wait.
        self._progress: Progress | None = None

    @property
    def output(self) -> Output:
        """The output of the connection."""
        return self._output

    # Input from the client

    def take(self, num_bytes: int) -> bool:
        """Count received bytes, and renew the window; return False if they exceed the window."""
        self._receive_window -= num_bytes
        if self._receive_window < 0:
            return False
        if self._receive_window < RECEIVE_WINDOW // 2 and not self._holds and not self.has_ended:
            self._widen()
        return True

    @property
    def holds(self) -> bool:
        """True if the client must wait with further data."""
        return self._holds

    def hold(self) -> None:
        """Stop renewing the window."""
        self._holds = True

    def let_go(self) -> None:
        """Renew the window again."""
        if self._holds:
            self._holds = False
            if self._receive_window < RECEIVE_WINDOW // 2 and self.is_open and not self.has_ended:
                self._widen()

    def takes_content(self, num_bytes: int) -> bool:
        """Count content against the announced length; return True if it fits."""
        assert self.content_left is not None
        self.content_left -= num_bytes
        return self.content_left == 0 if self.has_ended else self.content_left >= 0

    def keep(self, num_bytes: int) -> bool:
        """Count bytes before they are stored; return False if there is no room, or the stream is closed."""
        held = self._held
        total = held.num_bytes + num_bytes
        if not self.is_open or (total > held.num_allowed and not held.allow(total)):
            return False
        held.num_bytes = total
        self.num_held += num_bytes
        return True

    def keep_arriving(self, num_bytes: int, limit: int) -> bool:
        """Count stored bytes of a request that is incomplete or waits; limited for the connection."""
        held = self._held
        if held.num_arriving + num_bytes > limit or not self.keep(num_bytes):
            return False
        self.num_arriving += num_bytes
        held.num_arriving += num_bytes
        return True

    def arrived(self, num_bytes: int) -> None:
        """Move bytes from waiting to begun; they are still stored."""
        if self.num_arriving:  # and not closed
            self.num_arriving -= num_bytes
            self._held.num_arriving -= num_bytes

    def give_back(self, num_bytes: int) -> None:
        """Release bytes that are no longer stored."""
        if self.num_held:  # and not closed
            held = self._held
            self.num_held -= num_bytes
            held.num_bytes -= num_bytes
            if held.num_allowed > FREE_BYTES:
                held.shrink()

    def _widen(self) -> None:
        self._output.write(window_update(self.number, RECEIVE_WINDOW - self._receive_window))
        self._receive_window = RECEIVE_WINDOW

    # Output to the client

    def may_begin(self) -> bool:
        """Return True if a request may begin; if not, `Receiver.sent` is called once it may."""
        return self._output.unsent.may_begin(self)

    def send(self, headers: bytes, data: bytes, trailers: bytes) -> bool:
        """Send the non-empty parts in order, as the client accepts them; the remaining data follow later.

        Args:
            headers: a header block.
            data: any number of bytes.
            trailers: a header block, which ends the stream.

        Returns: False if there is no room for data that have to wait: then nothing was sent.
        """
        if not self.is_open:
            return True
        output = self._output
        size = len(data)
        if (
            self._pending
            or output.is_blocked
            or size > self.send_window
            or size > output.send_window
            or size > SMALL_ANSWER_BYTES
        ):
            return self.send_parts(headers, (data,), trailers)
        number = self.number
        parts: list[bytes] = []
        if output.resize and (headers or trailers):
            prefix, output.resize = output.resize, b""
            headers, trailers = (prefix + headers, trailers) if headers else (headers, prefix + trailers)
        if headers:
            parts += (HEAD.pack(len(headers) << 8 | HEADERS, END_HEADERS, number), headers)
        if 0 < size <= DEFAULT_FRAME_SIZE:
            parts += (HEAD.pack(size << 8 | DATA, 0, number), data)
        elif size:
            for start in range(0, size, DEFAULT_FRAME_SIZE):
                piece = data[start : start + DEFAULT_FRAME_SIZE]
                parts += (HEAD.pack(len(piece) << 8 | DATA, 0, number), piece)
        self.send_window -= size
        output.send_window -= size
        if trailers:
            parts += (
                HEAD.pack(len(trailers) << 8 | HEADERS, END_HEADERS | END_STREAM, number),
                trailers,
            )
        output.write(b"".join(parts))
        if trailers:
            self._end()
        return True

    def send_parts(self, headers: bytes, data: Sequence[bytes], trailers: bytes) -> bool:
        """Send large data, which need not be one object; see `send`."""
        if not self.is_open:
            return True
        size = sum(map(len, data))
        if not self.keep(size):
            return False
        for kind, parts in ((_HEADERS, (headers,)), (_DATA, data), (_TRAILERS, (trailers,))):
            self._pending += ((kind, memoryview(part)) for part in parts if part)
        self.num_pending += size
        unsent = self._output.unsent
        unsent.add(size)
        unsent.queue(self, is_through=self.pump())
        return True

    def notify_sent(self) -> None:
        """As `Sender.notify_sent`."""
        if self.receiver is not None:
            self.receiver.sent()

    @property
    def is_waiting(self) -> bool:
        """True if data wait to be sent."""
        return bool(self._pending)

    def pump(self) -> bool:
        """Send waiting data as far as the client accepts them; return True if all were sent."""
        output = self._output
        pending = self._pending
        while pending and self.is_open:
            if output.is_blocked:
                return False
            kind, part = pending[0]
            if kind == _DATA:
                is_large = self.num_pending > DEFAULT_FRAME_SIZE
                if (is_large and output.is_reading) or not self._send_piece():
                    return False
                continue
            block, output.resize = b"".join((output.resize, part)), b""
            flags = END_HEADERS | (END_STREAM if kind == _TRAILERS else 0)
            output.write(HEAD.pack(len(block) << 8 | HEADERS, flags, self.number) + block)
            pending.popleft()
            if kind == _TRAILERS:
                self._end()
                return True
        return True

    def _send_piece(self) -> bool:
        """Send a piece of the waiting data; return False if a window has no room."""
        output, pending = self._output, self._pending
        room = min(_PIECE_BYTES, self.send_window, output.send_window)
        left, frames = room, list[bytes | memoryview]()
        while left > 0 and pending and pending[0][0] == _DATA:
            part = pending[0][1]
            size = min(len(part), left, DEFAULT_FRAME_SIZE)
            frames += (HEAD.pack(size << 8 | DATA, 0, self.number), part[:size])
            left -= size
            if size < len(part):
                pending[0] = (_DATA, part[size:])
            else:
                pending.popleft()
        if not frames:
            return False
        size = room - left
        self.send_window -= size
        output.send_window -= size
        self.num_pending -= size
        self.num_sent += size
        self.give_back(size)
        output.write(b"".join(frames))
        output.unsent.sent(size)
        return True

    def has_stopped(self, now: float, limit_s: float) -> bool:
        """Return True if the client takes too little of this stream; not if the connection is the cause."""
        if not self._pending or self.send_window > 0:
            self._progress = None
            return False
        self._progress = self._progress or Progress(now, self.num_sent)
        return self._progress.has_stopped(self.num_sent, now, limit_s)

    @property
    def is_hopeless(self) -> bool:
        """True if no part of the answer was sent, and the window takes not even a small one."""
        return (
            self.send_window < _LEAST_WINDOW
            and not (self._pending or self.lasts)
            and (self.receiver is None or not self.receiver.begun)
        )

    def _end(self) -> None:
        """End the stream after all data were sent; a client that still sends may stop."""
        self._output.unsent.num_taken += 1
        if not self.has_ended:
            self._output.write(rst_stream(self.number, ErrorCode.NO_ERROR))
        self.close()

    def be_late(self) -> None:
        """Read the next input of this connection with low priority."""
        self._output.is_late = True

    def reset(self, code: ErrorCode) -> None:
        """Reset the stream. It counts as a reset of the client, since its error caused it."""
        if self.is_open:
            self._output.num_resets += 1
            self._output.write(rst_stream(self.number, code))
            self.abandon()

    def abandon(self) -> None:
        """Close the stream, and tell its handler that answers are not read."""
        receiver = self.receiver
        self.close()
        if receiver is not None:
            receiver.gone()

    def close(self) -> None:
        """Close the stream, and release its memory."""
        self.is_open = False
        self.receiver = None  # break the reference cycle
        if self.num_pending:
            self._output.unsent.drop(self.num_pending)
            if self.num_pending > SMALL_ANSWER_BYTES:  # many may be closed together
                self._output.turns.drop(self._pending)
                self._pending = deque()
            self.num_pending = 0
        self._pending.clear()
        if self.num_held:
            self.arrived(self.num_arriving)
            self.give_back(self.num_held)
        self._owner.forget(self)
