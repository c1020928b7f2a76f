"""One connection to a Redis: sends requests, and assigns replies to their waiters.

Replies arrive in the order of the requests, so each request adds a waiter to a queue. The waiter stays
there if its caller has gone: its reply is then read and dropped, and later requests still get their own.
This file does not depend on schemas of rows, reconnects or clusters.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, cast

import numpy as np

from hopline.errors import FeatureStoreError, FeatureStoreUnavailable
from hopline.types import IdArray
from hopline_stores.redis import resp
from hopline_stores.redis.resp import Bytes, ServerError

#: First words of transient error replies.
_PASSING = frozenset(
    ("ASK", "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MOVED", "NOREPLICAS", "READONLY", "TRYAGAIN")
)
_BUFFER_BYTES = 512 * 2**10
_ROOM_BYTES = 64 * 2**10
#: Limit of a reply that is not a row (a schema, a list of groups, the slots of a cluster).
_MAX_REPLY_BYTES = 64 * 2**20
#: Limit of unanswered requests: beyond it the server is too slow, and requests are refused.
MAX_WAITING = 1024
_MAX_UNSENT_BYTES = 16 * 2**20
_LOOK_S = 0.001


def refusal(where: str, error: str) -> FeatureStoreError:
    """Build the error for an error reply."""
    passing = error.partition(" ")[0] in _PASSING or "max number of clients" in error
    kind = FeatureStoreUnavailable if passing else FeatureStoreError
    return kind(f"{where} answered: {error}")


class Reply:
    """Receives one reply of any kind."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    def feed(self, buffer: Bytes, begin: int, end: int) -> tuple[int, bool]:
        """Read more; return where it stopped and whether that is all. Raises: ValueError: not RESP."""
        parsed = resp.parse(buffer[begin:end].tobytes())
        if parsed is None:
            if end - begin > _MAX_REPLY_BYTES:
                raise ValueError("the reply is too long")
            return begin, False
        if not self.future.done():
            self.future.set_result(parsed[0])
        return begin + parsed[1], True


class Replies:
    """Receives the replies to commands for n keys.

    Args:
        num: n.
        row_bytes: expected, or largest, length of a value.
        part: keys per MGET, 0 if each key has its own command.

    Attributes:
        lengths: int64 [n], see `resp.read_replies`; resp.ERROR for rows in `errors`.
        rows: uint8 [n, row_bytes]; a shorter value is stored from the left, a longer one is undefined.
        errors: row -> error reply.
    """

    __slots__ = ("_part", "_state", "errors", "future", "lengths", "rows")

    def __init__(self, future: asyncio.Future[Any], num: int, row_bytes: int, part: int = 0) -> None:
        self.future = future
        self.lengths: IdArray = np.empty(num, np.int64)
        self.rows: Bytes = np.empty((num, row_bytes), np.uint8)
        self.errors: dict[int, str] = {}
        self._part = part
        self._state = np.array((0, 0, 0, part > 0), np.int64)

    def check(self, where: str) -> Replies:
        """Return the replies. Raises: FeatureStoreError, FeatureStoreUnavailable: one is an error."""
        if self.errors:
            raise refusal(where, next(iter(self.errors.values())))
        return self

    def place(self, rows: IdArray, replies: Replies, each: int) -> None:
        """Take the replies to a command for some of the keys, of `each` commands the last."""
        self.lengths[rows] = replies.lengths[each - 1 :: each]
        self.rows[rows] = replies.rows[each - 1 :: each]
        self._place_errors(rows, replies, each)

    def _place_errors(self, rows: IdArray, replies: Replies, each: int) -> None:
        if self.errors:
            for row in rows.tolist():
                self.errors.pop(row, None)
        self.errors.update({int(rows[row // each]): text for row, text in replies.errors.items()})

    def feed(self, buffer: Bytes, begin: int, end: int) -> tuple[int, bool]:
        """Read more; return where it stopped and whether that is all. Raises: ValueError: not RESP."""
        state = self._state
        while True:
            begin = resp.read_replies(buffer, begin, end, state, self._part, self.lengths, self.rows)
            stop = state[1]
            if stop == resp.COMPLETE:
                if not self.future.done():
                    self.future.set_result(None)
                return begin, True
            if stop == resp.MORE:
                return begin, False
            if stop == resp.GARBAGE:
                raise ValueError("not RESP")
            begin = self._error(buffer[begin:end].tobytes(), begin)

    def _error(self, data: bytes, begin: int) -> int:
        """Read the error line at the start of `data`, which is for one key or replaces an array."""
        line, _, _ = data.partition(b"\n")
        row, in_head = int(self._state[0]), bool(self._state[3])
        num = min(self._part, len(self.lengths) - row) if in_head else 1
        self.lengths[row : row + num] = resp.ERROR
        self.errors[row] = line[1:].strip().decode("utf-8", "replace")
        self._state[0] = row + num
        if self._part and not in_head and (row + 1) % self._part == 0:
            self._state[3] = 1
        return begin + len(line) + 1


class HashReplies(Replies):
    """Receives the replies to a command for n keys: an array, a number or an error for each.

    Attributes:
        values: reply for each key; None where it is in `errors`.
    """

    __slots__ = ("_next", "values")

    def __init__(self, future: asyncio.Future[Any], num: int, row_bytes: int = 0) -> None:
        super().__init__(future, num, row_bytes)
        self.values: list[Any] = [None] * num
        self._next = 0

    def place(self, rows: IdArray, replies: Replies, each: int) -> None:
        """See `Replies.place`."""
        assert isinstance(replies, HashReplies)
        for row, value in zip(rows.tolist(), replies.values[each - 1 :: each], strict=True):
            self.values[row] = value
        self._place_errors(rows, replies, each)

    def feed(self, buffer: Bytes, begin: int, end: int) -> tuple[int, bool]:
        """As `Replies.feed`."""
        data, at = buffer[begin:end].tobytes(), 0
        while self._next < len(self.values):
            parsed = resp.parse(data, at)
            if parsed is None:
                if end - begin - at > _MAX_REPLY_BYTES:
                    raise ValueError("the reply is too long")
                return begin + at, False
            found, at = parsed
            if isinstance(found, ServerError):
                self.errors[self._next] = found
            else:
                self.values[self._next] = found
            self._next += 1
        if not self.future.done():
            self.future.set_result(None)
        return begin + at, True


#: Receives the replies to one request.
ReplyWaiter = Reply | Replies


class Connection(asyncio.BufferedProtocol):
    """A connection, open or closed.

    Args:
        where: the server, for errors.

    Attributes:
        closed: True if it can no longer be used.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.closed = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[ReplyWaiter] = deque()
        self._received_at = 0.0
        self._full = False
        self._buffer: Bytes = np.empty(_BUFFER_BYTES, np.uint8)
        self._view = memoryview(self._buffer)  # type: ignore[arg-type]
        self._begin = self._end = 0

    def silent_s(self) -> float:
        """Return the seconds since the last received byte, if requests are waiting."""
        return self._loop.time() - self._received_at if self._waiting else 0.0

    async def speaks(self, silence_s: float, looks: int) -> bool:
        """Return True if data arrive within this silence, or within this number of event loop turns."""
        for _ in range(looks):
            if self.closed or self.silent_s() <= silence_s:
                break
            await asyncio.sleep(_LOOK_S)
        return not self.closed and self.silent_s() <= silence_s

    def send(self, payload: bytes | memoryview, waiter: ReplyWaiter) -> None:
        """Send a request whose replies `waiter` receives.

        Raises:
            FeatureStoreUnavailable: the connection is lost, or too many requests are unanswered.
        """
        if self.closed or self._transport is None:
            raise FeatureStoreUnavailable(f"{self.where}: the connection was lost")
        if self._full or len(self._waiting) >= MAX_WAITING:
            raise FeatureStoreUnavailable(
                f"{self.where} is too slow: {len(self._waiting)} requests are unanswered"
            )
        if not self._waiting:
            self._received_at = self._loop.time()
        self._waiting.append(waiter)
        self._transport.write(payload)

    async def call(self, *words: bytes | str | int) -> Any:
        """Send one command and wait for its reply.

        Raises:
            FeatureStoreError, FeatureStoreUnavailable: an error reply, or the connection was lost.
        """
        reply = Reply(self._loop.create_future())
        self.send(resp.command(*words), reply)
        answer = await reply.future
        if isinstance(answer, ServerError):
            raise refusal(self.where, answer)
        return answer

    def close(self, why: str = "was closed") -> None:
        """Close it; waiting callers get FeatureStoreUnavailable."""
        if self._transport is not None:
            self._transport.abort()
        self._fail(f"{self.where}: the connection {why}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport (asyncio callback)."""
        # uvloop's transports are not subclasses of asyncio.Transport, but have the same methods.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_MAX_UNSENT_BYTES)

    def pause_writing(self) -> None:
        """Refuse new requests (asyncio callback)."""
        self._full = True

    def resume_writing(self) -> None:
        """Accept new requests (asyncio callback)."""
        self._full = False

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the free part of the buffer (asyncio callback)."""
        if self._begin == self._end:
            self._begin = self._end = 0
        elif len(self._buffer) - self._end < _ROOM_BYTES:
            self._make_room()
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass received bytes to the waiters (asyncio callback)."""
        self._end += nbytes
        self._received_at = self._loop.time()
        try:
            while self._begin < self._end:
                if not self._waiting:
                    raise ValueError("a reply without a request")
                self._begin, complete = self._waiting[0].feed(self._buffer, self._begin, self._end)
                if not complete:
                    break
                self._waiting.popleft()
        except ValueError as error:
            self.close(f"was closed: it received an invalid Redis reply ({error})")

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all waiting requests (asyncio callback)."""
        self._fail(f"{self.where}: the connection was lost{f' ({exc})' if exc else ''}")

    def _make_room(self) -> None:
        used = self._buffer[self._begin : self._end].copy()
        if 2 * len(used) > len(self._buffer):
            self._buffer = np.empty(2 * len(self._buffer), np.uint8)
            self._view = memoryview(self._buffer)  # type: ignore[arg-type]
        self._buffer[: len(used)] = used
        self._begin, self._end = 0, len(used)

    def _fail(self, text: str) -> None:
        self.closed = True
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.future.done():
                waiter.future.set_exception(FeatureStoreUnavailable(text))
