"""One gRPC call on a stream of HTTP/2: messages, metadata, deadline, status ("gRPC over HTTP2").

A method is begun with a call's message, or, where the client streams, with its first; it answers when it
likes, through the call.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from grpc import StatusCode

from hopline.errors import BadRequest
from hopline.transports.compression import decompress
from hopline.transports.http2_frames import ErrorCode
from hopline.transports.http2_head import Head, block_of
from hopline.transports.http2_stream import Stream

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


class CallError(Exception):
    """What ends a call with a status that no error of Hopline has.

    Attributes:
        code: that status.
    """

    def __init__(self, code: StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Method:
    """A method of a service.

    Attributes:
        name: without its service.
        begin: is given the call and, of one that does not stream, its message.
        streams: whether the client sends any number of messages, to `Call.listener`, which `begin` sets.
    """

    name: str
    begin: Callable[[Call, bytes], None]
    streams: bool = False


class Listener:
    """Takes the messages of a client that streams."""

    def message(self, flag: int, data: bytes) -> None:
        """One of them, as `Call.unpacked` takes it."""
        raise NotImplementedError

    def end(self) -> None:
        """The client has sent all."""
        raise NotImplementedError

    def sent(self) -> None:
        """All answers have left for the client."""


Metadata: TypeAlias = Iterable[tuple[str, str]]


class Call:
    """Args:
        endpoint: limits, and whom to tell that a call ended by itself.
        stream: its stream.
        method: that is called.
        head: metadata and more.

    Attributes:
        deadline: on the monotonic clock, in seconds; None without one.
        listener: of a client that streams.
        on_gone: called when the client gives the call up.
    """

    __slots__ = (
        "_begun",
        "_buffer",
        "_endpoint",
        "_finished",
        "_head",
        "_kept",
        "_method",
        "_num_unsent",
        "_since",
        "_stream",
        "_wanted",
        "_was_heard",
        "deadline",
        "listener",
        "on_gone",
    )

    def __init__(self, endpoint: GrpcEndpoint, stream: Stream, method: Method, head: Head) -> None:
        self._endpoint = endpoint
        self._stream = stream
        self._method = method
        self._head = head
        self._since = endpoint.now
        self._buffer = b""
        #: Of a message that is not whole, and the bytes that are missing.
        self._kept = bytearray()
        self._wanted = 0
        self._begun = False  # an answer
        self._finished = False
        self._num_unsent = 0
        self._was_heard = False
        self.listener: Listener | None = None
        self.on_gone: Callable[[], object] | None = None
        timeout = head.get(b"grpc-timeout")
        self.deadline = None if timeout is None else time.monotonic() + _seconds(timeout)
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
            trailers: metadata beside it, of ASCII.
        """
        if self._finished:
            return
        self._finished = True
        if code is StatusCode.OK and not trailers:
            self._stream.send(b"" if self._begun else _HEAD, b"", _OK)
            return
        headers = [] if self._begun else list(_HEADERS)
        headers.append((b"grpc-status", b"%d" % code.value[0]))
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
        except Exception as error:  # the boundary of a call: the others of its connection go on
            self._endpoint.failed(self, error)
            self.gone()

    def gone(self) -> None:
        """The client gave it up."""
        on_gone, self.on_gone = self.on_gone, None
        self.listener = None
        if on_gone is not None:
            on_gone()

    def sent(self) -> None:
        """All answers have left."""
        if self.listener is not None:
            self.listener.sent()

    def check_time(self, now: float) -> None:
        """Give up a client that does not come to its end, or takes no answer; streams may last."""
        limit_s, stream = self._endpoint.read_timeout_s, self._stream
        if self._method.streams:
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

    def _take(self, data: bytes, is_last: bool) -> None:
        if self._wanted:
            self._keep(data)
            self._wanted -= len(data)
            if self._wanted <= 0:
                data, self._kept, self._wanted = bytes(self._kept), bytearray(), 0
                self._stream.keep(-self._stream.num_held)
            else:
                data = b""
        while len(data) >= PREFIX_BYTES:
            size = PREFIX_BYTES + int.from_bytes(data[1:PREFIX_BYTES], "big")
            if size - PREFIX_BYTES > self._endpoint.max_message_bytes:
                raise CallError(
                    StatusCode.RESOURCE_EXHAUSTED,
                    f"a message of {size - PREFIX_BYTES} bytes is larger than "
                    f"{self._endpoint.max_message_bytes} (server.max_body_bytes)",
                )
            if len(data) < size:
                break
            flag, message, data = data[0], data[PREFIX_BYTES:size], data[size:]
            self._hear(flag, message)
            if not self._stream.is_open:
                return
        if data:
            size = PREFIX_BYTES
            if len(data) >= PREFIX_BYTES:
                size += int.from_bytes(data[1:PREFIX_BYTES], "big")
            self._keep(data)
            self._wanted = size - len(data)
        if is_last:
            self._hear_end()

    def _keep(self, data: bytes) -> None:
        self._kept += data
        limit = self._endpoint.max_held_bytes
        if self._stream.keep(len(data)) > limit:
            raise CallError(
                StatusCode.RESOURCE_EXHAUSTED,
                f"requests of over {limit} bytes together were begun over this connection and not ended",
            )

    def _hear(self, flag: int, message: bytes) -> None:
        if self._method.streams:
            if self.listener is not None:
                self.listener.message(flag, message)
        elif self._was_heard:
            raise CallError(StatusCode.INVALID_ARGUMENT, f"{self._method.name} takes one message")
        else:
            self._was_heard = True
            self._buffer = self.unpacked(flag, message)

    def _hear_end(self) -> None:
        if self._wanted:
            raise CallError(StatusCode.INVALID_ARGUMENT, "the last message is not whole")
        if self._method.streams:
            if self.listener is not None:
                self.listener.end()
        elif not self._was_heard:
            raise CallError(
                StatusCode.INVALID_ARGUMENT, f"{self._method.name} takes a message, but there is none"
            )
        else:
            message, self._buffer = self._buffer, b""
            self._method.begin(self, message)

    def unpacked(self, flag: int, message: bytes) -> bytes:
        """A message as it was before its client compressed it.

        Raises:
            CallError: it cannot be told how.
            BadRequest, RequestTooLarge: what it is, or becomes.
        """
        if not flag:
            return message
        encoding = self.metadata("grpc-encoding") or "identity"
        if flag != 1 or encoding == "identity":
            raise CallError(
                StatusCode.INTERNAL, f"a message is compressed ({flag}), and grpc-encoding {encoding}"
            )
        if encoding not in ("gzip", "deflate"):
            raise CallError(
                StatusCode.UNIMPLEMENTED,
                f"grpc-encoding {encoding!r} is not supported; send gzip or deflate",
            )
        return decompress(encoding, message, self._endpoint.max_message_bytes)


def _encoded(text: str) -> bytes:
    """A status' text as its trailer has it, cut if that would be too long."""
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
        raise BadRequest(f"grpc-timeout {timeout.decode('latin-1')!r} is none; 250m is 250 milliseconds")
    return int(timeout[:-1]) * unit


def _binary(value: bytes) -> bytes:
    """Of metadata whose name ends in -bin."""
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4))
    except binascii.Error:
        return b""
