"""One gRPC call on a stream of HTTP/2: messages, metadata, deadline, status ("gRPC over HTTP2").

A call is admitted on its head, before a message is read: see `Method.admit`. A method is begun with the
call's message, or, where the client streams, before the first one; it answers when it likes. Compressed
messages are unpacked when their turn comes, and are what they become to every bound.

The file is long because one object has to know all of a call that bounds and deadlines are about: what
came, what waits and what was answered.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from hopline.errors import BadRequest
from hopline.transports.grpc_arriving import Arriving
from hopline.transports.grpc_errors import CallError
from hopline.transports.grpc_status import StatusCode
from hopline.transports.grpc_unpacking import Unpacking
from hopline.transports.http2_frames import ErrorCode
from hopline.transports.http2_head import Head, block_of
from hopline.transports.http2_stream import Stream
from hopline.transports.turns import LARGE_BYTES, Turns

if TYPE_CHECKING:
    from hopline.transports.grpc_endpoint import GrpcEndpoint

#: Compressed or not, and the length of a message.
PREFIX_BYTES = 5
ENCODINGS = b"identity, deflate, gzip"
_HEADERS = ((b":status", b"200"), (b"content-type", b"application/grpc"))
_HEAD = block_of((*_HEADERS, (b"grpc-accept-encoding", ENCODINGS)))
_OK = block_of([(b"grpc-status", b"0")])
#: Seconds of the units of `grpc-timeout`.
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
#: Of a status' text, encoded: what clients surely take in their trailers.
_MAX_TEXT_BYTES = 4096
#: Characters of what a client sent that a text repeats.
MAX_QUOTED = 200
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


#: Statuses of refusals, as `http_lane.REFUSALS` are.
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
        name: without its service.
        begin: is given the call and, of one that does not stream, its message.
        streams: whether the client sends any number of messages, to `Call.listener`, which `begin` sets.
        admit: is given the call once its head has come, and raises what refuses it; None admits all.
        max_bytes: of a message, where that is less than the endpoint's limit.
    """

    name: str
    begin: Callable[[Call, bytes], None]
    streams: bool = False
    admit: Callable[[Call], None] | None = None
    max_bytes: int | None = None


class Listener:
    """Takes the messages of a client that streams."""

    def heard(self) -> None:
        """Something came: `Call.next_message` may have a message, and `Call.is_heard` may be true now."""
        raise NotImplementedError

    def sent(self) -> None:
        """All answers have left for the client."""


Metadata: TypeAlias = Iterable[tuple[str, str]]


class Call:
    """One gRPC call on an HTTP/2 stream.

    Args:
        endpoint: limits, and what is notified when a call ends without its handler.
        stream: its stream.
        method: that is called.
        head: metadata and more.

    Attributes:
        client: the caller, once `Method.admit` has identified it.
        deadline: on the monotonic clock, in seconds; None without one.
        is_heard: whether a client that streams has sent all it has to.
        listener: of a client that streams.
        on_gone: called when the client gives the call up.
    """

    __slots__ = (
        "_begun",
        "_endpoint",
        "_finished",
        "_head",
        "_is_late",
        "_kept",
        "_max_bytes",
        "_message",
        "_method",
        "_next",
        "_num_unsent",
        "_since",
        "_stream",
        "_unpacking",
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
        #: What came and was not begun with, where it is not a whole message of a call that has one.
        self._kept = Arriving()
        #: The one message of a call that has one, and whether it is compressed, until its client's end.
        self._message: tuple[int, bytes] | None = None
        #: One whole message of a client that streams, before it is stored.
        self._next: bytes | None = None
        self._unpacking: Unpacking | None = None
        self._begun = False  # an answer
        self._finished = False
        self._is_late = False  # a message of a client that streams
        self._num_unsent = 0
        self.client: Any = None
        self.is_heard = False
        self.listener: Listener | None = None
        self.on_gone: Callable[[], object] | None = None
        self.deadline: float | None = None

    def start(self) -> None:
        """Admit the call, and begin with it where its client streams.

        Raises: what it is refused with.
        """
        head, method, stream = self._head, self._method, self._stream
        if method.admit is not None:
            method.admit(self)
        timeout = head.get(b"grpc-timeout")
        if timeout is not None:
            self.deadline = time.monotonic() + _seconds(timeout)
        if head.num_bytes and not stream.keep(head.num_bytes):
            raise self._no_room()
        if method.streams:
            stream.lasts = True
            method.begin(self, b"")

    # What the client said

    def metadata(self, name: str) -> str | None:
        """A value of the call's metadata; None where it has none of that name."""
        value = self._head.get(name.encode())
        return None if value is None else value.decode("latin-1")

    def invocation_metadata(self) -> list[tuple[str, Any]]:
        """All metadata, as grpc.aio gives it."""
        return [
            (name.decode("latin-1"), _binary(value) if name.endswith(b"-bin") else value.decode("latin-1"))
            for name, value in self._head.items()
            if not name.startswith(b":")
        ]

    # What the client gets

    def respond(self, message: bytes) -> None:
        """The one answer of a call that went well."""
        self._finished = True
        data = b"\0%b%b" % (len(message).to_bytes(4, "big"), message)
        self._stream.send(_HEAD if not self._begun else b"", data, _OK)

    def write(self, message: bytes) -> None:
        """One of several answers."""
        data = b"\0%b%b" % (len(message).to_bytes(4, "big"), message)
        self._stream.send(_HEAD if not self._begun else b"", data, b"")
        self._begun = True

    def finish(self, code: StatusCode = StatusCode.OK, text: str = "", trailers: Metadata = ()) -> None:
        """End the call with a status.

        Args:
            code: of the status.
            text: for people.
            trailers: further metadata, ASCII.
        """
        if self._finished:
            return
        self._finished = True
        self._forget()
        if code is StatusCode.OK and not trailers:
            self._stream.send(b"" if self._begun else _HEAD, b"", _OK)
            return
        headers = [] if self._begun else list(_HEADERS)
        headers.append((b"grpc-status", b"%d" % code))
        if text:
            headers.append((b"grpc-message", _encoded(text)))
        headers += [(name.encode(), value.encode()) for name, value in trailers]
        self._stream.send(b"", b"", block_of(headers))
        if code in _REFUSALS:
            self._stream.be_late()

    @property
    def num_unsent_bytes(self) -> int:
        """Of answers that the client does not take yet."""
        return self._stream.num_pending

    @property
    def is_open(self) -> bool:
        """Until its status is given, or the client gave it up."""
        return self._stream.is_open

    @property
    def has_more(self) -> bool:
        """Whether there is a message, or a part of one, that was not taken."""
        return self._next is not None or bool(self._kept)

    @property
    def turns(self) -> Turns:
        """Whose turn it is."""
        return self._endpoint.turns

    def hold(self) -> None:
        """Let the client send no more messages for now."""
        self._stream.hold()

    def let_go(self) -> None:
        """Let it send more."""
        self._stream.let_go()

    # Called by the stream

    def data(self, data: bytes, is_last: bool) -> None:
        """Take a piece of the client's half."""
        if self._finished:
            return
        try:
            self._take(data, is_last)
        except Exception as error:  # the boundary of a call: others on its connection continue
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        on_gone, self.on_gone = self.on_gone, None
        self._endpoint.failed(self, error)
        if on_gone is not None:
            on_gone()

    def gone(self) -> None:
        """The client gave it up."""
        on_gone = self.on_gone
        self._forget()
        self._finished = True
        if on_gone is not None:
            on_gone()

    def _forget(self) -> None:
        """Drop the message and all callbacks: a reference cycle would wait for the garbage collector."""
        self.on_gone = self.listener = self._message = self._next = None
        if len(self._kept) > LARGE_BYTES:
            self.turns.drop(self._kept)
        self._kept = Arriving()
        if self._unpacking is not None:
            self._unpacking.cancel()
            self._unpacking = None

    def sent(self) -> None:
        """All answers have left."""
        if self.listener is not None:
            self.listener.sent()

    def check_time(self, now: float) -> None:
        """Give up a client that does not come to its end, or takes no answer.

        Streams may last, but not a message of them that has begun.
        """
        limit_s, stream = self._endpoint.read_timeout_s, self._stream
        if self._method.streams:
            if not self._kept or self._has_whole() or stream.holds:
                self._since = now
            elif now > self._since + limit_s and self.listener is not None:
                self._is_late = True
                self._hear(self.listener)
            return
        unsent, self._num_unsent = self._num_unsent, stream.num_pending
        if stream.is_heard and (not stream.num_pending or stream.num_pending != unsent):
            self._since = now
        elif now > self._since + limit_s:
            if stream.is_heard:
                stream.reset(ErrorCode.CANCEL)
                return
            text = f"the request did not arrive within {limit_s} s"
            self._endpoint.failed(self, CallError(StatusCode.DEADLINE_EXCEEDED, text))

    def _hear(self, listener: Listener) -> None:
        """Have the listener find that a message is late."""
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
        """Of a client that sends one message."""
        kept = self._kept
        if kept:
            self._keep(data)
            data = kept.head(PREFIX_BYTES)
        length = len(kept) or len(data)
        size = self._size(data) or PREFIX_BYTES
        if self._message is not None or length > size:
            raise CallError(StatusCode.INVALID_ARGUMENT, f"{self._method.name} takes one message")
        if length < size:
            if not kept:
                self._keep(data)
        elif kept:
            self._stream.arrived(size)
            self._message = kept.take(PREFIX_BYTES)[0], kept.take(size - PREFIX_BYTES)
        elif self._stream.keep(size):
            self._message = data[0], data[PREFIX_BYTES:]
        else:
            raise self._no_room()

    def _take_more(self, data: bytes) -> None:
        """Of a client that streams: most send one message at a time, which need not be stored first."""
        if data and not self._kept and self._size(data) == len(data):
            self._next = data
        elif data:
            self._keep(data)
        if self.listener is not None:
            self.listener.heard()
        if self._next is not None:  # its turn has not come
            data, self._next = self._next, None
            self._keep(data)

    def _size(self, data: bytes) -> int | None:
        """Size of the message at the start of data, with its prefix; None where too few bytes have come."""
        if len(data) < PREFIX_BYTES:
            return None
        size = int.from_bytes(data[1:PREFIX_BYTES], "big")
        if size > self._max_bytes:
            raise CallError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"a message of {size} bytes is larger than {self._max_bytes}"
                + (
                    " (server.max_body_bytes)"
                    if self._max_bytes == self._endpoint.max_message_bytes
                    else ""
                ),
            )
        return PREFIX_BYTES + size

    def _has_whole(self) -> bool:
        """Whether what is kept begins with a whole message."""
        head = self._kept.head(PREFIX_BYTES)
        return len(self._kept) >= PREFIX_BYTES + int.from_bytes(head[1:], "big")

    def _keep(self, data: bytes) -> None:
        if not self._stream.keep_arriving(len(data), self._endpoint.max_arriving_bytes):
            raise self._no_room()
        self._kept.append(data)

    def _no_room(self) -> CallError:
        return CallError(
            StatusCode.RESOURCE_EXHAUSTED,
            "requests that are not answered yet hold all the memory that they may, over this connection "
            f"({self._endpoint.max_arriving_bytes} bytes that were not begun with) or in this worker "
            f"({self._endpoint.budget.limit} bytes in all, server.max_pending_bytes); ask again later",
        )

    def _begin(self) -> None:
        """All has come."""
        if self._kept:
            raise CallError(StatusCode.INVALID_ARGUMENT, "the last message is not whole")
        if self._message is None:
            raise CallError(
                StatusCode.INVALID_ARGUMENT, f"{self._method.name} takes a message, but there is none"
            )
        flag, message = self._message
        self._message = None
        if flag:
            self.unpack(flag, message, self._begin_unpacked)
        else:
            self._method.begin(self, message)

    def _begin_unpacked(self, message: bytes | Exception) -> None:
        if isinstance(message, Exception):  # raised here, it would refer to itself by this frame
            self._fail(message)
            return
        try:
            self._method.begin(self, message)
        except Exception as error:  # the boundary of a call
            self._fail(error)

    def next_message(self) -> tuple[int, bytes] | None:
        """The next message of a client that streams, as `unpack` takes it; None where none has come whole.

        What it holds is held until `give_back`.

        Raises: CallError: it is too large, late, or the last one and not whole, or there is no room for it.
        """
        if self._next is not None:
            data, self._next = self._next, None
            if not self._stream.keep(len(data)):
                raise self._no_room()
            return data[0], data[PREFIX_BYTES:]
        kept = self._kept
        size = self._size(kept.head(PREFIX_BYTES))
        if size is None or len(kept) < size:
            if kept and self.is_heard:
                raise CallError(StatusCode.INVALID_ARGUMENT, "the last message is not whole")
            if kept and self._is_late:
                text = f"a message did not arrive within {self._endpoint.read_timeout_s} s"
                raise CallError(StatusCode.DEADLINE_EXCEEDED, text)
            return None
        self._since = self._endpoint.now
        flag, message = kept.take(PREFIX_BYTES)[0], kept.take(size - PREFIX_BYTES)
        self._stream.arrived(size)
        return flag, message

    def drop(self) -> None:
        """Forget messages that were not taken."""
        size = len(self._kept)
        self._next, self._kept = None, Arriving()
        self._stream.arrived(size)
        self._stream.give_back(size)

    def give_back(self, num_bytes: int) -> None:
        """Messages of a client that streams are answered: with prefixes, packed and unpacked."""
        self._stream.give_back(num_bytes)

    def unpack(self, flag: int, message: bytes, done: Callable[[bytes | Exception], None]) -> None:
        """Read a message as it was before its client compressed it.

        Args:
            flag: whether it is compressed.
            message: as it came.
            done: called with the message or its error: immediately where it is small, else later,
                unless the call ends before.

        Raises: CallError: its encoding is unknown.
        """
        if not flag:
            done(message)
            return
        encoding = self.metadata("grpc-encoding") or "identity"
        if flag != 1 or encoding == "identity":
            raise CallError(
                StatusCode.INTERNAL,
                f"a message is compressed ({flag}), and grpc-encoding {encoding[:MAX_QUOTED]}",
            )
        if encoding not in ("gzip", "deflate"):
            raise CallError(
                StatusCode.UNIMPLEMENTED,
                f"grpc-encoding {encoding[:MAX_QUOTED]!r} is not supported; send gzip or deflate",
            )

        def unpacked(content: bytes | Exception) -> None:
            self._unpacking = None
            if not isinstance(content, Exception) and not self._stream.keep(len(content)):
                content = self._no_room()
            done(content)

        self._unpacking = self._endpoint.unpacker.unpack(
            self._stream.connection, encoding, message, self._max_bytes, unpacked
        )


def _encoded(text: str) -> bytes:
    """A status' text as its trailer has it, cut if that would be too long."""
    text = text[:_MAX_TEXT_BYTES]
    encoded = quote(text, safe=_PRINTABLE, errors="replace")
    while len(encoded) > _MAX_TEXT_BYTES:
        text = text[: len(text) * _MAX_TEXT_BYTES // len(encoded)]
        encoded = quote(text, safe=_PRINTABLE, errors="replace")
    return encoded.encode()


def _seconds(timeout: bytes) -> float:
    """Of a `grpc-timeout`.

    Raises: BadRequest.
    """
    unit = _UNITS.get(timeout[-1:])
    if unit is None or not 1 < len(timeout) <= 9 or not timeout[:-1].isdigit():
        quoted = timeout[:MAX_QUOTED].decode("latin-1")
        raise BadRequest(f"invalid grpc-timeout {quoted!r} (example: 250m is 250 milliseconds)")
    return int(timeout[:-1]) * unit


def _binary(value: bytes) -> bytes:
    """Of metadata whose name ends in -bin."""
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4))
    except binascii.Error:
        return b""
