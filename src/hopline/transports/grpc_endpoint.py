"""What the connections of a gRPC listener share: methods, bounds, a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hopline.transports.budget import Budget
from hopline.transports.grpc_call import MAX_QUOTED, Call, Method
from hopline.transports.grpc_errors import CallError
from hopline.transports.grpc_status import StatusCode
from hopline.transports.grpc_unpacking import Unpacker
from hopline.transports.http2_connection import Http2Connection
from hopline.transports.http2_head import Head, block_of, head_of
from hopline.transports.http2_held import FREE_BYTES
from hopline.transports.http2_stream import Stream
from hopline.transports.http_lane import LowPriorityReads
from hopline.transports.turns import Turns

#: Jitter: connections opened together get different maximum ages.
_SPREAD = 0.2


class GrpcEndpoint:
    """What the connections of one listener share.

    Args:
        methods: by path.
        fail: ends a call with a failure.
        max_message_bytes: longer messages are refused.
        connection_age_s: a connection older than this is asked to reconnect.
        read_timeout_s: a request must have arrived whole by then.
        is_pressed: see `LowPriorityReads`.
        budget: of the process, for requests that are not answered; None makes one of four messages.
        turns: fair turns between connections; None creates them.

    Attributes:
        connections: that are open.
        budget: as given.
        max_arriving_bytes: of requests that nothing was begun with, of one connection together.
        lane: of those whose last answer was a refusal.
        turns: as given.
        unpacker: of compressed messages.
        closing: whether new connections are asked to close immediately.
    """

    def __init__(
        self,
        methods: Mapping[bytes, Method],
        fail: Callable[[Call, Exception], None],
        *,
        max_message_bytes: int,
        connection_age_s: float,
        read_timeout_s: float,
        is_pressed: Callable[[], bool] = lambda: False,
        budget: Budget | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._methods = methods
        self.failed = fail
        self.max_message_bytes = max_message_bytes
        self.max_arriving_bytes = max_message_bytes + FREE_BYTES
        self.budget = budget or Budget.for_bodies(max_message_bytes)
        self.unpacker = Unpacker(self.budget)
        self._connection_age_s = connection_age_s
        self.read_timeout_s = read_timeout_s
        self.connections: set[Http2Connection] = set()
        self.closing = False
        self.lane = LowPriorityReads(is_pressed)
        self.turns = turns or Turns()
        self.now = 0.0
        text = b"this port speaks gRPC, which is HTTP/2 with prior knowledge; HTTP/1.1 has its own port\n"
        self.not_http2 = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (len(text), text)
        )

    def __call__(self) -> Http2Connection:
        """A protocol for `loop.create_server`."""
        return Http2Connection(self)

    def open(self, stream: Stream, head: Head) -> Call | None:
        """Begin a call; None where it is refused already."""
        refusal = _refusal(head)
        if refusal is not None:
            stream.send(b"", b"", refusal)
            return None
        path = head.get(b":path", b"")
        method = self._methods.get(path)
        if method is None:
            name = path[:MAX_QUOTED].decode("latin-1")
            error = CallError(StatusCode.UNIMPLEMENTED, f"there is no method {name!r}")
            self.failed(Call(self, stream, _NO_METHOD, _NO_HEAD), error)
            return None
        call = Call(self, stream, method, head)
        try:
            call.start()
        except Exception as error:  # the boundary of a call
            self.failed(call, error)
            return None
        return call

    def age_of(self, connection: Http2Connection) -> float:
        """Seconds until a connection is asked to close; differs between connections."""
        share = hash(connection) // 16 % 64 / 64
        return self._connection_age_s * (1.0 - _SPREAD / 2 + _SPREAD * share)

    def tick(self, now: float) -> None:
        """Once a second: a coarse clock read by all connections keeps timers off the request path."""
        self.now = now
        for connection in list(self.connections):
            connection.check_time(now)

    def begin_close(self) -> None:
        """Tell all clients to go elsewhere; what they ask before they have heard of it is answered."""
        self.closing = True
        for connection in list(self.connections):
            connection.begin_close("the server is shutting down")

    @property
    def num_unaware(self) -> int:
        """Connections over which new calls may still come."""
        return sum(not connection.is_final for connection in self.connections)

    @property
    def num_unheard(self) -> int:
        """Connections over which a request is on its way."""
        return sum(connection.is_reading_requests for connection in self.connections)

    @property
    def num_waiting(self) -> int:
        """Connections with a call that is not answered yet."""
        return sum(not connection.idle for connection in self.connections)

    def abort(self) -> None:
        """Close everything, answered or not."""
        for connection in list(self.connections):
            connection.abort()


def _no_method(call: Call, message: bytes) -> None:
    """Never begun."""


_NO_METHOD = Method("", _no_method)
_NO_HEAD = head_of(())


def _refusal(head: Head) -> bytes | None:
    """The whole answer to a request that is not a gRPC call."""
    if head.get(b":method") != b"POST":
        return block_of([(b":status", b"405"), (b"allow", b"POST")])
    if not head.get(b"content-type", b"").startswith(b"application/grpc"):
        return block_of([(b":status", b"415")])
    return None
