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
from typing import Protocol

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
