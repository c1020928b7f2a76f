"""Turns: a large amount of input of one connection is read in parts.

        a turn of the loop      read ▸ read ▸ read ▸ │ other callbacks │ postponed work ▸ │ poll

A client may write thousands of requests at a time. Each connection, and each stream of requests, works for
a bounded time; then its work is postponed and waits here, behind the input of other clients. All postponed
work shares one such time in each turn of the loop, first come, first served.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

#: Seconds that a connection, or a stream of requests, may work before the others have their turn. A request
#: needs some tens of microseconds, and callers wait for a few milliseconds.
TURN_S = 1e-3


class Waiting(Protocol):
    """Work that continues in a later turn."""

    def go_on(self) -> None:
        """Work for one turn; wait again if that was not enough."""


class Turns:
    """The postponed work of one listener; see the module docstring.

    Args:
        clock: seconds, monotonic.

    Attributes:
        clock: the clock of the constructor.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._waiting: dict[Waiting, None] = {}
        self._is_scheduled = False

    def __contains__(self, item: Waiting) -> bool:
        return item in self._waiting

    def wait(self, item: Waiting) -> None:
        """Postpone an item behind those that already wait; its `go_on` is called once."""
        self._waiting[item] = None
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def leave(self, item: Waiting) -> None:
        """Remove an item that no longer has to continue."""
        self._waiting.pop(item, None)

    def _turn(self) -> None:
        self._is_scheduled = False
        until = self.clock() + TURN_S
        try:
            for item in list(self._waiting):
                if item in self._waiting:  # it was not removed meanwhile
                    del self._waiting[item]
                    item.go_on()
                    if self.clock() > until:
                        break
        finally:
            if self._waiting and not self._is_scheduled:
                self._is_scheduled = True
                asyncio.get_running_loop().call_soon(self._turn)
