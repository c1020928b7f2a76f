"""Feature rows with versions.

Memory that a reader may read is never changed: a new row goes to another slot, and the previous slot
stays until no reader needs it.
"""

from __future__ import annotations

from hopline.kernels.intrinsics import full_fence, release_fence
from hopline.kernels.jit import njit


@njit(nogil=True, cache=True)
def slots_at(heads, since, previous, version, ids, out):  # type: ignore[no-untyped-def]
    """out[i] = the slot of the row of ids[i] at `version`.

    Args:
        heads: int64 [capacity], newest slot of each node. since, previous: int64 [slots].
    """
    for i in range(ids.shape[0]):
        slot = heads[ids[i]]
        while since[slot] > version and previous[slot] >= 0:
            slot = previous[slot]
        out[i] = slot


@njit(nogil=True, cache=True)
def set_heads(heads, previous, ids, slots):  # type: ignore[no-untyped-def]
    """Make slots, which are filled, the newest rows of distinct ids, int64 [n]."""
    for i in range(ids.shape[0]):
        previous[slots[i]] = heads[ids[i]]
    release_fence()
    for i in range(ids.shape[0]):
        heads[ids[i]] = slots[i]


@njit(nogil=True, cache=True)
def undo(heads, since, previous, version):  # type: ignore[no-untyped-def]
    """Drop rows of versions later than `version`."""
    for v in range(heads.shape[0]):
        slot = heads[v]
        while slot >= 0 and since[slot] > version:
            slot = previous[slot]
        heads[v] = slot


@njit(nogil=True, cache=True)
def mark_used(heads, since, previous, oldest, used):  # type: ignore[no-untyped-def]
    """used[slot] = 1 for the rows of all nodes that versions from `oldest` on have."""
    for v in range(heads.shape[0]):
        slot = heads[v]
        while slot >= 0:
            used[slot] = 1
            slot = previous[slot] if since[slot] > oldest else -1


@njit(nogil=True, cache=True)
def find_late(slots, since, ready, late):  # type: ignore[no-untyped-def]
    """Fill `late` with the slots whose features have not been made; returns their number.

    Args:
        ready: int64 [slots], one more than the version of the row whose features were made.
    """
    count = 0
    for i in range(slots.shape[0]):
        if ready[slots[i]] != since[slots[i]] + 1:
            late[count] = slots[i]
            count += 1
    full_fence()  # other processes make features too: they are read after `ready`
    return count


@njit(nogil=True, cache=True)
def set_ready(slots, since, ready):  # type: ignore[no-untyped-def]
    """Record that the features of slots have been made."""
    full_fence()
    for i in range(slots.shape[0]):
        ready[slots[i]] = since[slots[i]] + 1
