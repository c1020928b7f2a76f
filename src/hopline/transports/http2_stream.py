"""One stream of an HTTP/2 connection: its two halves, its windows, and what waits to be sent."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

from hopline.transports.http2_frames import (
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
from hopline.transports.http2_held import FREE_BYTES

if TYPE_CHECKING:
    from hopline.transports.http2_connection import Http2Connection

#: Bytes that a stream may send before they are taken.
RECEIVE_WINDOW = 1 << 20
_HEADERS, _DATA, _TRAILERS = range(3)


class Receiver(Protocol):
    """What a stream is about."""

    def data(self, data: bytes, is_last: bool) -> None:
        """A piece of what the client sends; nothing comes behind the last one."""

    def gone(self) -> None:
        """The client or its connection abandoned the stream: no answer is read."""

    def sent(self) -> None:
        """All that was written has left for the client."""

    def check_time(self, now: float) -> None:
        """Once a second."""


class Stream:
    """One HTTP/2 stream.

    Args:
        connection: its connection.
        number: its id.
        send_window: bytes that the client takes.

    Attributes:
        receiver: None until the request was looked at, and where it was refused.
        is_heard: whether the client has sent all it has to.
        lasts: whether the client may send for as long as it likes.
        num_held: bytes of it that are stored, reserved in the connection's `held`.
        num_arriving: those of them that nothing was begun with.
        content_left: bytes that its head announced and that have not come; None where it says nothing.
        is_open: until everything was sent, or either side abandoned it.
        num_pending: bytes that wait until the client takes more.
    """

    __slots__ = (
        "_connection",
        "_held",
        "_holds",
        "_pending",
        "_receive_window",
        "content_left",
        "is_heard",
        "is_open",
        "lasts",
        "num_arriving",
        "num_held",
        "num_pending",
        "number",
        "receiver",
        "send_window",
    )

    def __init__(self, connection: Http2Connection, number: int, send_window: int) -> None:
        self._connection = connection
        self._held = connection.held
        self.number = number
        self.send_window = send_window
        self.receiver: Receiver | None = None
        self.is_heard = False
        self.is_open = True
        self.lasts = False
        self.num_pending = 0
        self.num_held = 0
        self.num_arriving = 0
        self.content_left: int | None = None
        self._pending: deque[tuple[int, memoryview]] = deque()
        self._receive_window = RECEIVE_WINDOW
        self._holds = False

    @property
    def connection(self) -> Http2Connection:
        """As given."""
        return self._connection

    # What the client sends

    def take(self, num_bytes: int) -> bool:
        """Count bytes that came, and let more come; False: they are more than the client may send."""
        self._receive_window -= num_bytes
        if self._receive_window < 0:
            return False
        if self._receive_window < RECEIVE_WINDOW // 2 and not self._holds and not self.is_heard:
            self._widen()
        return True

    @property
    def holds(self) -> bool:
        """Whether the client has to wait with what it has to send."""
        return self._holds

    def hold(self) -> None:
        """Let the client send no more than it may by now."""
        self._holds = True

    def let_go(self) -> None:
        """Take more again."""
        if self._holds:
            self._holds = False
            if self._receive_window < RECEIVE_WINDOW // 2 and self.is_open and not self.is_heard:
                self._widen()

    def takes_content(self, num_bytes: int) -> bool:
        """Count content against what the head announced; whether it fits."""
        assert self.content_left is not None
        self.content_left -= num_bytes
        return self.content_left == 0 if self.is_heard else self.content_left >= 0

    def keep(self, num_bytes: int) -> bool:
        """Count bytes before they are stored; False where there is no room for them, or it is closed."""
        held = self._held
        total = held.num_bytes + num_bytes
        if not self.is_open or (total > held.num_allowed and not held.allow(total)):
            return False
        held.num_bytes = total
        self.num_held += num_bytes
        return True

    def keep_arriving(self, num_bytes: int, limit: int) -> bool:
        """As the above, for a request that is incomplete or waits; not above a limit for the connection."""
        held = self._held
        if held.num_arriving + num_bytes > limit or not self.keep(num_bytes):
            return False
        self.num_arriving += num_bytes
        held.num_arriving += num_bytes
        return True

    def arrived(self, num_bytes: int) -> None:
        """What was stored is begun with now, and is still held."""
        if self.num_arriving:  # and not closed
            self.num_arriving -= num_bytes
            self._held.num_arriving -= num_bytes

    def give_back(self, num_bytes: int) -> None:
        """They are not stored any more."""
        if self.num_held:  # and not closed
            held = self._held
            self.num_held -= num_bytes
            held.num_bytes -= num_bytes
            if held.num_allowed > FREE_BYTES:
                held.shrink()

    def _widen(self) -> None:
        self._connection.write(window_update(self.number, RECEIVE_WINDOW - self._receive_window))
        self._receive_window = RECEIVE_WINDOW

    # What the client gets

    def send(self, headers: bytes, data: bytes, trailers: bytes) -> None:
        """Send what is not empty, in this order, as far as the client accepts it; the rest follows later.

        Args:
            headers: a block.
            data: any number of bytes.
            trailers: a block, which ends the stream.
        """
        if not self.is_open:
            return
        connection = self._connection
        size = len(data)
        if (
            self._pending
            or connection.is_blocked
            or size > self.send_window
            or size > connection.send_window
        ):
            self._wait(headers, data, trailers)
            return
        number = self.number
        parts: list[bytes] = []
        if connection.resize and (headers or trailers):
            prefix, connection.resize = connection.resize, b""
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
        connection.send_window -= size
        if trailers:
            parts += (
                HEAD.pack(len(trailers) << 8 | HEADERS, END_HEADERS | END_STREAM, number),
                trailers,
            )
        connection.write(b"".join(parts))
        if trailers:
            self._end()

    def _wait(self, headers: bytes, data: bytes, trailers: bytes) -> None:
        for kind, part in ((_HEADERS, headers), (_DATA, data), (_TRAILERS, trailers)):
            if part:
                self._pending.append((kind, memoryview(part)))
        self.num_pending += len(data)
        self._connection.queue(self, is_through=self.pump())

    @property
    def is_waiting(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._pending)

    def pump(self) -> bool:
        """Send what waits, as far as the client takes it; whether nothing waits any more."""
        connection, number = self._connection, self.number
        pending = self._pending
        while pending and self.is_open:
            if connection.is_blocked:
                return False
            kind, part = pending[0]
            if kind == _DATA:
                size = min(len(part), self.send_window, connection.send_window, DEFAULT_FRAME_SIZE)
                if size <= 0:
                    return False
                connection.write(b"".join((HEAD.pack(size << 8 | DATA, 0, number), part[:size])))
                self.send_window -= size
                connection.send_window -= size
                self.num_pending -= size
                if size < len(part):
                    pending[0] = (_DATA, part[size:])
                    continue
            else:
                block, connection.resize = b"".join((connection.resize, part)), b""
                flags = END_HEADERS | (END_STREAM if kind == _TRAILERS else 0)
                connection.write(HEAD.pack(len(block) << 8 | HEADERS, flags, number) + block)
            pending.popleft()
            if kind == _TRAILERS:
                self._end()
                return True
        return True

    def _end(self) -> None:
        """Everything was sent: a client that has not, need not."""
        if not self.is_heard:
            self._connection.write(rst_stream(self.number, ErrorCode.NO_ERROR))
        self.close()

    def be_late(self) -> None:
        """What its connection sends next is read after what others sent."""
        self._connection.is_late = True

    def reset(self, code: ErrorCode) -> None:
        """Give it up. What the client does wrong on purpose counts like what it gives up itself."""
        if self.is_open:
            self._connection.num_resets += 1
            self._connection.write(rst_stream(self.number, code))
            self.abandon()

    def abandon(self) -> None:
        """Forget the stream and its request: no answer is read."""
        receiver = self.receiver
        self.close()
        if receiver is not None:
            receiver.gone()

    def close(self) -> None:
        """Forget it."""
        self.is_open = False
        self.receiver = None  # which refers to this stream: only the garbage collector would find them
        self._pending.clear()
        if self.num_held:
            self.arrived(self.num_arriving)
            self.give_back(self.num_held)
        self._connection.forget(self)
