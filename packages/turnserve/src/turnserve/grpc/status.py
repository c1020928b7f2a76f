"""gRPC's status codes, failures of calls, and their form in heads and trailers ("gRPC over HTTP2")."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Literal, TypeAlias
from urllib.parse import quote

from turnserve.http2.head import block_of

Metadata: TypeAlias = Iterable[tuple[str, str]]
#: Limit of an encoded status text: all clients accept trailers of this size.
_MAX_TEXT_BYTES = 4096
_PRINTABLE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
#: Units of `grpc-timeout` in seconds.
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
#: Characters of a client's value that an error text quotes.
MAX_QUOTED = 200
_HEADERS = ((b":status", b"200"), (b"content-type", b"application/grpc"))
#: Head of an answer with messages.
HEAD = block_of((*_HEADERS, (b"grpc-accept-encoding", b"identity, deflate, gzip")))
#: Trailers of a successful call.
OK = block_of([(b"grpc-status", b"0")])


class StatusCode(enum.IntEnum):
    """The 17 status codes of gRPC, by the names and numbers of its specification (doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallError(Exception):
    """A failure of a call.

    Attributes:
        code: the status code.
        name: a stable name, for programs.
        limit: the limit of the listener that was reached; "" if it was none of these.
        retry_after_s: seconds after which a retry may succeed; None if that is unknown.
    """

    def __init__(
        self,
        code: StatusCode,
        text: str,
        name: str,
        *,
        limit: Literal["", "message_bytes", "pending_bytes"] = "",
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.name = name
        self.limit = limit
        self.retry_after_s = retry_after_s


def invalid(text: str) -> CallError:
    """Return the error of a call that breaks the rules."""
    return CallError(StatusCode.INVALID_ARGUMENT, text, "bad_request")


def full(text: str) -> CallError:
    """Return the error of a call that has no room in the memory for requests and answers."""
    code = StatusCode.RESOURCE_EXHAUSTED
    return CallError(code, text, "overloaded", limit="pending_bytes", retry_after_s=1.0)


def status_block(code: StatusCode, text: str, trailers: Metadata, *, is_first: bool) -> bytes:
    """Encode the end of a call as a header block.

    Args:
        code: status code.
        text: error text.
        trailers: additional metadata, ASCII.
        is_first: no head was sent yet.
    """
    headers = list(_HEADERS) if is_first else []
    headers.append((b"grpc-status", b"%d" % code))
    if text:
        headers.append((b"grpc-message", _encoded(text)))
    headers += [(name.encode(), value.encode()) for name, value in trailers]
    return block_of(headers)


def _encoded(text: str) -> bytes:
    """Encode a status text for its trailer, truncated if too long."""
    text = text[:_MAX_TEXT_BYTES]
    encoded = quote(text, safe=_PRINTABLE, errors="replace")
    while len(encoded) > _MAX_TEXT_BYTES:
        text = text[: len(text) * _MAX_TEXT_BYTES // len(encoded)]
        encoded = quote(text, safe=_PRINTABLE, errors="replace")
    return encoded.encode()


def timeout_s(timeout: bytes) -> float:
    """Return the seconds of a `grpc-timeout`.

    Raises: CallError.
    """
    unit = _UNITS.get(timeout[-1:])
    if unit is None or not 1 < len(timeout) <= 9 or not timeout[:-1].isdigit():
        quoted = timeout[:MAX_QUOTED].decode("latin-1")
        raise invalid(f"invalid grpc-timeout {quoted!r} (example: 250m is 250 milliseconds)")
    return int(timeout[:-1]) * unit
