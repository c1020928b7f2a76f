"""Common parts of all row caches: slots that many processes read without locks, and one process writes.

The state cache (`engine/state_cache.py`) and the L1 feature cache (`features/l1.py`) use these parts.
All arrays lie in memory that the processes of a host map, and all zero bytes are a valid, empty cache:

- index: int32 [ids], for each id the slot + 1 of its newest row, 0 for none. An entry may point at a slot
  that holds another id now: the tag decides.
- tags: int64, one for each slot: a write counter (upper 24 bits) and the owner (id + 1, lower 40 bits; 0
  while the row is being written). A reader copies the row out and reads the tag again: an unchanged tag
  means a complete row, anything else is a miss (a seqlock, one word wide). A process that dies during a
  write leaves one slot without an owner, nothing else.
- rows: float32 [slots, dim]; visited: uint8 [slots], for SIEVE (`sieve.py`).

A process reads all slots and writes only the slots of its partition, so no two processes write one
slot. The caches differ in one argument, `words`, the words of each slot: 1 in the state cache. L1 has two,
and the second is the time of the fetch. Arrays should be `intrinsics.borrowed`.
"""

from __future__ import annotations

import numpy as np

from hopline.kernels.intrinsics import LINE_BYTES, prefetch, release_fence
from hopline.kernels.jit import njit

OWNER_BITS = np.int64(40)
OWNER_MASK = np.int64((1 << 40) - 1)
_COUNTER_MASK = np.int64(0x7FFFFF)
#: How many ids ahead of the copy a row is prefetched, and how many ids ahead of that its index entry.
AHEAD, INDEX_AHEAD = 8, 16


@njit(inline="always")
def prefetch_first(index, ids):  # type: ignore[no-untyped-def]
    """Prefetch the first entries of the index that a loop over `ids` reads."""
    for i in range(min(ids.shape[0], INDEX_AHEAD)):
        prefetch(index, ids[i])


@njit(inline="always")
def prefetch_ahead(index, tags, words, flat, dim, ids, i):  # type: ignore[no-untyped-def]
    """Prefetch what a loop over `ids` reads soon after its step i; flat: the rows, dim 0 for no rows."""
    if i + INDEX_AHEAD < ids.shape[0]:
        prefetch(index, ids[i + INDEX_AHEAD])
    if i + AHEAD < ids.shape[0]:
        slot = np.int64(index[ids[i + AHEAD]]) - 1
        if slot >= 0:
            prefetch(tags, words * slot)
            for c in range(0, dim, LINE_BYTES // flat.itemsize):
                prefetch(flat, slot * dim + c)


@njit(inline="always")
def begin_write(tags, at):  # type: ignore[no-untyped-def]
    """Clear the owner of the slot whose tag is tags[at]; returns the counter for `end_write`."""
    counter = ((tags[at] >> OWNER_BITS) + 1) & _COUNTER_MASK
    tags[at] = counter << OWNER_BITS
    release_fence()
    return counter


@njit(inline="always")
def end_write(tags, at, counter, v):  # type: ignore[no-untyped-def]
    """Assign the slot, whose row is now written, to id v."""
    release_fence()
    tags[at] = (counter << OWNER_BITS) | (v + 1)
