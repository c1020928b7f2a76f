"""The kernels of the id index: an open-addressing hash table in one array of row numbers.

Handles arrays only. `slots` int32 [capacity], capacity a power of two >= 2n, holds row numbers or -1.
The keys stay in the id column, so the table needs only 4 bytes a slot and is mapped into memory
unchanged. Linear probing: with at most half of the slots in use a hit needs 1.5 probes on average, a
miss 2.5 (Knuth, TAOCP 6.4). All arrays are read-only when they come from a snapshot.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hopline.kernels.intrinsics import prefetch
from hopline.kernels.jit import njit

_MULTIPLY_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLY_2 = np.uint64(0x94D049BB133111EB)
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_1, _2, _3, _4, _5, _6, _7, _8 = (np.uint64(i) for i in range(1, 9))


def capacity_for(num_keys: int) -> int:
    """Slots for `num_keys` keys: the power of two that leaves at least half of them free."""
    return max(8, 1 << (2 * num_keys - 1).bit_length())


@njit(cache=True, nogil=True)
def _mix(x: Any) -> Any:
    """Spread 64 bits over 64 bits (the finaliser of splitmix64, Steele et al., OOPSLA 2014)."""
    x = x + _INCREMENT
    x = (x ^ (x >> _S30)) * _MULTIPLY_1
    x = (x ^ (x >> _S27)) * _MULTIPLY_2
    return x ^ (x >> _S31)


@njit(cache=True, nogil=True)
def range_find(num_keys: Any, wanted: Any) -> Any:
    """Row numbers of `wanted` where the ids are 0 … num_keys-1: themselves, or -1."""
    found = np.empty(wanted.shape[0], np.int64)
    for i in range(wanted.shape[0]):
        inside = wanted[i] >= 0 and wanted[i] < num_keys
        found[i] = wanted[i] if inside else -1
    return found


@njit(cache=True, nogil=True)
def int_insert(keys: Any, slots: Any) -> Any:
    """Fill empty `slots` with the rows of int64 `keys`.

    Returns: number of duplicates, and the row and the earlier row of the first one.
    """
    mask = np.uint64(slots.shape[0] - 1)
    duplicates, first, earlier = 0, np.int64(-1), np.int64(-1)
    for row in range(keys.shape[0]):
        at = _mix(np.uint64(keys[row])) & mask
        while slots[at] >= 0 and keys[slots[at]] != keys[row]:
            at = (at + np.uint64(1)) & mask
        if slots[at] < 0:
            slots[at] = row
            continue
        if duplicates == 0:
            first, earlier = np.int64(row), np.int64(slots[at])
        duplicates += 1
    return duplicates, first, earlier


@njit(cache=True, nogil=True)
def int_find(keys: Any, slots: Any, wanted: Any) -> Any:
    """Row numbers of int64 `wanted`, -1 where unknown."""
    mask = np.uint64(slots.shape[0] - 1)
    found = np.empty(wanted.shape[0], np.int64)
    for i in range(wanted.shape[0]):
        at = _mix(np.uint64(wanted[i])) & mask
        while slots[at] >= 0 and keys[slots[at]] != wanted[i]:
            at = (at + np.uint64(1)) & mask
        found[i] = slots[at]
    return found


@njit(cache=True, nogil=True)
def _word(blob: Any, at: Any) -> Any:
    """Eight bytes as one little-endian number; LLVM compiles it to one load."""
    return (
        np.uint64(blob[at])
        | np.uint64(blob[at + _1]) << np.uint64(8)
        | np.uint64(blob[at + _2]) << np.uint64(16)
        | np.uint64(blob[at + _3]) << np.uint64(24)
        | np.uint64(blob[at + _4]) << np.uint64(32)
        | np.uint64(blob[at + _5]) << np.uint64(40)
        | np.uint64(blob[at + _6]) << np.uint64(48)
        | np.uint64(blob[at + _7]) << np.uint64(56)
    )


@njit(cache=True, nogil=True)
def _bytes_hash(blob: Any, begin: Any, end: Any) -> Any:
    # Unsigned positions: Numba checks signed ones for negative indexing.
    at, stop = np.uint64(begin), np.uint64(end)
    state = _mix(stop - at)
    while at + _8 <= stop:
        state = _mix(state ^ _word(blob, at))
        at += _8
    rest = np.uint64(0)
    while at < stop:
        rest = rest << _8 | np.uint64(blob[at])
        at += _1
    return _mix(state ^ rest)


@njit(cache=True, nogil=True)
def _bytes_equal(blob_a: Any, begin_a: Any, end_a: Any, blob_b: Any, begin_b: Any, end_b: Any) -> Any:
    if end_a - begin_a != end_b - begin_b:
        return False
    a, b, stop = np.uint64(begin_a), np.uint64(begin_b), np.uint64(end_a)
    while a + _8 <= stop:
        if _word(blob_a, a) != _word(blob_b, b):
            return False
        a += _8
        b += _8
    while a < stop:
        if blob_a[a] != blob_b[b]:
            return False
        a += _1
        b += _1
    return True


@njit(cache=True, nogil=True)
def bytes_insert(blob: Any, offsets: Any, slots: Any) -> Any:
    """Like `int_insert`; key i is the bytes blob[offsets[i]:offsets[i + 1]]."""
    mask = np.uint64(slots.shape[0] - 1)
    duplicates, first, earlier = 0, np.int64(-1), np.int64(-1)
    for row in range(offsets.shape[0] - 1):
        begin, end = offsets[row], offsets[row + 1]
        at = _bytes_hash(blob, begin, end) & mask
        while slots[at] >= 0:
            other = slots[at]
            if _bytes_equal(blob, begin, end, blob, offsets[other], offsets[other + 1]):
                break
            at = (at + np.uint64(1)) & mask
        if slots[at] < 0:
            slots[at] = row
            continue
        if duplicates == 0:
            first, earlier = np.int64(row), np.int64(slots[at])
        duplicates += 1
    return duplicates, first, earlier


@njit(cache=True, nogil=True)
def bytes_find(blob: Any, offsets: Any, slots: Any, wanted: Any, lengths: Any) -> Any:
    """Row numbers of the byte strings concatenated in `wanted`, -1 where unknown."""
    mask = np.uint64(slots.shape[0] - 1)
    found = np.empty(lengths.shape[0], np.int64)
    # Three memory accesses for an id, each at the result of the previous one: every loop prefetches what
    # the next one reads, so that the waits of different ids overlap.
    end = 0
    for i in range(lengths.shape[0]):
        begin, end = end, end + lengths[i]
        found[i] = np.int64(_bytes_hash(wanted, begin, end) & mask)
        prefetch(slots, found[i])
    for i in range(lengths.shape[0]):
        if slots[found[i]] >= 0:
            prefetch(offsets, np.int64(slots[found[i]]))
    for i in range(lengths.shape[0]):
        if slots[found[i]] >= 0:
            prefetch(blob, offsets[slots[found[i]]])
    end = 0
    for i in range(lengths.shape[0]):
        begin, end = end, end + lengths[i]
        at = np.uint64(found[i])
        while slots[at] >= 0:
            row = slots[at]
            if _bytes_equal(wanted, begin, end, blob, offsets[row], offsets[row + 1]):
                break
            at = (at + np.uint64(1)) & mask
        found[i] = slots[at]
    return found
