"""HTTP/2 header blocks (HPACK, RFC 7541). A library decodes them; decoded blocks are cached.

A client that repeats a request sends the same few bytes, which refer to entries of its header table. While
the table does not change, the same bytes mean the same headers.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple, OversizedHeaderListError

from hopline.transports.http2_fields import Fields, request_fault, trailers_fault
from hopline.transports.http2_frames import ErrorCode

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
