"""What the connections of an HTTP listener share: the application, bounds, a clock, cached heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from typing import TypeAlias

from hopline.transports.budget import Budget
from hopline.transports.http_connection import HttpConnection
from hopline.transports.http_lane import LowPriorityReads
from hopline.transports.http_messages import LAST, CachedRequestHead, Pending, Request, Response
from hopline.transports.spinner import Spinner
from hopline.transports.turns import Turns

#: Cached request heads: their number, and the length of the longest one.
_MAX_KNOWN_HEADS = 512
_MAX_KNOWN_BYTES = 2048
#: Headers that change how a message is read.
_PARSED_ANEW = frozenset({b"transfer-encoding", b"expect", b"upgrade"})

#: The application. Must not raise: every failure is a Response.
Handler: TypeAlias = Callable[[Request], Response | Pending]
#: A refusal before the application saw the request: status and text to response.
Refusal: TypeAlias = Callable[[int, str], Response]
#: Looks at the head of a large request: a response refuses it before its body is read.
Screen: TypeAlias = Callable[[Request], Response | None]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Bounds on the time of a connection.

    Attributes:
        keep_alive_s: an idle connection is closed after this, in seconds.
        read_s: a request must have arrived whole after this, in seconds.
    """

    keep_alive_s: float = 75.0
    read_s: float = 30.0


class HttpEndpoint:
    """What the connections of one listener share.

    Args:
        handler: the application.
        refusal: words for requests that are refused while they are read.
        max_body_bytes: larger bodies are refused with 413.
        timeouts: of idle connections and slow senders.
        screen: looks at the heads of large requests; None lets all of them come.
        spin_s: see `Spinner`.
        is_pressed: see `LowPriorityReads`.
        budget: for bodies above 64 KiB; None is room for four of the largest.
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
        self.connections: set[HttpConnection] = set()
        self.lane = LowPriorityReads(is_pressed)
        self.turns = Turns()
        self.spinner = Spinner(spin_s)
        self.closing = False
        #: Heads as received -> what the parser made of them; see `learn`.
        self.known_heads: dict[bytes, CachedRequestHead] = {}
        self.now = 0.0
        self.date = b""
        self.tick(0.0)

    def __call__(self) -> HttpConnection:
        """A protocol for `loop.create_server`."""
        return HttpConnection(self)

    def tick(self, now: float) -> None:
        """Once a second: the date header, and connections that are idle or slow.

        A coarse clock read by all connections is what keeps timers off the request path.
        """
        self.now = now
        self.date = b"date: " + formatdate(usegmt=True).encode() + b"\r\n"
        for connection in list(self.connections):
            connection.check_time(now)

    def learn(self, data: bytes, request: Request) -> None:
        """Remember the head of `data`, which held just `request`.

        A client's requests differ in their bodies: their heads are the same bytes time and again, and
        looking those up costs a tenth of parsing them. Only requests with a Content-Length are
        remembered.
        """
        end = data.find(b"\r\n\r\n") + 4
        headers = request.headers
        body_bytes = len(request.body)
        if (
            len(data) - end != body_bytes
            or request.connection is LAST
            or end > _MAX_KNOWN_BYTES
            or not _PARSED_ANEW.isdisjoint(headers)
            or int(headers.get(b"content-length", b"0")) != body_bytes
        ):
            return
        if len(self.known_heads) >= _MAX_KNOWN_HEADS:
            self.known_heads.clear()
        self.known_heads[data[:end]] = CachedRequestHead(
            request.method, request.target, headers, body_bytes, request.connection
        )

    def begin_close(self) -> None:
        """From now on each answer closes its connection."""
        self.closing = True

    def close_idle(self) -> None:
        """Close what waits for nothing."""
        for connection in list(self.connections):
            connection.close_if_idle()

    def abort(self) -> None:
        """Close everything, answered or not."""
        for connection in list(self.connections):
            connection.abort()

    @property
    def num_waiting(self) -> int:
        """Connections whose request is not answered yet."""
        return sum(not connection.idle for connection in self.connections)
