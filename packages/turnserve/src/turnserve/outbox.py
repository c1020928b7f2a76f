"""Answers of one connection that its client has not taken: counted, sent in pieces, limited in time.

        answer ──▸ outbox ── a piece at a time ──▸ transport ──▸ client
                    │ counts in the budget
                    └ closed if the client takes too little within the time limit

An event loop's transport accepts any number of bytes. Over TLS it encrypts them immediately, and hides
how many the socket still holds. So a large answer stays here, and the transport gets pieces.
"""

from __future__ import annotations

import asyncio
import fcntl
import sys
import termios
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from turnserve.budget import Budget
from turnserve.turns import LARGE_BYTES, Turns

#: Answers up to this size need no room in the budget.
SMALL_ANSWER_BYTES: Final = 64 * 1024
#: Bytes that a client must take of what waits for it, or all of it, within the time limit.
LEAST_TAKEN_BYTES: Final = 64 * 1024
#: Bytes that a transport gets at a time, and those of one turn of the loop.
_PIECE_BYTES: Final = 256 * 1024
_TURN_BYTES: Final = 1 << 20


class Progress:
    """Decides when a client takes too little of what waits for it.

    Args:
        now: seconds, on the clock of later calls.
        num_taken: bytes that were taken until then, counted from any beginning.
    """

    __slots__ = ("_num_taken", "_since")

    def __init__(self, now: float, num_taken: int = 0) -> None:
        self._num_taken, self._since = num_taken, now

    def begin(self, num_taken: int, now: float) -> None:
        """Start the time again."""
        self._num_taken, self._since = num_taken, now

    def has_stopped(self, num_taken: int, now: float, limit_s: float) -> bool:
        """Return True if less than `LEAST_TAKEN_BYTES` were taken within the limit."""
        if num_taken - self._num_taken >= LEAST_TAKEN_BYTES:
            self.begin(num_taken, now)
        return now - self._since > limit_s


def num_buffered(transport: Any) -> int:
    """Return how many sent bytes the client has not confirmed: those of the transport and of the kernel.

    The kernel holds megabytes for a connection, and reports that it takes more only after a third of them.
    """
    num_bytes: int = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0:
        unsent = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
        num_bytes += int.from_bytes(unsent, sys.byteorder)
    return num_bytes


class Outbox:
    """The unsent answers of one HTTP/1.1 connection; see the module docstring.

    Args:
        transport: of the connection.
        budget: memory of the process for requests and answers.
        turns: releases large memory.
    """

    def __init__(self, transport: Any, budget: Budget, turns: Turns) -> None:
        self._transport = transport
        self._budget = budget
        self._turns = turns
        self._parts: deque[bytes | memoryview] = deque()
        self._reserved = 0
        self._is_paused = self._ends = False
        self._progress = Progress(0.0)

    @property
    def is_blocked(self) -> bool:
        """True if no further answer may begin: the client, or the loop, has to take this one first."""
        return self._is_paused or bool(self._parts)

    @property
    def has_parts(self) -> bool:
        """True if the transport does not have all bytes yet."""
        return bool(self._parts)

    def num_unsent(self) -> int:
        """Return how many bytes of answers the client has not confirmed."""
        return num_buffered(self._transport) + sum(map(len, self._parts))

    def write(self, data: bytes) -> None:
        """Send a few bytes, behind those that wait."""
        if self._parts:
            self._parts.append(data)
        else:
            self._transport.write(data)

    def reserve(self, num_bytes: int) -> bool:
        """Reserve room for a large answer until it is sent; return False if there is none."""
        if not self._budget.take(num_bytes):
            return False
        self._reserved += num_bytes
        return True

    def put(self, *parts: bytes) -> None:
        """Append a large answer; `pump` sends it."""
        self._parts += parts

    def pump(self) -> bool:
        """Give the transport what it accepts in this turn; return True if the client has to take it first.

        If more can be sent in a later turn, `has_parts` is true, and the result is False.
        """
        parts, num_bytes = self._parts, 0
        while parts and not self._is_paused and num_bytes < _TURN_BYTES:
            part = parts.popleft()
            if len(part) > _PIECE_BYTES:
                whole = memoryview(part)
                part = whole[:_PIECE_BYTES]
                parts.appendleft(whole[_PIECE_BYTES:])
            num_bytes += len(part)
            self._transport.write(part)
        if not self.is_blocked:
            self._release()
        if self._ends and not parts:
            # Later: asyncio's transports call `resume_writing` while they decide about their end.
            asyncio.get_running_loop().call_soon(self._transport.close)
        return self._is_paused

    def pause(self, now: float) -> None:
        """Note that the client does not read."""
        self._is_paused = True
        self._progress.begin(-self.num_unsent(), now)

    def resume(self) -> None:
        """Note that the client has read all that the transport had."""
        self._is_paused = False

    def has_stopped(self, now: float, limit_s: float) -> bool:
        """Return True if the client takes too little, or nothing."""
        return self._is_paused and self._progress.has_stopped(-self.num_unsent(), now, limit_s)

    def close(self) -> None:
        """Close the connection after all written bytes are sent."""
        self._ends = True
        if not self._parts:
            self._transport.close()

    def gone(self) -> None:
        """Drop what the client has not taken."""
        parts, reserved = self._parts, self._reserved
        self._parts, self._reserved, self._is_paused = deque(), 0, False
        if reserved > LARGE_BYTES:
            self._turns.drop(parts, _releasing(self._budget, reserved))
        elif reserved:
            self._budget.give_back(reserved)

    def _release(self) -> None:
        if self._reserved:
            reserved, self._reserved = self._reserved, 0
            self._budget.give_back(reserved)


def _releasing(budget: Budget, num_bytes: int) -> Callable[[], None]:
    return lambda: budget.give_back(num_bytes)
