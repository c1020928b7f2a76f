"""Low-priority reads: connections whose last request was refused are read after all others.

        a turn of the loop      read ▸ read ▸ read ▸ │ batch ▸ batch ▸ │ late ▸ late │ poll
                                other clients          their answers     refused clients

A refusal is cheap, but two thousand a second need an eighth of a CPU's time, and other requests would wait
for them. So the input of a connection whose last answer was a refusal waits until the other connections of
this turn are read. It then yields for a few turns to queues with work, and is read a few connections at a
time. Nothing is refused here, and no connection starves: every few turns some are read, first come, first
served. A proxy's connection, which carries the requests of many clients, is delayed by one turn for each
two connections before it, some tenths of a millisecond each.
"""

from __future__ import annotations

import asyncio
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
    """The delayed input of one listener; see the module docstring.

    Args:
        is_pressed: returns whether other work waits for this loop.
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
