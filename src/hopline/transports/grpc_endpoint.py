"""The state that the connections of a gRPC listener share: methods, limits, a clock."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from hopline.transports.budget import Budget
from hopline.transports.grpc_call import MAX_QUOTED, Call, Method
from hopline.transports.grpc_errors import CallError, StatusCode
from hopline.transports.grpc_unpacking import Unpacker
from hopline.transports.http2_connection import Http2Connection
from hopline.transports.http2_head import Head, block_of, head_of
from hopline.transports.http2_stream import Stream
from hopline.transports.http2_unsent import FREE_BYTES
from hopline.transports.turns import LowPriorityReads, Turns

#: Jitter: connections that are opened together get different maximum ages.
_SPREAD = 0.2
_GRPC = b"application/grpc"


class GrpcEndpoint:
    """The shared state of the connections of one listener.

    Args:
        methods: by path.
        fail: ends a call with an error.
        max_message_bytes: longer messages are refused.
        connection_age_s: after this time, a client is asked to reconnect.
        read_timeout_s: time limit for a complete request.
        is_pressed: see `LowPriorityReads`.
        budget: memory of the process for unanswered requests; None creates one of four messages.
        turns: schedules postponed work; None creates it.

    Attributes:
        connections: the open connections.
        budget: memory for unanswered requests.
        max_arriving_bytes: limit of requests that have not begun, for one connection.
        lane: low-priority reads of connections whose last answer was a refusal.
        turns: schedules postponed work.
        unpacker: decompresses messages.
        closing: whether new connections are closed immediately.
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
        text = b"this port serves gRPC (HTTP/2 with prior knowledge); use the HTTP port for HTTP/1.1\n"
        self.not_http2 = (
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%b" % (len(text), text)
        )

    def __call__(self) -> Http2Connection:
        """Return a protocol for `loop.create_server`."""
        return Http2Connection(self)

    def open(self, stream: Stream, head: Head) -> Call | None:
        """Begin a call; return None if it was refused."""
        kind = head.get(b"content-type", b"")
        codec = b"" if kind == _GRPC else _codec(kind)
        is_post = head.get(b":method") == b"POST"
        if codec is None or not is_post:
            stream.send(b"", b"", _NOT_GRPC if is_post else _NOT_POST)
            return None
        if codec not in (b"", b"proto"):
            name = codec[:MAX_QUOTED].decode("latin-1")
            text = f"messages of {name!r} are not supported; send application/grpc+proto"
            error = CallError(StatusCode.UNIMPLEMENTED, text, "unsupported_media_type")
            self.failed(Call(self, stream, _NO_METHOD, _NO_HEAD), error)
            return None
        path = head.get(b":path", b"")
        method = self._methods.get(path)
        if method is None:
            name = path[:MAX_QUOTED].decode("latin-1")
            error = CallError(StatusCode.UNIMPLEMENTED, f"unknown method {name!r}", "not_found")
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


def _no_method(call: Call, message: bytes) -> None:
    """Do nothing: this method never begins."""


_NO_METHOD = Method("", _no_method)
_NO_HEAD = head_of(())


#: Complete responses to requests that are not gRPC.
_NOT_POST = block_of([(b":status", b"405"), (b"allow", b"POST")])
_NOT_GRPC = block_of([(b":status", b"415")])


def _codec(content_type: bytes) -> bytes | None:
    """Return the codec of the messages that a content type names, such as proto; None if it is not gRPC.

    gRPC-Web has names that begin alike, and other frames.
    """
    kind = content_type.partition(b";")[0].strip().lower()
    name, plus, codec = kind.partition(b"+")
    return (codec if plus else b"") if name == _GRPC else None
