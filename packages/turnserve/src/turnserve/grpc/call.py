"""One gRPC call on an HTTP/2 stream: messages, metadata, deadline, status ("gRPC over HTTP2").

A call is admitted on its head, before a message is read: see `Method.admit`. A method begins with the
call's message, or, if the client streams, before the first one; it may answer at any time. Compressed
messages are decompressed when their turn comes. All limits apply to the decompressed size.
"""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from turnserve.budget import Budget
from turnserve.compression import CompressionError, DecompressedTooLarge, UnknownEncoding
from turnserve.grpc.incoming import Incoming, Limits
from turnserve.grpc.status import (
    HEAD,
    MAX_QUOTED,
    OK,
    CallError,
    Metadata,
    StatusCode,
    status_block,
    timeout_s,
)
from turnserve.grpc.unpacking import Unpacker, Unpacking
from turnserve.http2.head import Head
from turnserve.http2.stream import Stream
from turnserve.outbox import SMALL_ANSWER_BYTES
from turnserve.peers import Peer
from turnserve.turns import Turns

#: Status codes of refusals; see `turns.REFUSALS`.
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
        streams: True if the client sends any number of messages, to `Call.listener`, which `begin` sets.
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

    def received(self) -> None:
        """Handle new input: check `Call.next_message` and `Call.has_ended`."""
        raise NotImplementedError

    def sent(self) -> None:
        """Handle that all answers were sent to the client, or that a request may begin now."""


class CallOwner(Limits, Protocol):
    """The listener of a call."""

    failed: Callable[[Call, Exception], None]
    unpacker: Unpacker


class Call:
    """The server's side of one call.

    Args:
        endpoint: limits, and the handler of calls that fail.
        stream: the HTTP/2 stream.
        method: the called method.
        head: the request head with the metadata.

    Attributes:
        begun: True if one of several answers was sent.
        client: the caller, if `Method.admit` set it.
        deadline: on the monotonic clock, in seconds; None without one.
        listener: receives the messages of a client that streams.
        on_gone: called when the client cancels the call.
    """

    __slots__ = (
        "_endpoint",
        "_finished",
        "_head",
        "_incoming",
        "_is_due",
        "_method",
        "_stream",
        "_unpacking",
        "begun",
        "client",
        "deadline",
        "listener",
        "on_gone",
    )

    def __init__(self, endpoint: CallOwner, stream: Stream, method: Method, head: Head) -> None:
        self._endpoint = endpoint
        self._stream = stream
        self._method = method
        self._head = head
        self._incoming = Incoming(stream, endpoint, method.max_bytes, method.name)
        self._unpacking: Unpacking | None = None
        self.begun = False
        self._finished = False
        self._is_due = False  # whether the method begins once the client has taken earlier answers
        self.client: Any = None
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
            self.deadline = time.monotonic() + timeout_s(timeout)
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
        if not self._send(message, OK):
            self._endpoint.failed(self, self.no_room())
            return False
        self._finished = True
        return True

    def write(self, message: bytes) -> None:
        """Send one of several answers.

        Raises: CallError: there is no room for it.
        """
        if not self._send(message, b""):
            raise self.no_room()
        self.begun = True

    def _send(self, message: bytes, trailers: bytes) -> bool:
        head = HEAD if not self.begun else b""
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
            self._stream.send(b"" if self.begun else HEAD, b"", OK)
            return
        block = status_block(code, text, trailers, is_first=not self.begun)
        self._stream.send(b"", b"", block)
        if code in _REFUSALS:
            self._stream.be_late()

    @property
    def peer(self) -> Peer | None:
        """The holder of the connection's client certificate; None without one."""
        return self._stream.output.peer

    def may_begin(self) -> bool:
        """Return True if a request may begin; if not, `Listener.sent` is called once it may."""
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
        return self._incoming.has_more

    @property
    def has_ended(self) -> bool:
        """True if a client that streams has sent its last message."""
        return self._incoming.has_ended

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
        self.on_gone = self.listener = None
        self._incoming.clear()
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
        if self._method.streams:
            if self._incoming.check_time(now) and self.listener is not None:
                self._notify(self.listener)
            return
        try:
            self._incoming.check_request_time(now)
        except CallError as error:
            self._endpoint.failed(self, error)

    def _notify(self, listener: Listener) -> None:
        """Call the listener so that it detects a late message."""
        try:
            listener.received()
        except Exception as error:  # the boundary of a call
            self._fail(error)

    def _take(self, data: bytes, is_last: bool) -> None:
        incoming = self._incoming
        if self._method.streams:
            incoming.has_ended = is_last
            incoming.put(data)
            if self.listener is not None:
                self.listener.received()
            incoming.store()
            return
        if data:
            incoming.take_one(data)
        if is_last:
            self._begin()

    def no_room(self) -> CallError:
        """Return the error of a request or an answer for which there is no room."""
        return self._incoming.no_room()

    def _begin(self) -> None:
        """Begin the method after the client's last byte."""
        self._incoming.check_one()
        self._is_due = not self._stream.may_begin()
        if self._is_due:
            return
        flag, message = self._incoming.one()
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

        Raises: CallError: it is too large or late, or there is no room for it, or the last one is
            incomplete.
        """
        return self._incoming.next()

    def drop(self) -> None:
        """Drop messages that were not read."""
        self._incoming.drop()

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

        Raises: CallError: the compression is not supported.
        """
        if not flag:
            done(message)
            return
        encoding = self.metadata("grpc-encoding") or "identity"
        if flag != 1 or encoding == "identity":
            raise CallError(
                StatusCode.INTERNAL,
                f"a message is compressed (flag {flag}), but grpc-encoding is {encoding[:MAX_QUOTED]}",
                "bad_request",
            )
        if encoding not in ("gzip", "deflate"):
            text = f"grpc-encoding {encoding[:MAX_QUOTED]!r} is not supported; send gzip or deflate"
            raise CallError(StatusCode.UNIMPLEMENTED, text, "unsupported_encoding")

        def unpacked(content: bytes | Exception) -> None:
            self._unpacking = None
            if isinstance(content, CompressionError):
                content = _error_of(content)
            elif not isinstance(content, Exception) and not self._stream.keep(len(content)):
                content = self.no_room()
            done(content)

        self._unpacking = self._endpoint.unpacker.unpack(
            self._stream.output, encoding, message, self._incoming.max_bytes, unpacked
        )


def _error_of(error: CompressionError) -> CallError:
    """Return the error of a call whose message is not decompressed."""
    if isinstance(error, UnknownEncoding):
        return CallError(StatusCode.UNIMPLEMENTED, str(error), "unsupported_encoding")
    if isinstance(error, DecompressedTooLarge):
        limit: Literal["", "message_bytes"] = "message_bytes" if error.is_limit else ""
        return CallError(StatusCode.INVALID_ARGUMENT, str(error), "request_too_large", limit=limit)
    return CallError(StatusCode.INVALID_ARGUMENT, str(error), "bad_request")


def _binary(value: bytes) -> bytes:
    """Decode a metadata value whose name ends in -bin."""
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4))
    except binascii.Error:
        return b""
