"""What came of a gRPC call and was not begun with: bytes of its messages, in order.

Stored in pieces. One buffer that grows is copied whenever it has to move, a large message several times.
"""

from __future__ import annotations

from collections import deque

#: Bytes of a piece, at least, unless it is the last one: there may be a frame for each byte.
_PIECE_BYTES = 64 * 1024


class Arriving:
    """See the module; false while it is empty."""

    __slots__ = ("_num_bytes", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[bytearray] = deque()
        self._num_bytes = 0

    def __len__(self) -> int:
        return self._num_bytes

    def append(self, data: bytes) -> None:
        """Store more."""
        if self._pieces and len(self._pieces[-1]) < _PIECE_BYTES:
            self._pieces[-1] += data
        else:
            self._pieces.append(bytearray(data))
        self._num_bytes += len(data)

    def head(self, num_bytes: int) -> bytes:
        """The first bytes, or as many as there are; far fewer than a piece has."""
        pieces = self._pieces
        if not pieces:
            return b""
        if len(pieces[0]) < num_bytes and len(pieces) > 1:  # the rest of one from which was taken
            pieces[1][:0] = pieces.popleft()
        return bytes(pieces[0][:num_bytes])

    def take(self, num_bytes: int) -> bytes:
        """Remove the first bytes, which must have come."""
        pieces, missing = self._pieces, num_bytes
        parts: list[bytes | bytearray] = []
        while missing:
            first = pieces[0]
            if len(first) > missing:
                parts.append(bytes(memoryview(first)[:missing]))
                del first[:missing]
                missing = 0
            else:
                parts.append(pieces.popleft())
                missing -= len(first)
        self._num_bytes -= num_bytes
        return parts[0] if len(parts) == 1 and type(parts[0]) is bytes else b"".join(parts)
