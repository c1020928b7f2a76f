"""HTTP/2 header blocks (HPACK, RFC 7541). A library decodes them; decoded blocks are cached.

A client that repeats a request sends the same few bytes, which refer to entries of its header table. While
the table does not change, the same bytes mean the same headers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple, OversizedHeaderListError

from turnserve.http2.frames import ErrorCode

Fields: TypeAlias = Sequence[tuple[bytes, bytes]]

#: Visible ASCII without capital letters and colons (8.2.1).
_NAME = re.compile(rb"[!-9;-@\[-~]+")
#: Connection-specific fields of HTTP/1.1 (8.2.2).
_OF_CONNECTIONS = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
_PSEUDO = frozenset({b":method", b":scheme", b":authority", b":path"})
#: Fields that must not be repeated.
_SINGLE = _PSEUDO | {b"content-length", b"host", b"te"}
#: Digits of a possible length; Python refuses to read 4,300.
_MAX_DIGITS = 18
_SLASH = ord("/")
#: Cache of fields that are valid independent of other fields, for all connections.
_seen: set[tuple[bytes, bytes]] = set()
_MAX_SEEN, _MAX_SEEN_BYTES = 1024, 256


def request_fault(fields: Fields) -> str:
    """Return why fields are not a valid request head; "" if they are valid.

    Args:
        fields: names and values, in order.
    """
    names = tuple([field[0] for field in fields])
    fault, is_usual = _names_fault(names)
    fault = fault or _values_fault(fields)
    return fault if fault or is_usual else _unusual_fault(dict(fields))


def trailers_fault(fields: Fields) -> str:
    """Return why fields are not valid trailers; "" if they are valid."""
    names = tuple([field[0] for field in fields])
    if not _PSEUDO.isdisjoint(names):
        return "pseudo-header fields in trailers (8.1)"
    return _names_fault(names)[0] or _values_fault(fields)


def content_length(head: Mapping[bytes, bytes]) -> int | None:
    """Return the content length of a valid head, if it has one."""
    value = head.get(b"content-length")
    return None if value is None else int(value)


@functools.lru_cache(maxsize=128)
def _names_fault(names: tuple[bytes, ...]) -> tuple[str, bool]:
    """Return a fault of names and their order, and whether each value can be checked alone.

    Cached, since clients repeat the same names.
    """
    seen: set[bytes] = set()
    for number, name in enumerate(names):
        if name in _PSEUDO:
            if len(seen) < number or not seen <= _PSEUDO:
                return "a pseudo-header field after other fields (8.3)", False
        elif not _NAME.fullmatch(name):
            return "a name with a capital letter, a colon or another invalid character (8.2.1)", False
        if name in _SINGLE and name in seen:
            return "a repeated field that must not be repeated (8.3)", False
        seen.add(name)
    if not _OF_CONNECTIONS.isdisjoint(seen):
        return "a connection-specific field of HTTP/1.1 (8.2.2)", False
    is_usual = {b":method", b":scheme", b":path"} <= seen and b"host" not in seen
    return "", is_usual


def _values_fault(fields: Fields) -> str:
    for field in fields:
        if field not in _seen:
            name, value = field
            fault = _value_fault(name, value)
            if fault:
                return fault
            if value in (b"CONNECT", b"*") and name in _PSEUDO:
                return _unusual_fault(dict(fields))
            if len(name) + len(value) <= _MAX_SEEN_BYTES:
                if len(_seen) >= _MAX_SEEN:
                    _seen.clear()
                _seen.add((name, value))
    return ""


def _value_fault(name: bytes, value: bytes) -> str:
    """Return a fault of a value that does not depend on other fields."""
    if b"\0" in value or b"\r" in value or b"\n" in value:
        return "a value with NUL, CR or LF (8.2.1)"
    if value.strip(b" \t") != value:
        return "a value with white space around it (8.2.1)"
    if name not in _SINGLE:
        return ""
    if not value and name != b":authority":
        return "an empty field that must have a value (8.3.1)"
    if name == b":path" and value[0] != _SLASH and value != b"*":
        return ":path does not begin with a slash (8.3.1)"
    if name == b":authority" and b"@" in value:
        return ":authority with user information (8.3.1)"
    if name == b"te" and value.lower() != b"trailers":
        return "te has a value other than trailers (8.2.2)"
    if name == b"content-length" and not (value.isdigit() and len(value) <= _MAX_DIGITS):
        return "content-length is not a number (8.1.1)"
    return ""


def _unusual_fault(head: Mapping[bytes, bytes]) -> str:
    """Return a fault of the combination of fields, if each is valid alone."""
    method, path, authority = head.get(b":method"), head.get(b":path"), head.get(b":authority")
    if method == b"CONNECT":  # 8.5
        is_right = authority and path is None and b":scheme" not in head
        return "" if is_right else "CONNECT with more than :authority (8.5)"
    if method is None or path is None or b":scheme" not in head:
        return ":method, :scheme or :path is missing (8.3.1)"
    if path == b"*" and method != b"OPTIONS":
        return ":path does not begin with a slash (8.3.1)"
    if authority is not None and head.get(b"host", authority) != authority:
        return "host differs from :authority (8.3.1)"
    return ""


#: Limit of all headers of one request, as HPACK counts them, and of their block. The C core of gRPC has the
#: same limit; decoding 64 KiB of Huffman codes blocks the loop for 15 ms.
MAX_HEAD_BYTES = 16 * 1024
_MAX_KNOWN, _MAX_KNOWN_BYTES = 64, 1024
#: Blocks up to this size are not counted as memory of a request.
_SMALL_BLOCK_BYTES = 1024
#: First bits of a block that resizes the table.
_SIZE_UPDATE = 0x20
_MAX_RESIZES = 16


class Head(dict[bytes, bytes]):
    """Headers by lower-case name, including pseudo-headers; values of a repeated name are joined by ", ".

    Attributes:
        fault: why this is not a valid request head; "" if it is.
        trailers_fault: why these are not valid trailers; "" if they are.
        num_bytes: size of its block; 0 for a small block, which is not counted.
    """

    fault = ""
    trailers_fault = "pseudo-header fields (8.1)"
    num_bytes = 0


def head_of(fields: Fields, num_bytes: int = 0) -> Head:
    """Build the head of a block of this size."""
    head = Head(fields)
    if len(head) != len(fields):
        head = Head()
        for name, value in fields:
            head[name] = b"%b, %b" % (head[name], value) if name in head else value
    if num_bytes > _SMALL_BLOCK_BYTES:
        head.num_bytes = num_bytes
    fault = request_fault(fields)
    if fault:
        head.fault = fault
        head.trailers_fault = trailers_fault(fields)
    return head


class HeadError(Exception):
    """A block that cannot be decoded, so that later blocks of the connection cannot be decoded either.

    Attributes:
        code: error code for the connection.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class HeadReader:
    """Decodes the blocks of one connection, in order."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEAD_BYTES)
        self._entries = self._decoder.header_table.dynamic_entries
        self._known: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """Decode a block.

        Raises: HeadError.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        resizes = bool(block) and block[0] & 0xE0 == _SIZE_UPDATE  # entries that were refused may fit now
        if resizes and _num_resizes(block) > _MAX_RESIZES:  # two are enough, and each costs time
            raise HeadError(ErrorCode.ENHANCE_YOUR_CALM, "the table's size is changed too often")
        before = len(self._entries), self._entries[0] if self._entries else None
        try:
            head = head_of(tuple(self._decoder.decode(block, raw=True)), len(block))
        except OversizedHeaderListError as error:
            raise HeadError(ErrorCode.ENHANCE_YOUR_CALM, f"too many headers: {error}") from None
        except HPACKError:  # its text may contain addresses of this process
            raise HeadError(ErrorCode.COMPRESSION_ERROR, "the header block is not valid HPACK") from None
        entries = self._decoder.header_table.dynamic_entries
        after = len(entries), entries[0] if entries else None
        if resizes or entries is not self._entries or before[0] != after[0] or before[1] is not after[1]:
            self._entries = entries
            self._known.clear()
        elif len(block) <= _MAX_KNOWN_BYTES:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[block] = head
        return head


def _num_resizes(block: bytes) -> int:
    """Count the changes of the table's size at the start of a block, up to the limit."""
    count = place = 0
    while place < len(block) and block[place] & 0xE0 == _SIZE_UPDATE and count <= _MAX_RESIZES:
        count += 1
        goes_on = block[place] & 0x1F == 0x1F
        place += 1
        while goes_on and place < len(block):
            goes_on = bool(block[place] & 0x80)
            place += 1
    return count


def block_of(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode a block that does not depend on the reader's table and does not change it."""
    return bytes(Encoder().encode([NeverIndexedHeaderTuple(*header) for header in headers], huffman=False))
