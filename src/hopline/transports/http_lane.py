"""The lane of those who were refused: a burst of them is read after all others, a few in each turn.

        every turn of the loop      read ▸ read ▸ read ▸ │ late ▸ late ▸ late ▸ late │ poll
                                    who was answered       who was refused

A refusal is cheap, yet sixty-four at once are a pause of milliseconds for everybody who asks just then.
So of connections whose last answer was a refusal only a few are read at once within a millisecond. What
comes on others waits until the rest of this turn was read, and goes on with a few of its kind in each
turn. Nothing is refused here, and nobody starves: each turn takes some, first come, first served. A
proxy's connection, which carries the requests of many, is late by a turn for each four that are late
before it, some tenths of a millisecond each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import islice
from typing import Protocol

#: Connections that are read in one turn, and those that are read at once within the time in seconds.
_AT_ONCE = 4
_WITHIN_S = 0.001
#: Statuses of refusals: who may not ask, who asks too often, who asks for what is not there now.
REFUSALS = frozenset({401, 403, 429, 503})


class Latecomer(Protocol):
    """A connection."""

    def take_late(self, data: bytes) -> None:
        """Read what has waited, and go on reading."""

    def pause_reading(self) -> None:
        """Let it send no more for now."""


class LateLane:
    """See the module; of one listener.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since, self._num_read = 0.0, 0
        #: connection -> what it sent, oldest first
        self._waiting: dict[Latecomer, bytes] = {}

    def __contains__(self, connection: Latecomer) -> bool:
        return connection in self._waiting

    def holds(self, connection: Latecomer, data: bytes) -> bool:
        """Whether data has to wait, and comes by `take_late`; else it is to be read at once."""
        waiting = self._waiting
        if connection in waiting:
            waiting[connection] += data
            connection.pause_reading()
            return True
        if not waiting:
            now = self._clock()
            if now - self._since > _WITHIN_S:
                self._since, self._num_read = now, 0
            self._num_read += 1
            if self._num_read <= _AT_ONCE:
                return False
            asyncio.get_running_loop().call_soon(self._turn)
        waiting[connection] = data
        return True

    def leave(self, connection: Latecomer) -> None:
        """It is gone."""
        self._waiting.pop(connection, None)

    def _turn(self) -> None:
        waiting = self._waiting
        turn = [(connection, waiting.pop(connection)) for connection in list(islice(waiting, _AT_ONCE))]
        if waiting:
            asyncio.get_running_loop().call_soon(self._turn)
        for connection, data in turn:
            connection.take_late(data)
