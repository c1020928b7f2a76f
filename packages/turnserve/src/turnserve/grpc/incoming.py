"""The received messages of one gRPC call: their frames, limits, and memory until they are read."""

from __future__ import annotations

import mmap
from collections import deque
from typing import Protocol

from turnserve.budget import Budget
from turnserve.grpc.status import CallError, StatusCode, full, invalid
from turnserve.http2.stream import Stream
from turnserve.turns import LARGE_BYTES, Turns

#: Prefix of a message: a compression flag and its length.
PREFIX_BYTES = 5
#: Stable name of a request that does not arrive in time.
_LATE = "request_timeout"
#: Bytes that need no block, and those of a block. Memory of a block is used as it is written.
_FIRST_BYTES, _BLOCK_BYTES = 64 * 1024, 1024 * 1024


class Arriving:
    """Received bytes; false while there are none.

    A little is in one buffer, and what is more in blocks of memory that go back to the system when they
    were taken. One buffer that grows is copied whenever it has to move, a large message several times; and
    of many small ones the heap keeps what is free.
    """

    __slots__ = ("_blocks", "_first", "_num_bytes", "_num_taken")

    def __init__(self) -> None:
        self._first = bytearray()
        #: Behind the first bytes; each has as many as its position says.
        self._blocks: deque[mmap.mmap] = deque()
        #: Of the first block.
        self._num_taken = 0
        self._num_bytes = 0

    def __len__(self) -> int:
        return self._num_bytes

    def append(self, data: bytes) -> None:
        """Store more."""
        self._num_bytes += len(data)
        blocks = self._blocks
        if not blocks and len(self._first) + len(data) <= _FIRST_BYTES:
            self._first += data
            return
        at, view = 0, memoryview(data)
        while at < len(view):
            room = _BLOCK_BYTES - blocks[-1].tell() if blocks else 0
            if not room:
                blocks.append(mmap.mmap(-1, _BLOCK_BYTES))
                room = _BLOCK_BYTES
            at += blocks[-1].write(view[at : at + room])

    def head(self, num_bytes: int) -> bytes:
        """The first bytes, or as many as there are."""
        if len(self._first) >= num_bytes:
            return bytes(self._first[:num_bytes])
        return b"".join(self._views(num_bytes))

    def take(self, num_bytes: int) -> bytes:
        """Remove the first bytes, which must have come."""
        taken = self.head(num_bytes)
        missing = num_bytes - min(num_bytes, len(self._first))
        del self._first[:num_bytes]
        while missing:
            there = self._blocks[0].tell() - self._num_taken
            if there > missing:
                self._num_taken += missing
                break
            missing -= there
            self._num_taken = 0
            del self._blocks[0]
        self._num_bytes -= num_bytes
        return taken

    def _views(self, num_bytes: int) -> list[memoryview]:
        views = [memoryview(self._first)[:num_bytes]]
        missing, start = num_bytes - len(views[0]), self._num_taken
        for block in self._blocks:
            views.append(memoryview(block)[start : min(block.tell(), start + missing)])
            missing -= len(views[-1])
            start = 0
            if not missing:
                break
        return views


class Limits(Protocol):
    """Limits and clock of the listener."""

    budget: Budget
    max_arriving_bytes: int
    max_message_bytes: int
    now: float
    read_timeout_s: float
    turns: Turns


def late(text: str) -> CallError:
    """Return the error of a message that does not arrive in time."""
    return CallError(StatusCode.DEADLINE_EXCEEDED, text, _LATE)


class Incoming:
    """The messages of a call that are incomplete, or wait to be read.

    Args:
        stream: counts the memory.
        limits: of the listener.
        max_bytes: limit of a message of this method; None has the listener's.
        name: of the method, for error texts.

    Attributes:
        has_ended: True if a client that streams has sent its last message.
        max_bytes: limit of a message.
    """

    __slots__ = (
        "_is_late",
        "_kept",
        "_limits",
        "_message",
        "_name",
        "_next",
        "_since",
        "_stream",
        "has_ended",
        "max_bytes",
    )

    def __init__(self, stream: Stream, limits: Limits, max_bytes: int | None, name: str) -> None:
        self._stream = stream
        self._limits = limits
        self._name = name
        self._since = limits.now
        self.max_bytes = limits.max_message_bytes
        if max_bytes is not None and max_bytes < self.max_bytes:
            self.max_bytes = max_bytes
        #: Received bytes: an incomplete message, or messages of a client that streams; None before any.
        self._kept: Arriving | None = None
        #: The message of a call without streaming and its compression flag, until it is read.
        self._message: tuple[int, bytes] | None = None
        #: One complete message of a client that streams, before it is stored.
        self._next: bytes | None = None
        self._is_late = False
        self.has_ended = False

    def no_room(self) -> CallError:
        """Return the error of a request or an answer for which there is no room."""
        limits = self._limits
        return full(
            "retry later: the memory for requests and answers that wait is full, for this connection "
            f"({limits.max_arriving_bytes} bytes of incomplete requests) or for this worker "
            f"({limits.budget.limit} bytes in total)"
        )

    def clear(self) -> None:
        """Drop all messages of a call that has ended."""
        self._message = self._next = None
        if self._kept is not None and len(self._kept) > LARGE_BYTES:
            self._limits.turns.drop(self._kept)
        self._kept = None

    # One message

    def take_one(self, data: bytes) -> None:
        """Receive data of a client that sends one message.

        Raises: CallError.
        """
        kept = self._kept
        if kept is not None:
            self._keep(data)
            data = kept.head(PREFIX_BYTES)
        length = len(data) if kept is None else len(kept)
        size = self._size(data) or PREFIX_BYTES
        if self._message is not None or length > size:
            raise invalid(f"{self._name} accepts only one message")
        if length < size:
            if kept is None:
                self._keep(data)
        elif kept is not None:
            self._stream.arrived(size)
            self._message = kept.take(PREFIX_BYTES)[0], kept.take(size - PREFIX_BYTES)
            self._kept = None
        elif self._stream.keep(size):
            self._message = data[0], data[PREFIX_BYTES:]
        else:
            raise self.no_room()

    def check_one(self) -> None:
        """Check after the client's last byte that there is one complete message.

        Raises: CallError.
        """
        if self._kept:
            raise invalid("the last message is incomplete")
        if self._message is None:
            raise invalid(f"{self._name} needs a message, but none was sent")

    def one(self) -> tuple[int, bytes]:
        """Remove the message, which `check_one` has found, and its compression flag."""
        message, self._message = self._message, None
        assert message is not None
        return message

    # Messages of a client that streams

    def put(self, data: bytes) -> None:
        """Receive data: a single complete message need not be stored first; see `store`.

        Raises: CallError.
        """
        if data and not self._kept and self._size(data) == len(data):
            self._next = data
        elif data:
            self._keep(data)

    def store(self) -> None:
        """Store a message that was not read immediately.

        Raises: CallError.
        """
        if self._next is not None:
            data, self._next = self._next, None
            self._keep(data)

    @property
    def has_more(self) -> bool:
        """True if a message, or a part of one, waits to be read."""
        return self._next is not None or bool(self._kept)

    def next(self) -> tuple[int, bytes] | None:
        """Remove the next message and its compression flag; return None if it is incomplete.

        Raises: CallError: it is too large or late, or there is no room for it, or the last one is
            incomplete.
        """
        if self._next is not None:
            data, self._next = self._next, None
            if not self._stream.keep(len(data)):
                raise self.no_room()
            return data[0], data[PREFIX_BYTES:]
        kept = self._kept
        if kept is None:
            return None
        size = self._size(kept.head(PREFIX_BYTES))
        if size is None or len(kept) < size:
            if kept and self.has_ended:
                raise invalid("the last message is incomplete")
            if kept and self._is_late:
                raise late(f"a message did not arrive within {self._limits.read_timeout_s} s")
            return None
        self._since = self._limits.now
        flag, message = kept.take(PREFIX_BYTES)[0], kept.take(size - PREFIX_BYTES)
        self._stream.arrived(size)
        return flag, message

    def drop(self) -> None:
        """Drop messages that were not read; the call continues."""
        size = len(self._kept or ())
        self._next = self._kept = None
        self._stream.arrived(size)
        self._stream.give_back(size)

    # Time and memory

    def check_time(self, now: float) -> bool:
        """Return True if a message that has begun is late; `next` raises then."""
        if not self._kept or self._has_whole(self._kept) or self._stream.holds:
            self._since = now
            return False
        is_late = now > self._since + self._limits.read_timeout_s
        self._is_late |= is_late
        return is_late

    def check_request_time(self, now: float) -> None:
        """Check the time of a request that is one message.

        Raises: CallError: it does not arrive in time.
        """
        limit_s = self._limits.read_timeout_s
        if not self._stream.has_ended and now > self._since + limit_s:
            raise late(f"the request did not arrive within {limit_s} s")

    @staticmethod
    def _has_whole(kept: Arriving) -> bool:
        """True if the stored data begin with a complete message."""
        head = kept.head(PREFIX_BYTES)
        return len(kept) >= PREFIX_BYTES + int.from_bytes(head[1:], "big")

    def _size(self, data: bytes) -> int | None:
        """Return the size of the first message of the data, with its prefix; None if not known yet."""
        if len(data) < PREFIX_BYTES:
            return None
        size = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if size > self.max_bytes:
            raise CallError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the message has {size} bytes; the limit is {self.max_bytes}",
                "request_too_large",
                limit="message_bytes" if self.max_bytes == self._limits.max_message_bytes else "",
            )
        return PREFIX_BYTES + size

    def _keep(self, data: bytes) -> None:
        if not self._stream.keep_arriving(len(data), self._limits.max_arriving_bytes):
            raise self.no_room()
        if self._kept is None:
            self._kept = Arriving()
        self._kept.append(data)
