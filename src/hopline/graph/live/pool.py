"""Room in the edge arrays, allocated and freed in blocks of powers of two.

Handles positions only, and is used by the writer alone. The first entry of a free block holds the block
that was freed before it, so that freeing needs no memory; freed blocks are not read.
"""

from __future__ import annotations

import numpy as np

from hopline.kernels.jit import njit

#: Entries of the smallest block.
_SMALLEST = 4
#: Entries of the pool's state before the heads of its free lists.
BUMP, END, IN_USE = 0, 1, 2
_BEFORE = 3
STATE_SIZE = _BEFORE + 32


@njit(nogil=True, cache=True)
def size_class(count):  # type: ignore[no-untyped-def]
    """Class of the smallest block for `count` entries: it has _SMALLEST << class entries."""
    c = 0
    while (np.int64(_SMALLEST) << c) < count:
        c += 1
    return c


@njit(nogil=True, cache=True)
def allot(state, indices, count):  # type: ignore[no-untyped-def]
    """Allocate a block for `count` entries; returns its first position, -1 if there is no room."""
    c = size_class(count)
    size = np.int64(_SMALLEST) << c
    at = state[_BEFORE + c] - 1
    if at >= 0:
        state[_BEFORE + c] = np.int64(indices[at])
    elif state[BUMP] + size <= state[END]:
        at = state[BUMP]
        state[BUMP] += size
    else:
        # split a block of a larger size
        larger = c + 1
        while larger < 32 and state[_BEFORE + larger] == 0:
            larger += 1
        if larger >= 32:
            return np.int64(-1)
        at = state[_BEFORE + larger] - 1
        state[_BEFORE + larger] = np.int64(indices[at])
        while larger > c:
            larger -= 1
            half = at + (np.int64(_SMALLEST) << larger)
            indices[half] = state[_BEFORE + larger]
            state[_BEFORE + larger] = half + 1
    state[IN_USE] += size
    return at


@njit(nogil=True, cache=True)
def free(state, indices, at, size):  # type: ignore[no-untyped-def]
    """Free `size` entries from position `at` on; split into powers of two."""
    state[IN_USE] -= size
    while size >= _SMALLEST:
        c = 0
        while c < 28 and (np.int64(_SMALLEST) << (c + 1)) <= size:
            c += 1
        indices[at] = state[_BEFORE + c]
        state[_BEFORE + c] = at + 1
        at += np.int64(_SMALLEST) << c
        size -= np.int64(_SMALLEST) << c


@njit(nogil=True, cache=True)
def capacity_of(count):  # type: ignore[no-untyped-def]
    """Entries of the block that `allot` returns for `count`."""
    return np.int64(_SMALLEST) << size_class(count)
