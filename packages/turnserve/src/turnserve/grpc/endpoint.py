"""The door of gRPC: methods by path, and the listener's state for their calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from turnserve.budget import Budget
from turnserve.grpc.call import Call, Method
from turnserve.grpc.status import MAX_QUOTED, CallError, StatusCode
from turnserve.grpc.unpacking import Unpacker
from turnserve.http2.connection import Http2Connection
from turnserve.http2.head import Head, block_of, head_of
from turnserve.http2.listener import Http2Listener
from turnserve.http2.output import FREE_BYTES
from turnserve.http2.stream import Stream
from turnserve.turns import Turns

_GRPC = b"application/grpc"


class GrpcEndpoint(Http2Listener):
    """A listener as a factory of protocols.

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
        failed: ends a call with an error.
        max_arriving_bytes: limit of requests that have not begun, for one connection.
        unpacker: decompresses messages.
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
        super().__init__(
            budget or Budget.for_bodies(max_message_bytes),
            connection_age_s=connection_age_s,
            read_timeout_s=read_timeout_s,
            is_pressed=is_pressed,
            turns=turns,
        )
        self._methods = methods
        self.failed = fail
        self.max_message_bytes = max_message_bytes
        self.max_arriving_bytes = max_message_bytes + FREE_BYTES
        self.unpacker = Unpacker(self.budget)
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
