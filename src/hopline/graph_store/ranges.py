"""Byte ranges of chunks for a set of edges, and the edges in the bytes that were read.

A column of E entries is cut into chunks of equal size. Positions close to each other share one range, since
a command costs more than the entries between them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.jit import njit
from hopline.types import AnyArray, IdArray

#: Bytes of unwanted entries that are read rather than sending a further command (some 80 bytes).
_GAP_BYTES = 64
#: Longest range: replies of one request are as wide as its longest one.
MAX_RANGE_BYTES = 1024


class Ranges(NamedTuple):
    """Ranges of a column that hold some positions.

    Attributes:
        chunks: int64 [r], number of each range's chunk.
        firsts, lasts: int64 [r], first and last byte in the chunk.
        range_of: int64 [n], the range of each position. offsets: int64 [n], its first byte there.
    """

    chunks: IdArray
    firsts: IdArray
    lasts: IdArray
    range_of: IdArray
    offsets: IdArray


def ranges_of(positions: IdArray, chunk_entries: int, entry_bytes: int) -> Ranges:
    """Ranges for ascending int64 [n] positions."""
    n = positions.shape[0]
    chunks, firsts, lasts = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    range_of, offsets = np.empty(n, np.int64), np.empty(n, np.int64)
    count = _fill(positions, chunk_entries, entry_bytes, chunks, firsts, lasts, range_of, offsets)
    return Ranges(chunks[:count], firsts[:count], lasts[:count], range_of, offsets)


@njit(cache=True, nogil=True)
def _fill(positions, chunk_entries, entry_bytes, chunks, firsts, lasts, range_of, offsets):  # type: ignore[no-untyped-def]
    count = 0
    for i in range(positions.shape[0]):
        chunk = positions[i] // chunk_entries
        first = (positions[i] - chunk * chunk_entries) * entry_bytes
        last = first + entry_bytes - 1
        at = count - 1
        is_near = (
            count > 0
            and chunks[at] == chunk
            and first - lasts[at] - 1 <= _GAP_BYTES
            and last - firsts[at] < MAX_RANGE_BYTES
        )
        if is_near:
            lasts[at] = last
        else:
            at = count
            chunks[at], firsts[at], lasts[at] = chunk, first, last
            count += 1
        range_of[i] = at
        offsets[i] = first - firsts[at]
    return count


def entries(rows: NDArray[np.uint8], ranges: Ranges, entry_bytes: int, out: AnyArray) -> None:
    """Copy entries to `out`.

    Args:
        rows: uint8 [r, width], the bytes of each range. entry_bytes: of an entry.
        out: [n, …] C-contiguous, of a little-endian dtype. Its entries may have more bytes, which become 0.
    """
    n = out.shape[0]
    if n:
        raw = out.reshape(n, -1).view(np.uint8)
        raw[:, entry_bytes:] = 0
        _take(rows, ranges.range_of, ranges.offsets, entry_bytes, raw)


@njit(cache=True, nogil=True)
def _take(rows, range_of, offsets, entry_bytes, out):  # type: ignore[no-untyped-def]
    for i in range(range_of.shape[0]):
        row, offset = range_of[i], offsets[i]
        for k in range(entry_bytes):
            out[i, k] = rows[row, offset + k]
