"""A map of rows that are being fetched, or were recently missing, from id to entry.

An entry is the number of a flight and a row of it, in one int64. The map uses open addressing in two
arrays: adding, finding or releasing 421 ids needs a few microseconds and no Python object per id.
"""

from __future__ import annotations

import numpy as np

from hopline.kernels.jit import njit
from hopline.types import IdArray

_ROW_BITS = np.int64(24)
_ROW_MASK = np.int64((1 << 24) - 1)
_NOBODY = np.int64(-1)
#: Limit of rows of one flight.
MAX_FLIGHT_ROWS = 1 << 24
_LEAST_SLOTS = 1024


@njit(nogil=True, cache=True)
def _home(id, num_slots):  # type: ignore[no-untyped-def]
    """Fibonacci hashing: the upper bits of the product are well mixed for ids in sequence."""
    mixed = np.uint64(id) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed >> np.uint64(32)) & np.uint64(num_slots - 1))


@njit(nogil=True, cache=True)
def _claim(keys, entries, ids, first, found, fresh):  # type: ignore[no-untyped-def]
    """Set found[i] to the entry of ids[i]; new ids get first, first + 1, … and are listed in `fresh`.

    Returns the number of new ids; -1, without any change, if an id is negative.
    """
    last = keys.shape[0] - 1
    num_fresh = 0
    for i in range(ids.shape[0]):
        if ids[i] < 0:
            return -1
    for i in range(ids.shape[0]):
        slot = _home(ids[i], keys.shape[0])
        while keys[slot] != _NOBODY and keys[slot] != ids[i]:
            slot = (slot + 1) & last
        if keys[slot] == _NOBODY:
            keys[slot] = ids[i]
            entries[slot] = first + num_fresh
            fresh[num_fresh] = i
            num_fresh += 1
        found[i] = entries[slot]
    return num_fresh


@njit(nogil=True, cache=True)
def _release(keys, entries, ids, flight):  # type: ignore[no-untyped-def]
    """Remove the ids whose entry belongs to `flight`; return how many."""
    num_slots = keys.shape[0]
    last = num_slots - 1
    gone = 0
    for i in range(ids.shape[0]):
        hole = _home(ids[i], num_slots)
        while keys[hole] != _NOBODY and keys[hole] != ids[i]:
            hole = (hole + 1) & last
        if keys[hole] == _NOBODY or entries[hole] >> _ROW_BITS != flight:
            continue
        gone += 1
        # Later entries that may be at the hole move into it, so that no search ends early.
        slot = (hole + 1) & last
        while keys[slot] != _NOBODY:
            if (slot - _home(keys[slot], num_slots)) & last >= (slot - hole) & last:
                keys[hole] = keys[slot]
                entries[hole] = entries[slot]
                hole = slot
            slot = (slot + 1) & last
        keys[hole] = _NOBODY
    return gone


@njit(nogil=True, cache=True)
def _move(keys, entries, new_keys, new_entries):  # type: ignore[no-untyped-def]
    last = new_keys.shape[0] - 1
    for old in range(keys.shape[0]):
        if keys[old] == _NOBODY:
            continue
        slot = _home(keys[old], new_keys.shape[0])
        while new_keys[slot] != _NOBODY:
            slot = (slot + 1) & last
        new_keys[slot] = keys[old]
        new_entries[slot] = entries[old]


class InFlight:
    """The map. It grows to twice its largest content, and does not shrink."""

    def __init__(self) -> None:
        self._keys: IdArray = np.full(_LEAST_SLOTS, _NOBODY, np.int64)
        self._entries: IdArray = np.empty(_LEAST_SLOTS, np.int64)
        self._used = 0
        # Compile now, or load from numba's cache, and not during the first request.
        self.claim(np.zeros(1, np.int64), 0, 0)
        self.release(np.zeros(1, np.int64), 0)
        _move(self._keys, self._entries, self._keys.copy(), self._entries.copy())

    def __len__(self) -> int:
        return self._used

    def claim(self, ids: IdArray, flight: int, first_row: int) -> tuple[IdArray, IdArray]:
        """Find ids; unknown ids become rows `first_row`, … of `flight`.

        Args:
            ids: int64 [n], none negative; the first of duplicates becomes the row.
            flight: number of the flight for new rows.
            first_row: number of rows that the flight already has.

        Returns:
            (entries int64 [n], positions in `ids` of the new rows int64 [m], ascending).

        Raises:
            ValueError: an id is negative.
        """
        num_ids = ids.shape[0]
        if 2 * (self._used + num_ids) > self._keys.shape[0]:
            self._grow(self._used + num_ids)
        found = np.empty(num_ids, np.int64)
        fresh = np.empty(num_ids, np.int64)
        first = (flight << int(_ROW_BITS)) + first_row
        num_fresh = _claim(self._keys, self._entries, ids, first, found, fresh)
        if num_fresh < 0:
            raise ValueError("global ids must not be negative")
        self._used += num_fresh
        return found, fresh[:num_fresh]

    def release(self, ids: IdArray, flight: int) -> None:
        """Remove those of `ids` that are rows of `flight`; each occurs once."""
        if ids.shape[0] == self._used <= self._keys.shape[0] <= 8 * self._used:
            # The map has no other ids (typical without load): clearing is cheaper than searching. An id of
            # another flight would make the numbers differ.
            self._keys.fill(_NOBODY)
            self._used = 0
            return
        self._used -= _release(self._keys, self._entries, ids, flight)

    @staticmethod
    def split(entries: IdArray) -> tuple[IdArray, IdArray]:
        """Split entries into (flight numbers, rows), int64 [n] each."""
        return entries >> _ROW_BITS, entries & _ROW_MASK

    def _grow(self, num_ids: int) -> None:
        num_slots = self._keys.shape[0]
        while num_slots < 4 * num_ids:
            num_slots *= 2
        keys = np.full(num_slots, _NOBODY, np.int64)
        entries = np.empty(num_slots, np.int64)
        _move(self._keys, self._entries, keys, entries)
        self._keys, self._entries = keys, entries
