"""Received bytes of a gRPC call that wait to be parsed: its messages, in order.

A little is in one buffer, and what is more in blocks of memory that go back to the system when they were
taken. One buffer that grows is copied whenever it has to move, a large message several times; and of many
small ones the heap keeps what is free.
"""

from __future__ import annotations

import mmap
from collections import deque

#: Bytes that need no block, and those of a block. Memory of a block is used as it is written.
_FIRST_BYTES, _BLOCK_BYTES = 64 * 1024, 1024 * 1024


class Arriving:
    """See the module; false while it is empty."""

    __slots__ = ("_blocks", "_first", "_num_bytes", "_num_taken")

    def __init__(self) -> None:
        self._first = bytearray()
        #: Behind the first bytes; each has as many as its position says.
        self._blocks: deque[mmap.mmap] = deque()
        #: Of the first block.
        self._num_taken = 0
        self._num_bytes = 0

    def __len__(self) -> int:
        return self._num_bytes

    def append(self, data: bytes) -> None:
        """Store more."""
        self._num_bytes += len(data)
        blocks = self._blocks
        if not blocks and len(self._first) + len(data) <= _FIRST_BYTES:
            self._first += data
            return
        at, view = 0, memoryview(data)
        while at < len(view):
            room = _BLOCK_BYTES - blocks[-1].tell() if blocks else 0
            if not room:
                blocks.append(mmap.mmap(-1, _BLOCK_BYTES))
                room = _BLOCK_BYTES
            at += blocks[-1].write(view[at : at + room])

    def head(self, num_bytes: int) -> bytes:
        """The first bytes, or as many as there are."""
        if len(self._first) >= num_bytes:
            return bytes(self._first[:num_bytes])
        return b"".join(self._views(num_bytes))

    def take(self, num_bytes: int) -> bytes:
        """Remove the first bytes, which must have come."""
        taken = self.head(num_bytes)
        missing = num_bytes - min(num_bytes, len(self._first))
        del self._first[:num_bytes]
        while missing:
            there = self._blocks[0].tell() - self._num_taken
            if there > missing:
                self._num_taken += missing
                break
            missing -= there
            self._num_taken = 0
            del self._blocks[0]
        self._num_bytes -= num_bytes
        return taken

    def _views(self, num_bytes: int) -> list[memoryview]:
        views = [memoryview(self._first)[:num_bytes]]
        missing, start = num_bytes - len(views[0]), self._num_taken
        for block in self._blocks:
            views.append(memoryview(block)[start : min(block.tell(), start + missing)])
            missing -= len(views[-1])
            start = 0
            if not missing:
                break
        return views
