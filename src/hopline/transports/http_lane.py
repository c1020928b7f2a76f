"""Low-priority reads: connections whose last answer was a refusal are read after all others.

        a turn of the loop      read ▸ read ▸ read ▸ │ batch ▸ batch ▸ │ low ▸ low │ poll
                                other connections      their answers     refused connections

A refusal is cheap, but two thousand a second take an eighth of a processor's time, and a request that
arrives then would wait for them. So a connection whose last answer was a refusal is read after the
other connections of this turn, waits a few turns while queues have something to run, and is read a few
requests at a time. Nothing is refused here, and no connection starves: every few turns read some, first
come, first served. A proxy's connection, which carries the requests of many clients, is late by one turn,
some tenths of a millisecond, for every two connections before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Protocol

#: Connections that are read in one turn.
_AT_ONCE = 2
#: Turns in a row that may be left to others who have something to run.
_LEFT_TO_OTHERS = 3
#: Statuses of refusals: no permission, too many requests, not available now.
REFUSALS = frozenset({401, 403, 429, 503})


class Latecomer(Protocol):
    """A connection."""

    def take_low_priority(self, data: bytes) -> None:
        """Read what has waited, then continue to read."""

    def pause_reading(self) -> None:
        """Let it send no more for now."""


class LowPriorityReads:
    """See the module; of one listener.

    Args:
        is_pressed: whether others wait for something to run in this loop.
    """

    def __init__(self, is_pressed: Callable[[], bool] = lambda: False) -> None:
        self._is_pressed = is_pressed
        self._num_left = 0
        self._is_scheduled = False
        #: connection -> what it sent, oldest first
        self._waiting: dict[Latecomer, bytes] = {}

    def __contains__(self, connection: Latecomer) -> bool:
        return connection in self._waiting

    def hold(self, connection: Latecomer, data: bytes) -> None:
        """Keep data until its turn; it comes by `take_low_priority`."""
        waiting = self._waiting
        if connection in waiting:
            waiting[connection] += data
            connection.pause_reading()
            return
        waiting[connection] = data
        self._schedule()

    def leave(self, connection: Latecomer) -> None:
        """It is gone."""
        self._waiting.pop(connection, None)

    def _schedule(self) -> None:
        if not self._is_scheduled:  # who left may have been the only one, and its turn is still to come
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
