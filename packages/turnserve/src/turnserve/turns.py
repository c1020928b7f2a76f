"""Turns: a large amount of input of one connection is read in parts.

        a turn of the loop      read ▸ read ▸ read ▸ │ other callbacks │ postponed work ▸ │ poll

A client may write thousands of requests at a time. Each connection, and each stream of requests, works for
a bounded time; then its work is postponed and waits here, behind the input of other clients. All postponed
work shares one such time in each turn of the loop, first come, first served.

An event loop reads up to 256 KB of each connection per turn, and up to 8 MB of a connection that sends
more. So a connection that sends much is read once, and again when its turn has come: only a few of them in
each turn of the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import islice
from typing import Protocol

#: Connections read in one turn.
_AT_ONCE = 2
#: Most turns in a row that are left to other work.
_LEFT_TO_OTHERS = 3
#: Statuses of refusals: not permitted, too many requests, or unavailable.
REFUSALS = frozenset({401, 403, 429, 503})


class Latecomer(Protocol):
    """A connection whose input can be delayed."""

    def take_low_priority(self, data: bytes) -> None:
        """Read the delayed input, and resume reading."""

    def pause_reading(self) -> None:
        """Stop reading for now."""


class LowPriorityReads:
    """The delayed input of one listener.

            a turn of the loop      read ▸ read ▸ read ▸ │ batch ▸ batch ▸ │ late ▸ late │ poll
                                    other clients          their answers     refused clients

    A refusal is cheap, but two thousand a second need an eighth of a CPU's time, and other requests would
    wait for them. So the input of a connection whose last answer was a refusal waits until the other
    connections of this turn are read. It then yields for a few turns to queues with work, and is read a few
    connections at a time. Nothing is refused here, and no connection starves: every few turns some are
    read, first come, first served. A proxy's connection, which carries the requests of many clients, is
    delayed by one turn for each two connections before it, some tenths of a millisecond each.

    Args:
        is_pressed: returns True if other work waits for this loop.
    """

    def __init__(self, is_pressed: Callable[[], bool] = lambda: False) -> None:
        self._is_pressed = is_pressed
        self._num_left = 0
        self._is_scheduled = False
        #: connection -> its input, oldest first
        self._waiting: dict[Latecomer, bytes] = {}

    def __contains__(self, connection: Latecomer) -> bool:
        return connection in self._waiting

    def hold(self, connection: Latecomer, data: bytes) -> None:
        """Store input until its turn; `take_low_priority` is called with it then."""
        waiting = self._waiting
        if connection in waiting:
            waiting[connection] += data
            connection.pause_reading()
            return
        waiting[connection] = data
        self._schedule()

    def leave(self, connection: Latecomer) -> None:
        """Remove a connection that is gone."""
        self._waiting.pop(connection, None)

    def _schedule(self) -> None:
        if not self._is_scheduled:  # a turn may still be scheduled after its connection left
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        waiting = self._waiting
        if waiting and self._num_left < _LEFT_TO_OTHERS and self._is_pressed():
            self._num_left += 1
            self._schedule()
            return
        self._num_left = 0
        turn = [(connection, waiting.pop(connection)) for connection in list(islice(waiting, _AT_ONCE))]
        if waiting:
            self._schedule()
        for connection, data in turn:
            connection.take_low_priority(data)


#: Seconds that a connection, or a stream of requests, may work before the others have their turn. A request
#: needs some tens of microseconds, and callers wait for a few milliseconds.
TURN_S = 1e-3
#: A read that fills most of a loop's buffer: more has arrived.
LONG_READ_BYTES = 128 * 1024
#: Connections that may be read again, or ended, in one turn of the loop: 2 MB, which take about a
#: millisecond.
MOST_READS = 8
#: Releasing this much memory to the system costs a fraction of a millisecond.
LARGE_BYTES = 1 << 20


class Waiting(Protocol):
    """Work that continues in a later turn."""

    def go_on(self) -> None:
        """Work for one turn; wait again if that was not enough."""


class _Dropped:
    """Large memory that is no longer needed; a part of it is released in each turn."""

    def __init__(self, memory: object, released: Callable[[], object] | None) -> None:
        self._memory: object = memory
        self._released = released

    def go_on(self) -> None:
        self._memory = None
        if self._released is not None:
            self._released()


class _Act:
    """One call."""

    def __init__(self, act: Callable[[], object]) -> None:
        self._act = act

    def go_on(self) -> None:
        self._act()


class Turns:
    """The postponed work of one listener; see the module docstring.

    Args:
        clock: seconds, monotonic.

    Attributes:
        clock: the clock of the constructor.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        #: Whether it waits to be read again.
        self._waiting: dict[Waiting, bool] = {}
        self._is_scheduled = False

    def __contains__(self, item: Waiting) -> bool:
        return item in self._waiting

    def wait(self, item: Waiting, *, to_be_read: bool = False) -> None:
        """Queue an item behind those that wait already; its `go_on` is called once.

        Args:
            to_be_read: all received bytes were read, and more may come then.
        """
        self._waiting[item] = to_be_read
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def drop(self, memory: object, released: Callable[[], object] | None = None) -> None:
        """Hold something large until its turn comes: giving 64 MiB back takes some milliseconds.

        Args:
            released: called once the memory is released, not before: until then it counts as used.
        """
        self.wait(_Dropped(memory, released))

    def skip(self, transport: asyncio.Transport, num_bytes: int) -> None:
        """Note that a read of so many bytes was dropped; a transport that sends more is read in turns.

        The senders of refused requests are read until they close, or they would not see the refusal.
        """
        if num_bytes >= LONG_READ_BYTES:
            transport.pause_reading()
            self.wait(
                _Act(lambda: None if transport.is_closing() else transport.resume_reading()),
                to_be_read=True,
            )

    def end(self, abort: Callable[[], object]) -> None:
        """Abort a connection when its turn comes.

        Many may reach a time limit together, and the kernel frees megabytes of each: half a millisecond.
        """
        self.wait(_Act(abort), to_be_read=True)

    def leave(self, item: Waiting) -> None:
        """Remove an item that no longer has to continue."""
        self._waiting.pop(item, None)

    def _turn(self) -> None:
        self._is_scheduled = False
        until = self.clock() + TURN_S
        num_reads = 0
        try:
            for item in list(self._waiting):
                if item in self._waiting:  # it was not removed meanwhile
                    num_reads += self._waiting.pop(item)
                    item.go_on()
                    if num_reads >= MOST_READS or self.clock() > until:
                        break
        finally:
            if self._waiting and not self._is_scheduled:
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self._turn)
