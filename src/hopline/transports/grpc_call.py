"""One gRPC call on an HTTP/2 stream: messages, metadata, deadline, status ("gRPC over HTTP2").

A call is admitted on its head, before a message is read: see `Method.admit`. A method begins with the
call's message, or, if the client streams, before the first one; it may answer at any time. Compressed
messages are decompressed when their turn comes. All limits apply to the decompressed size.

The file is long because one object must know everything about a call that limits and deadlines depend on:
received, waiting and answered messages.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from hopline.errors import BadRequest, Overloaded, UnsupportedEncoding
from hopline.ingress.certificates import Peer
from hopline.transports.budget import Budget
from hopline.transports.grpc_errors import CallError, StatusCode
from hopline.transports.grpc_unpacking import Arriving, Unpacking
from hopline.transports.http2_head import Head, block_of
from hopline.transports.http2_stream import Stream
from hopline.transports.outbox import SMALL_ANSWER_BYTES
from hopline.transports.turns import LARGE_BYTES, Turns

if TYPE_CHECKING:
    from hopline.transports.grpc_endpoint import GrpcEndpoint

#: Prefix of a message: a compression flag and its length.
PREFIX_BYTES = 5
ENCODINGS = b"identity, deflate, gzip"
_HEADERS = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_HEAD = block_of((*_HEADERS, (b"grpc-accept-encoding", ENCODINGS)))
_OK = block_of([(b"grpc-status", b"0")])
#: Units of `grpc-timeout` in seconds.
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
#: Stable code of a request that does not arrive in time, as over HTTP.
_LATE = "request_timeout"
#: Limit of an encoded status text: all clients accept trailers of this size.
_MAX_TEXT_BYTES = 4096
#: Characters of a client's value that an error text quotes.
MAX_QUOTED = 200
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


#: Status codes of refusals; see `http_lane.REFUSALS`.
_REFUSALS = frozenset(
    {
        StatusCode.UNAUTHENTICATED,
        StatusCode.PERMISSION_DENIED,
        StatusCode.RESOURCE_EXHAUSTED,
        StatusCode.UNAVAILABLE,
    }
)


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service.

    Attributes:
        name: without the service name.
        begin: called with the call and, unless the client streams, its message.
        streams: whether the client sends any number of messages, to `Call.listener`, which `begin` sets.
        admit: called with the call after its head; raises an error to refuse it. None admits all.
        max_bytes: limit of a message, if less than the endpoint's limit.
    """

    name: str
    begin: Callable[[Call, bytes], None]
    streams: bool = False
    admit: Callable[[Call], None] | None = None
    max_bytes: int | None = None


class Listener:
    """Receives the messages of a client that streams."""

    def heard(self) -> None:
        """Handle new input: check `Call.next_message` and `Call.is_heard`."""
        raise NotImplementedError

    def sent(self) -> None:
        """Handle that all answers were sent to the client, or that a request may begin now."""


Metadata: TypeAlias = Iterable[tuple[str, str]]


class Call:
    """The server's side of one call.

    Args:
        endpoint: limits, and the handler of calls that fail.
        stream: the HTTP/2 stream.
        method: the called method.
        head: the request head with the metadata.

    Attributes:
        begun: whether one of several answers was sent.
        client: the caller, if `Method.admit` set it.
        deadline: on the monotonic clock, in seconds; None without one.
        is_heard: whether a client that streams has sent its last message.
        listener: receives the messages of a client that streams.
        on_gone: called when the client cancels the call.
    """

    __slots__ = (
        "_endpoint",
        "_finished",
        "_head",
        "_is_due",
        "_is_late",
        "_kept",
        "_max_bytes",
        "_message",
        "_method",
        "_next",
        "_since",
        "_stream",
        "_unpacking",
        "begun",
        "client",
        "deadline",
        "is_heard",
        "listener",
        "on_gone",
    )

    def __init__(self, endpoint: GrpcEndpoint, stream: Stream, method: Method, head: Head) -> None:
        self._endpoint = endpoint
        self._stream = stream
        self._method = method
        self._head = head
        self._since = endpoint.now
        self._max_bytes = endpoint.max_message_bytes
        if method.max_bytes is not None and method.max_bytes < self._max_bytes:
            self._max_bytes = method.max_bytes
        #: Received bytes that wait: an incomplete message, or messages of a client that streams.
        self._kept = Arriving()
        #: The message of a call without streaming and its compression flag, until the client's end.
        self._message: tuple[int, bytes] | None = None
        #: One complete message of a client that streams, before it is stored.
        self._next: bytes | None = None
        self._unpacking: Unpacking | None = None
        self.begun = False
        self._finished = False
        self._is_due = False  # whether the method begins once the client has taken earlier answers
        self._is_late = False  # whether a message of a client that streams is late
        self.client: Any = None
        self.is_heard = False
        self.listener: Listener | None = None
        self.on_gone: Callable[[], object] | None = None
        self.deadline: float | None = None

    def start(self) -> None:
        """Admit the call, and begin with it if its client streams.

        Raises: the error that refuses it.
        """
        head, method, stream = self._head, self._method, self._stream
        if method.admit is not None:
            method.admit(self)
        timeout = head.get(b"grpc-timeout")
        if timeout is not None:
            self.deadline = time.monotonic() + _seconds(timeout)
        if head.num_bytes and not stream.keep(head.num_bytes):
            raise self.no_room()
        if method.streams:
            stream.lasts = True
            method.begin(self, b"")

    # Input from the client

    def metadata(self, name: str) -> str | None:
        """Return a value of the call's metadata; None if missing."""
        value = self._head.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def invocation_metadata(self) -> list[tuple[str, Any]]:
        """Return all metadata in the form of grpc.aio."""
        return [
            (name.decode("latin-1"), _binary(value) if name.endswith(b"-bin") else value.decode("latin-1"))
            for name, value in self._head.items()
            if not name.startswith(b":")
        ]

    # Output to the client

    def respond(self, message: bytes) -> bool:
        """Send the one answer of a successful call; if there is no room for it, fail and return False."""
        self._stream.give_back(self._stream.num_held)  # the request's
        if not self._send(message, _OK):
            self._endpoint.failed(self, self.no_room())
            return False
        self._finished = True
        return True

    def write(self, message: bytes) -> None:
        """Send one of several answers.

        Raises: Overloaded: there is no room for it.
        """
        if not self._send(message, b""):
            raise self.no_room()
        self.begun = True

    def _send(self, message: bytes, trailers: bytes) -> bool:
        head = _HEAD if not self.begun else b""
        size = len(message)
        if size > SMALL_ANSWER_BYTES:  # not copied
            prefix = b"\0%b" % size.to_bytes(4, "big")
            return self._stream.send_parts(head, (prefix, message), trailers)
        return self._stream.send(head, b"\0%b%b" % (size.to_bytes(4, "big"), message), trailers)

    def finish(self, code: StatusCode = StatusCode.OK, text: str = "", trailers: Metadata = ()) -> None:
        """End the call with a status.

        Args:
            code: status code.
            text: error text.
            trailers: additional metadata, ASCII.
        """
        if self._finished:
            return
        self._finished = True
        self._forget()
        if code is StatusCode.OK and not trailers:
            self._stream.send(b"" if self.begun else _HEAD, b"", _OK)
            return
        headers = [] if self.begun else list(_HEADERS)
        headers.append((b"grpc-status", b"%d" % code))
        if text:
            headers.append((b"grpc-message", _encoded(text)))
        headers += [(name.encode(), value.encode()) for name, value in trailers]
        self._stream.send(b"", b"", block_of(headers))
        if code in _REFUSALS:
            self._stream.be_late()

    @property
    def peer(self) -> Peer | None:
        """The holder of the connection's client certificate; None without one."""
        return self._stream.connection.peer

    def may_begin(self) -> bool:
        """Return whether a request may begin; if not, `Listener.sent` is called once it may."""
        return self._stream.may_begin()

    def keep(self, num_bytes: int) -> bool:
        """Count an answer that waits for earlier ones, until `give_back`; return False without room."""
        return self._stream.keep(num_bytes)

    @property
    def budget(self) -> Budget:
        """The memory of the process for requests and answers that wait."""
        return self._endpoint.budget

    @property
    def is_open(self) -> bool:
        """True if the call has no status yet and the client has not cancelled it."""
        return self._stream.is_open

    @property
    def has_more(self) -> bool:
        """True if a message, or a part of one, waits to be read."""
        return self._next is not None or bool(self._kept)

    @property
    def turns(self) -> Turns:
        """The turns of the listener."""
        return self._endpoint.turns

    def hold(self) -> None:
        """Stop the client from sending messages for now."""
        self._stream.hold()

    def let_go(self) -> None:
        """Allow the client to send messages again."""
        self._stream.let_go()

    # Called by the stream

    def data(self, data: bytes, is_last: bool) -> None:
        """Receive a piece of the client's data."""
        if self._finished:
            return
        try:
            self._take(data, is_last)
        except Exception as error:  # the boundary of a call: other calls of its connection continue
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        on_gone, self.on_gone = self.on_gone, None
        self._endpoint.failed(self, error)
        if on_gone is not None:
            on_gone()

    def gone(self) -> None:
        """Handle that the client cancelled the call."""
        on_gone = self.on_gone
        self._forget()
        self._finished = True
        if on_gone is not None:
            on_gone()

    def _forget(self) -> None:
        """Drop input and callbacks: references to this call would leave it to the garbage collector."""
        self.on_gone = self.listener = self._message = self._next = None
        if len(self._kept) > LARGE_BYTES:
            self.turns.drop(self._kept)
        self._kept = Arriving()
        if self._unpacking is not None:
            self._unpacking.cancel()
            self._unpacking = None

    def sent(self) -> None:
        """Handle that all answers were sent, or that a request may begin now."""
        if self.listener is not None:
            self.listener.sent()
        elif self._is_due and not self._finished:
            try:
                self._begin()
            except Exception as error:  # the boundary of a call
                self._fail(error)

    def check_time(self, now: float) -> None:
        """End the call if its client is too slow to send its request.

        Streams may last, but a message that has begun must arrive in time.
        """
        limit_s, stream = self._endpoint.read_timeout_s, self._stream
        if self._method.streams:
            if not self._kept or self._has_whole() or stream.holds:
                self._since = now
            elif now > self._since + limit_s and self.listener is not None:
                self._is_late = True
                self._hear(self.listener)
            return
        if not stream.is_heard and now > self._since + limit_s:
            text = f"the request did not arrive within {limit_s} s"
            self._endpoint.failed(self, CallError(StatusCode.DEADLINE_EXCEEDED, text, _LATE))

    def _hear(self, listener: Listener) -> None:
        """Call the listener so that it detects a late message."""
        try:
            listener.heard()
        except Exception as error:  # the boundary of a call
            self._fail(error)

    def _take(self, data: bytes, is_last: bool) -> None:
        if self._method.streams:
            self.is_heard = is_last
            self._take_more(data)
            return
        if data:
            self._take_one(data)
        if is_last:
            self._begin()

    def _take_one(self, data: bytes) -> None:
        """Receive data of a client that sends one message."""
        kept = self._kept
        if kept:
            self._keep(data)
            data = kept.head(PREFIX_BYTES)
        length = len(kept) or len(data)
        size = self._size(data) or PREFIX_BYTES
        if self._message is not None or length > size:
            raise BadRequest(f"{self._method.name} accepts only one message")
        if length < size:
            if not kept:
                self._keep(data)
        elif kept:
            self._stream.arrived(size)
            self._message = kept.take(PREFIX_BYTES)[0], kept.take(size - PREFIX_BYTES)
        elif self._stream.keep(size):
            self._message = data[0], data[PREFIX_BYTES:]
        else:
            raise self.no_room()

    def _take_more(self, data: bytes) -> None:
        """Receive data of a client that streams: a single complete message need not be stored first."""
        if data and not self._kept and self._size(data) == len(data):
            self._next = data
        elif data:
            self._keep(data)
        if self.listener is not None:
            self.listener.heard()
        if self._next is not None:  # its turn has not come yet
            data, self._next = self._next, None
            self._keep(data)

    def _size(self, data: bytes) -> int | None:
        """Return the size of the first message of the data, with its prefix; None if not known yet."""
        if len(data) < PREFIX_BYTES:
            return None
        size = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if size > self._max_bytes:
            raise CallError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"the message has {size} bytes; the limit is {self._max_bytes}"
                + (
                    " (server.max_body_bytes)"
                    if self._max_bytes == self._endpoint.max_message_bytes
                    else ""
                ),
                "request_too_large",
            )
        return PREFIX_BYTES + size

    def _has_whole(self) -> bool:
        """True if the stored data begin with a complete message."""
        head = self._kept.head(PREFIX_BYTES)
        return len(self._kept) >= PREFIX_BYTES + int.from_bytes(head[1:], "big")

    def _keep(self, data: bytes) -> None:
        if not self._stream.keep_arriving(len(data), self._endpoint.max_arriving_bytes):
            raise self.no_room()
        self._kept.append(data)

    def no_room(self) -> Overloaded:
        """Return the error of a request or an answer for which there is no room."""
        return Overloaded(
            "the memory for requests and answers that wait is full, for this connection "
            f"({self._endpoint.max_arriving_bytes} bytes of incomplete requests) or for this worker "
            f"({self._endpoint.budget.limit} bytes in total, server.max_pending_bytes); retry later",
        )

    def _begin(self) -> None:
        """Begin the method after the client's last byte."""
        if self._kept:
            raise BadRequest("the last message is incomplete")
        if self._message is None:
            raise BadRequest(f"{self._method.name} needs a message, but none was sent")
        self._is_due = not self._stream.may_begin()
        if self._is_due:
            return
        flag, message = self._message
        self._message = None
        if flag:
            self.unpack(flag, message, self._begin_unpacked)
        else:
            self._method.begin(self, message)

    def _begin_unpacked(self, message: bytes | Exception) -> None:
        if isinstance(message, Exception):  # raising it here would create a reference cycle by this frame
            self._fail(message)
            return
        try:
            self._method.begin(self, message)
        except Exception as error:  # the boundary of a call
            self._fail(error)

    def next_message(self) -> tuple[int, bytes] | None:
        """Return the next message of a client that streams, as arguments of `unpack`; None if incomplete.

        Its memory stays reserved until `give_back`.

        Raises:
            CallError: it is too large or late.
            BadRequest: the last one is incomplete.
            Overloaded: there is no room for it.
        """
        if self._next is not None:
            data, self._next = self._next, None
            if not self._stream.keep(len(data)):
                raise self.no_room()
            return data[0], data[PREFIX_BYTES:]
        kept = self._kept
        size = self._size(kept.head(PREFIX_BYTES))
        if size is None or len(kept) < size:
            if kept and self.is_heard:
                raise BadRequest("the last message is incomplete")
            if kept and self._is_late:
                text = f"a message did not arrive within {self._endpoint.read_timeout_s} s"
                raise CallError(StatusCode.DEADLINE_EXCEEDED, text, _LATE)
            return None
        self._since = self._endpoint.now
        flag, message = kept.take(PREFIX_BYTES)[0], kept.take(size - PREFIX_BYTES)
        self._stream.arrived(size)
        return flag, message

    def drop(self) -> None:
        """Drop messages that were not read."""
        size = len(self._kept)
        self._next, self._kept = None, Arriving()
        self._stream.arrived(size)
        self._stream.give_back(size)

    def give_back(self, num_bytes: int) -> None:
        """Release the memory of answered messages: prefixes, compressed and decompressed content."""
        self._stream.give_back(num_bytes)

    def unpack(self, flag: int, message: bytes, done: Callable[[bytes | Exception], None]) -> None:
        """Decompress a message if its client compressed it.

        Args:
            flag: 1 if it is compressed, else 0.
            message: as received.
            done: called with the content or with an error: immediately for a small message, else later,
                unless the call ends before.

        Raises: CallError, UnsupportedEncoding: the compression is not supported.
        """
        if not flag:
            done(message)
            return
        encoding = self.metadata("grpc-encoding") or "identity"
        if flag != 1 or encoding == "identity":
            raise CallError(
                StatusCode.INTERNAL,
                f"a message is compressed (flag {flag}), but grpc-encoding is {encoding[:MAX_QUOTED]}",
                BadRequest.code,
            )
        if encoding not in ("gzip", "deflate"):
            raise UnsupportedEncoding(
                f"grpc-encoding {encoding[:MAX_QUOTED]!r} is not supported; send gzip or deflate",
            )

        def unpacked(content: bytes | Exception) -> None:
            self._unpacking = None
            if not isinstance(content, Exception) and not self._stream.keep(len(content)):
                content = self.no_room()
            done(content)

        self._unpacking = self._endpoint.unpacker.unpack(
            self._stream.connection, encoding, message, self._max_bytes, unpacked
        )


def _encoded(text: str) -> bytes:
    """Encode a status text for its trailer, truncated if too long."""
    text = text[:_MAX_TEXT_BYTES]
    encoded = quote(text, safe=_PRINTABLE, errors="replace")
    while len(encoded) > _MAX_TEXT_BYTES:
        text = text[: len(text) * _MAX_TEXT_BYTES // len(encoded)]
        encoded = quote(text, safe=_PRINTABLE, errors="replace")
    return encoded.encode()


def _seconds(timeout: bytes) -> float:
    """Return the seconds of a `grpc-timeout`.

    Raises: BadRequest.
    """
    unit = _UNITS.get(timeout[-1:])
    if unit is None or not 1 < len(timeout) <= 9 or not timeout[:-1].isdigit():
        quoted = timeout[:MAX_QUOTED].decode("latin-1")
        raise BadRequest(f"invalid grpc-timeout {quoted!r} (example: 250m is 250 milliseconds)")
    return int(timeout[:-1]) * unit


def _binary(value: bytes) -> bytes:
    """Decode a metadata value whose name ends in -bin."""
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4))
    except binascii.Error:
        return b""
