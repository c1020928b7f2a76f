"""Detects events that were seen before: a window of the last ids, as 128-bit hashes.

The window has the last `capacity` distinct ids in order of first arrival. A repeated id stays where it is,
and a new one evicts the oldest. So a repeated event is detected if fewer than `capacity` other ids came in
between: brokers redeliver within seconds or minutes, not days. Two of a million ids have the same hash with
a probability of 1e-27.

Look-up and insertion are separate steps, so that the ids of a batch that could not be made durable are
still new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.graph import hash_table, id_values
from hopline.graph.hash_table import _mix, _word
from hopline.kernels.jit import njit

#: Name of the hash function; stored with the hashes, which are meaningless with another one.
HASH = "mix128/1"
CAPACITY = 1_000_000
_SECOND_SEED = np.uint64(0x2545F4914F6CDD1D)
_SECOND_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_1, _8 = np.uint64(1), np.uint64(8)


def hashed(event_ids: Sequence[str]) -> NDArray[np.uint64]:
    """Hash event ids: uint64 [n, 2]; zeros for "", which means no id.

    Not a cryptographic hash: a sender of events could construct two ids with the same hash, and one of the
    sender's own events would be dropped as a duplicate.
    """
    blob, lengths = id_values.encoded(event_ids)
    keys = np.empty((len(lengths), 2), np.uint64)
    _hash_all(blob, lengths, keys)
    return keys


class SeenWindow:
    """A window of the last event ids; see the module. Used by one thread.

    Args:
        capacity: ids that are remembered.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self._ring = np.zeros((capacity, 2), np.uint64)
        self._slots = np.full(hash_table.capacity_for(capacity), -1, np.int32)
        self._head = self._count = 0

    def __len__(self) -> int:
        return self._count

    def which_are_new(self, keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool [n]: not in the window, nor earlier among `keys`. Rows without an id are new.

        Args:
            keys: uint64 [n, 2] of `hashed`.
        """
        scratch = np.full(hash_table.capacity_for(max(1, len(keys))), -1, np.int32)
        new = np.empty(len(keys), np.bool_)
        _find_new(keys, self._ring, self._slots, scratch, new)
        return new

    def add(self, keys: NDArray[np.uint64]) -> None:
        """Remember ids; ids in the window stay where they are. Rows without an id are ignored."""
        self._head, self._count = _add(keys, self._ring, self._slots, self._head, self._count)

    def to_array(self) -> NDArray[np.uint64]:
        """uint64 [len(self), 2], oldest first; for `add` to an empty window."""
        return np.roll(self._ring, -self._head, axis=0)[self.capacity - self._count :]


@njit(nogil=True, cache=True)
def _hash_all(blob: Any, lengths: Any, keys: Any) -> None:
    at = np.uint64(0)
    for i in range(lengths.shape[0]):
        stop = at + np.uint64(lengths[i])
        if at == stop:
            keys[i, 0] = keys[i, 1] = np.uint64(0)
            continue
        a = _mix(stop - at)
        b = _mix((stop - at) ^ _SECOND_SEED)
        while at + _8 <= stop:
            word = _word(blob, at)
            a = _mix(a ^ word)
            b = _mix(b ^ (word * _SECOND_FACTOR))
            at += _8
        rest = np.uint64(0)
        while at < stop:
            rest = rest << _8 | np.uint64(blob[at])
            at += _1
        keys[i, 0] = _mix(a ^ rest) | _1  # never the zeros of a missing id
        keys[i, 1] = _mix(b ^ (rest * _SECOND_FACTOR))


@njit(nogil=True, cache=True)
def _find(key: Any, ring: Any, slots: Any) -> Any:
    """The slot that has the key, or the empty slot for it."""
    mask = np.uint64(slots.shape[0] - 1)
    at = key[1] & mask
    while slots[at] >= 0:
        other = ring[slots[at]]
        if other[0] == key[0] and other[1] == key[1]:
            break
        at = (at + _1) & mask
    return at


@njit(nogil=True, cache=True)
def _find_new(keys: Any, ring: Any, slots: Any, scratch: Any, new: Any) -> None:
    for i in range(keys.shape[0]):
        key = keys[i]
        new[i] = True
        if key[0] == 0:
            continue
        if slots[_find(key, ring, slots)] >= 0:
            new[i] = False
            continue
        at = _find(key, keys, scratch)
        new[i] = scratch[at] < 0
        if new[i]:
            scratch[at] = i


@njit(nogil=True, cache=True)
def _remove(ring: Any, slots: Any, at: Any) -> None:
    """Empty a slot, and move displaced entries up, so that no search ends too early."""
    mask = np.uint64(slots.shape[0] - 1)
    hole, probe = at, at
    while True:
        probe = (probe + _1) & mask
        if slots[probe] < 0:
            break
        home = ring[slots[probe], 1] & mask
        if ((probe - home) & mask) >= ((probe - hole) & mask):
            slots[hole] = slots[probe]
            hole = probe
    slots[hole] = -1


@njit(nogil=True, cache=True)
def _add(keys: Any, ring: Any, slots: Any, head: Any, count: Any) -> Any:
    for i in range(keys.shape[0]):
        key = keys[i]
        if key[0] == 0 or slots[_find(key, ring, slots)] >= 0:
            continue
        if count == ring.shape[0]:
            _remove(ring, slots, _find(ring[head], ring, slots))
        else:
            count += 1
        ring[head] = key
        slots[_find(key, ring, slots)] = head
        head = (head + 1) % ring.shape[0]
    return head, count
