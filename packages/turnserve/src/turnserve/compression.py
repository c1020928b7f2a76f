"""Decompression of request bodies, bounded: a few kilobytes must not become gigabytes.

A body has a share per piece of 64 KiB that was sent. A decompressed body stores how many bytes were sent,
which limits the objects that an application builds from it.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

#: Size of a piece. A text up to this size needs no other limit; shares are per piece.
PIECE_BYTES = 64 * 1024
#: Largest decompressed size of a compressed piece, bytes.
TEXT = 4 * 2**20
#: Encodings that `decompress` supports, in the form of the Accept-Encoding header.
ACCEPTED = "gzip, deflate"
_GZIP = zlib.MAX_WBITS | 16
#: Characters of an encoding that an error text quotes.
_MAX_QUOTED = 200
#: Each encoding needs as much time as a whole body.
_MAX_ENCODINGS = 4
#: Each member needs a few microseconds, even an empty one. bgzip writes one per 64 KiB.
_MAX_MEMBERS = 10_000
#: Bytes passed to zlib at a time: zlib copies the data after the end of a stream.
_FIRST_BYTES, _MOST_BYTES = 512, 16 * 1024


class CompressionError(Exception):
    """A body that is not decompressed."""


class DamagedBody(CompressionError):
    """Damaged or truncated data, or bytes after its end."""


class UnknownEncoding(CompressionError):
    """An encoding that is not supported."""


class DecompressedTooLarge(CompressionError):
    """More bytes than are allowed.

    Attributes:
        is_limit: True if the bound is the limit of all bodies, and not a too high ratio.
    """

    def __init__(self, text: str, *, is_limit: bool) -> None:
        super().__init__(text)
        self.is_limit = is_limit


class Decompressed(bytes):
    """A decompressed body that stores how many bytes of it were sent."""

    sent_bytes: int


def sent_bytes(body: bytes) -> int:
    """Return how many bytes of a body were sent."""
    return body.sent_bytes if isinstance(body, Decompressed) else len(body)


def share(amount: int, sent: int) -> int:
    """Return the share of `sent` bytes where a piece may have `amount`."""
    return amount * max(1, -(-sent // PIECE_BYTES))


def decompress(encoding: str, body: bytes, max_bytes: int) -> bytes:
    """Undo a Content-Encoding. Deflate data may lack zlib's header, since some clients send it so.

    Args:
        encoding: the header's value: gzip, x-gzip, deflate or identity, or a list of them in the order in
            which they were applied (RFC 9110, 8.4).
        body: as sent; an empty body counts as uncompressed.
        max_bytes: limit of the result, and of the data between two encodings. A body may also not become
            larger than its sender's share: 4 MiB for each 64 KiB sent.

    Raises:
        UnknownEncoding: an unsupported encoding.
        DamagedBody: damaged or truncated data, or bytes after its end.
        DecompressedTooLarge: more than `max_bytes` once decompressed.
    """
    names = [name.strip().lower() for name in encoding.split(",")]
    for name in names:
        if name not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise UnknownEncoding(
                f"content-encoding {encoding[:_MAX_QUOTED]!r} is not supported; send {ACCEPTED} or identity"
            )
    names = [name.removeprefix("x-") for name in names if name not in ("", "identity")]
    if len(names) > _MAX_ENCODINGS:
        raise DamagedBody(
            f"content-encoding has {len(names)} encodings; at most {_MAX_ENCODINGS} are supported"
        )
    if not body or not names:
        return body
    sent = len(body)
    bound = _Bound(sent, min(max_bytes, share(TEXT, sent)), max_bytes)
    for name in reversed(names):
        body = _gunzip(body, bound) if name == "gzip" else _inflate(body, bound)
    found = Decompressed(body)
    found.sent_bytes = sent
    return found


class _Bound(NamedTuple):
    sent: int
    most: int
    max_bytes: int

    def exceeded(self) -> DecompressedTooLarge:
        if self.most == self.max_bytes:
            text = f"the body is larger than {self.most} bytes once decompressed"
            return DecompressedTooLarge(text, is_limit=True)
        return DecompressedTooLarge(
            f"the body was {self.sent} bytes compressed and is larger than {self.most} bytes once "
            "decompressed, which is too high a ratio: send it uncompressed, or in parts",
            is_limit=False,
        )


def _gunzip(body: bytes, bound: _Bound) -> bytes:
    """Decompress all members of gzip data (RFC 1952, 2.2); trailing zeros are padding, as for gzip(1)."""
    members: list[bytes] = []
    view, at, left = memoryview(body), 0, bound.most
    while at < len(view):
        if members and view[at] == 0:
            at += 1
            continue
        if len(members) >= _MAX_MEMBERS:
            raise DamagedBody(f"the gzip data has more than {_MAX_MEMBERS} members")
        data, at = _stream(_GZIP, view, at, left, bound, "gzip")
        members.append(data)
        left -= len(data)
    return b"".join(members)


def _inflate(body: bytes, bound: _Bound) -> bytes:
    # The first byte of a zlib header contains the method, 8, and both bytes together are a multiple of 31.
    has_header = len(body) > 1 and body[0] & 15 == 8 and (body[0] << 8 | body[1]) % 31 == 0
    window = zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
    data, end = _stream(window, memoryview(body), 0, bound.most, bound, "deflate")
    if end < len(body):
        raise DamagedBody(f"{len(body) - end} bytes follow the end of the deflate data")
    return data


def _stream(
    window: int, body: memoryview, start: int, left: int, bound: _Bound, name: str
) -> tuple[bytes, int]:
    """Decompress the stream at `start`, up to `left` bytes; return the data and the end of the stream."""
    stream = zlib.decompressobj(window)
    pieces: list[bytes] = []
    at, size = start, _FIRST_BYTES
    while not stream.eof and at < len(body):
        piece, size = body[at : at + size], min(2 * size, _MOST_BYTES)
        try:
            data = stream.decompress(piece, left + 1)
        except zlib.error as error:
            text = f"invalid {name} data at byte {start}" if start else f"the body is not valid {name} data"
            raise DamagedBody(f"{text}: {error}") from None
        if len(data) > left:
            raise bound.exceeded()
        pieces.append(data)
        left -= len(data)
        at += len(piece) - len(stream.unused_data)
    if not stream.eof:
        raise DamagedBody(f"the {name} data of the body is truncated")
    return b"".join(pieces), at
