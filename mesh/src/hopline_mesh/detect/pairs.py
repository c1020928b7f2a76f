"""Numbers of call paths: a hash table of pairs of slots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.jit import njit
from hopline_mesh.roster import SlotArray

#: Places in the table of an empty one; there are always at least twice as many as call paths.
_LEAST_PLACES = 64
_EMPTY = np.int64(-1)
#: Knuth's multiplicative hash: 2^64 over the golden ratio, odd.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


class Pairs:
    """Slots of call paths, in the order in which they were first seen.

    Attributes:
        src, dst: int32, slots of the callers and callees; position is the path's slot.
    """

    def __init__(self) -> None:
        self.src: SlotArray = np.zeros(0, np.int32)
        self.dst: SlotArray = np.zeros(0, np.int32)
        self._keys = np.full(_LEAST_PLACES, _EMPTY, np.int64)
        self._slots = np.zeros(_LEAST_PLACES, np.int32)

    def __len__(self) -> int:
        return len(self.src)

    def slots(self, src: SlotArray, dst: SlotArray) -> SlotArray:
        """Return slots of these paths, int32 [e]; new ones for new paths."""
        src, dst = np.ascontiguousarray(src, np.int32), np.ascontiguousarray(dst, np.int32)
        found = np.empty(len(src), np.int32)
        new = _find(src, dst, self._keys, self._slots, found)
        if new:
            self._add(src, dst, found, new)
        return found

    def find(self, src: SlotArray, dst: SlotArray) -> SlotArray:
        """Return slots of paths, int32 [e]; -1 for those that were never seen."""
        found = np.empty(len(src), np.int32)
        _find(src, dst, self._keys, self._slots, found)
        return found

    def _add(self, src: SlotArray, dst: SlotArray, found: SlotArray, new: int) -> None:
        """Give slots to paths that were not found, in the order of the interval.

        So rows and series have the same order in memory.
        """
        known = len(self.src)
        if 2 * (known + new) > len(self._keys):
            places = 1 << (4 * (known + new) - 1).bit_length()
            self._keys, self._slots = np.full(places, _EMPTY, np.int64), np.zeros(places, np.int32)
            none = np.full(known, -1, np.int32)
            _put(self.src, self.dst, self._keys, self._slots, 0, none, np.empty(known, np.int32))
        first = np.empty(new, np.int32)
        size = _put(src, dst, self._keys, self._slots, known, found, first)
        first = first[: size - known]  # a repeated path is one path
        self.src, self.dst = np.concatenate([self.src, src[first]]), np.concatenate([self.dst, dst[first]])

    def restore(self, src: SlotArray, dst: SlotArray) -> None:
        """Restore paths in the order of their slots."""
        self.__init__()  # type: ignore[misc]
        self.slots(src, dst)


@njit(nogil=True, cache=True, inline="always")
def _place_of(key: int, keys: NDArray[np.int64]) -> int:
    """Where a key is, or is to be: the first such or empty place from its hash on."""
    mask = len(keys) - 1
    hashed = np.uint64(key) * _SPREAD
    place = np.int64(hashed >> np.uint64(32)) & mask
    while keys[place] != key and keys[place] != _EMPTY:
        place = (place + 1) & mask
    return place  # type: ignore[return-value]


@njit(nogil=True, cache=True)
def _find(
    src: SlotArray, dst: SlotArray, keys: NDArray[np.int64], slots: SlotArray, found: SlotArray
) -> int:
    """Write slots of paths to `found`, -1 for missing ones. Returns the number of missing ones."""
    missing = 0
    for k in range(len(src)):
        place = _place_of((np.int64(src[k]) << 32) | np.int64(dst[k]), keys)
        is_there = keys[place] != _EMPTY
        found[k] = slots[place] if is_there else -1
        missing += not is_there
    return missing


@njit(nogil=True, cache=True)
def _put(
    src: SlotArray, dst: SlotArray, keys: NDArray[np.int64], slots: SlotArray, size: int, found: SlotArray,
    first: SlotArray,
) -> int:  # fmt: skip
    """Give the slots from `size` on to paths that have none in `found`.

    Args:
        first: int32, result: rows of the paths that got them.

    Returns: how many slots there are now.
    """
    known = size
    for k in range(len(src)):
        if found[k] < 0:
            key = (np.int64(src[k]) << 32) | np.int64(dst[k])
            place = _place_of(key, keys)
            if keys[place] == _EMPTY:
                keys[place], slots[place] = key, size
                first[size - known] = k
                size += 1
            found[k] = slots[place]
    return size
