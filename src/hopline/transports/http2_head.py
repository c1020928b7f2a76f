"""Header blocks of HTTP/2 (HPACK, RFC 7541). Decoding is the library's; blocks seen before are known.

A client that repeats a request sends the same few bytes, which refer to entries of its table.
 While nothing enters or leaves that table, the same bytes mean the same headers.
"""

from __future__ import annotations

from collections.abc import Iterable

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple, OversizedHeaderListError

from hopline.transports.http2_fields import Fields, request_fault, trailers_fault
from hopline.transports.http2_frames import ErrorCode

#: Of all headers of one request together, as HPACK counts them, and of their block. The C core of gRPC
#: takes no more than that either; reading 64 KiB of Huffman codes keeps the loop for 15 ms.
MAX_HEAD_BYTES = 16 * 1024
_MAX_KNOWN, _MAX_KNOWN_BYTES = 64, 1024
#: Blocks of up to this are not counted among what a request holds.
_SMALL_BLOCK_BYTES = 1024
#: Begins a block that first resizes the table.
_SIZE_UPDATE = 0x20
_MAX_RESIZES = 16


class Head(dict[bytes, bytes]):
    """Names in lower case, pseudo-headers among them; a repeated header is a list.

    Attributes:
        fault: why this is not the head of a request; "" where it is.
        trailers_fault: why this is not the end of a request; "" where it is.
        num_bytes: of its block; 0 where it is not worth counting.
    """

    fault = ""
    trailers_fault = "pseudo-header fields (8.1)"
    num_bytes = 0


def head_of(fields: Fields, num_bytes: int = 0) -> Head:
    """The headers of a block of so many bytes."""
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
    """A block that cannot be read, after which no other of its connection can be.

    Attributes:
        code: to end the connection with.
    """

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class HeadReader:
    """Reads the blocks of one connection, in their order."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEAD_BYTES)
        self._entries = self._decoder.header_table.dynamic_entries
        self._known: dict[bytes, Head] = {}

    def read(self, block: bytes) -> Head:
        """The headers of a block.

        Raises: HeadError.
        """
        known = self._known.get(block)
        if known is not None:
            return known
        resizes = bool(block) and block[0] & 0xE0 == _SIZE_UPDATE  # what was refused then may enter now
        if resizes and _num_resizes(block) > _MAX_RESIZES:  # two would do, and each is work
            raise HeadError(ErrorCode.ENHANCE_YOUR_CALM, "the table's size is changed again and again")
        before = len(self._entries), self._entries[0] if self._entries else None
        try:
            head = head_of(tuple(self._decoder.decode(block, raw=True)), len(block))
        except OversizedHeaderListError as error:
            raise HeadError(ErrorCode.ENHANCE_YOUR_CALM, f"too many headers: {error}") from None
        except HPACKError:  # its text may hold addresses of this process
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
    """Changes of the table's size that a block begins with; as far as they matter."""
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
    """A block that means the same whatever the reader's table holds, and does not change the table."""
    return bytes(Encoder().encode([NeverIndexedHeaderTuple(*header) for header in headers], huffman=False))
