"""The state that HTTP/1.1 connections of a listener share: application, limits, clock, cached heads."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import Protocol, TypeAlias

from turnserve.budget import Budget
from turnserve.http1.messages import LAST, CachedRequestHead, Pending, Request, Response
from turnserve.turns import LowPriorityReads, Turns

#: Most answers between two waits.
_MOST_SKIPPED = 1023


class Spinner:
    """Waits awake for the next request after an answer.

    An idle loop sleeps, and waking it needs longer than answering a lookup. With one client that sends its
    next request after each answer, that was half of the time of each answer. Waiting awake is
    only worth its CPU time if a request comes. After each wait without a request, more answers pass before
    the next wait, as in hypervisors before they halt a processor (KVM's adaptive halt polling).

    Args:
        spin_s: how long to wait awake, seconds; 0 never waits.

    Attributes:
        is_on: True if it ever waits awake.
        num_pending: requests that other threads work on. Those threads need the interpreter more.
    """

    def __init__(self, spin_s: float) -> None:
        self._spin_s = spin_s
        self.is_on = spin_s > 0.0
        self.num_pending = 0
        self._until = 0.0
        self._spinning = False
        self._came = False
        self._penalty = self._skip = 0

    def came(self) -> None:
        """Record that a request arrived."""
        self._came = True

    def answered(self) -> None:
        """Record that an answer was sent, and maybe wait awake for the next request."""
        if self._spinning:
            if self._came:
                self._came = False
                self._penalty = 0
                self._until = time.monotonic() + self._spin_s
            return
        if self._skip:
            self._skip -= 1
            return
        self._spinning, self._came = True, False
        self._until = time.monotonic() + self._spin_s
        self._wait(asyncio.get_running_loop())

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reschedule in the loop's next turn; for that, the loop polls for input without sleeping."""
        if not self.num_pending:
            if time.monotonic() < self._until:
                loop.call_soon(self._wait, loop)
                return
            self._penalty = min(2 * self._penalty + 1, _MOST_SKIPPED)
            self._skip = self._penalty
        elif self._came:
            self._penalty = 0
        self._spinning = False


#: Limits of the cache of heads: entries, and bytes of one head.
_MAX_KNOWN_HEADS = 512
_MAX_KNOWN_BYTES = 2048
#: Headers that change how a message is read: such heads are not cached.
_NOT_CACHED = frozenset({b"transfer-encoding", b"expect", b"upgrade"})

#: The application. It must not raise: every failure is a Response.
Handler: TypeAlias = Callable[[Request], Response | Pending]
#: Builds a refusal from status and text, before the application gets the request.
Refusal: TypeAlias = Callable[[int, str], Response]
#: Checks the head of a large request; a response refuses it before its body is read.
Screen: TypeAlias = Callable[[Request], Response | None]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of a connection.

    Attributes:
        keep_alive_s: an idle connection is closed after this time, seconds.
        read_s: time limit for a complete request, seconds.
    """

    keep_alive_s: float = 75.0
    read_s: float = 30.0


class OpenConnection(Protocol):
    """The parts of a connection that its listener uses."""

    @property
    def idle(self) -> bool:
        """True if no request is being answered and no input waits to be read."""
        ...

    @property
    def is_arriving(self) -> bool:
        """True if the first request, or a part of a later one, has not arrived yet."""
        ...

    def check_time(self, now: float) -> None:
        """Check time limits, once a second."""

    def close_if_idle(self) -> None:
        """Close between requests."""

    def abort(self) -> None:
        """Close immediately."""


class HttpListener:
    """The shared state of the connections of one listener.

    Args:
        handler: the application.
        refusal: builds responses to requests that are refused while they are read.
        max_body_bytes: larger bodies are refused with 413.
        timeouts: limits of idle connections and of slow requests.
        screen: checks the heads of large requests; None allows all.
        spin_s: see `Spinner`.
        is_pressed: see `LowPriorityReads`.
        budget: memory for bodies above 64 KiB; None allows one of the largest size and 32 MiB more.
    """

    def __init__(
        self,
        handler: Handler,
        refusal: Refusal,
        *,
        max_body_bytes: int,
        timeouts: Timeouts = Timeouts(),
        screen: Screen | None = None,
        spin_s: float = 0.0,
        is_pressed: Callable[[], bool] = lambda: False,
        budget: Budget | None = None,
    ) -> None:
        self.handler = handler
        self.refusal = refusal
        self.max_body_bytes = max_body_bytes
        self.timeouts = timeouts
        self.screen = screen
        self.budget = budget or Budget.for_bodies(max_body_bytes)
        self.connections: set[OpenConnection] = set()
        self.lane = LowPriorityReads(is_pressed)
        self.turns = Turns()
        self.spinner = Spinner(spin_s)
        self.closing = False
        #: Called with the transport of a connection that is made after `begin_close`.
        self.on_late: Callable[[asyncio.BaseTransport], None] = lambda transport: None
        #: Bytes of a head -> the parsed head; see `remember`.
        self.known_heads: dict[bytes, CachedRequestHead] = {}
        self.now = 0.0
        self.date = b""
        self.tick(0.0)

    def tick(self, now: float) -> None:
        """Renew the date header, and check for idle and slow connections; called once a second.

        One coarse clock for all connections avoids timers in the request path.
        """
        self.now = now
        self.date = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"
        for connection in list(self.connections):
            connection.check_time(now)

    def remember(self, data: bytes, request: Request) -> None:
        """Cache the head of `data`, which contains only `request`.

        The requests of a client have different bodies but often the same head, and a lookup costs a tenth
        of parsing. Only heads whose body is described by Content-Length alone are cached.
        """
        end = data.find(b"\r\n\r\n") + 4
        headers = request.headers
        body_bytes = len(request.body)
        if (
            len(data) - end != body_bytes
            or request.connection is LAST
            or end > _MAX_KNOWN_BYTES
            or not _NOT_CACHED.isdisjoint(headers)
            or int(headers.get(b"content-length", b"0")) != body_bytes
        ):
            return
        if len(self.known_heads) >= _MAX_KNOWN_HEADS:
            self.known_heads.clear()
        self.known_heads[data[:end]] = CachedRequestHead(
            request.method, request.target, headers, body_bytes, request.connection
        )

    def begin_close(self) -> None:
        """Close each connection after its next answer."""
        self.closing = True

    def close_idle(self) -> None:
        """Close idle connections."""
        for connection in list(self.connections):
            connection.close_if_idle()

    def abort(self) -> None:
        """Close all connections without waiting for answers."""
        for connection in list(self.connections):
            connection.abort()

    @property
    def num_unheard(self) -> int:
        """Number of connections on which a request is arriving, or that have not sent their first one."""
        return sum(connection.is_arriving for connection in self.connections)

    @property
    def num_waiting(self) -> int:
        """Number of connections with an unanswered request."""
        return sum(not connection.idle for connection in self.connections)
