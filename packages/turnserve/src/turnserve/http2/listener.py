"""The state that the connections of an HTTP/2 listener share: limits, a clock, the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from turnserve.budget import Budget
from turnserve.http2.head import Head
from turnserve.http2.stream import Receiver, Stream
from turnserve.turns import LowPriorityReads, Turns

#: Jitter: connections that are opened together get different maximum ages.
_SPREAD = 0.2


class OpenHttp2Connection(Protocol):
    """The parts of a connection that its listener uses."""

    @property
    def idle(self) -> bool:
        """True if no stream is open."""
        ...

    @property
    def is_final(self) -> bool:
        """True if the client knows that no further stream is accepted."""
        ...

    @property
    def is_reading_requests(self) -> bool:
        """True if a request is arriving that must be answered before the server ends."""
        ...

    def check_time(self, now: float) -> None:
        """Check time limits, once a second."""

    def begin_close(self, why: str) -> None:
        """Announce the end."""

    def abort(self) -> None:
        """Close immediately."""


class Http2Listener:
    """The shared state of the connections of one listener. Subclasses implement `open`.

    Args:
        budget: memory of the process for unanswered requests.
        connection_age_s: after this time, a client is asked to reconnect.
        read_timeout_s: time limit for a complete request, and for taking an answer.
        is_pressed: see `LowPriorityReads`.
        turns: schedules postponed work; None creates it.

    Attributes:
        closing: True if new connections are closed immediately.
        connections: the open connections.
        lane: low-priority reads of connections whose last answer was a refusal.
        not_http2: answer to a client of HTTP/1.
    """

    not_http2 = b""

    def __init__(
        self,
        budget: Budget,
        *,
        connection_age_s: float,
        read_timeout_s: float,
        is_pressed: Callable[[], bool] = lambda: False,
        turns: Turns | None = None,
    ) -> None:
        self.budget = budget
        self._connection_age_s = connection_age_s
        self.read_timeout_s = read_timeout_s
        self.connections: set[OpenHttp2Connection] = set()
        self.closing = False
        #: Called with the transport of a connection that is made after `begin_close`.
        self.on_late: Callable[[asyncio.BaseTransport], None] = lambda transport: None
        self.lane = LowPriorityReads(is_pressed)
        self.turns = turns or Turns()
        self.now = 0.0

    def open(self, stream: Stream, head: Head) -> Receiver | None:
        """Begin a request; return None if it was refused."""
        raise NotImplementedError

    def age_of(self, connection: OpenHttp2Connection) -> float:
        """Return the maximum age of a connection, seconds, with jitter."""
        share = hash(connection) // 16 % 64 / 64
        return self._connection_age_s * (1.0 - _SPREAD / 2 + _SPREAD * share)

    def tick(self, now: float) -> None:
        """Check all connections, once a second: one coarse clock avoids timers in the request path."""
        self.now = now
        for connection in list(self.connections):
            connection.check_time(now)

    def begin_close(self) -> None:
        """Ask all clients to reconnect elsewhere; requests that they sent before are still answered."""
        self.closing = True
        for connection in list(self.connections):
            connection.begin_close("the server is shutting down")

    @property
    def num_unaware(self) -> int:
        """Number of connections that may still send new calls."""
        return sum(not connection.is_final for connection in self.connections)

    @property
    def num_unheard(self) -> int:
        """Number of connections on which a request is arriving."""
        return sum(connection.is_reading_requests for connection in self.connections)

    @property
    def num_waiting(self) -> int:
        """Number of connections with an unanswered call."""
        return sum(not connection.idle for connection in self.connections)

    def abort(self) -> None:
        """Close all connections without waiting for answers."""
        for connection in list(self.connections):
            connection.abort()
