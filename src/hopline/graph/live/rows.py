"""Feature rows with versions.

Memory that a reader may read is never changed: a new row goes to another slot, and the previous slot
stays until no reader needs it.
"""

from __future__ import annotations

from hopline.kernels.intrinsics import full_fence, release_fence
from hopline.kernels.jit import njit

#: Indices of `counters`.
BUMP, FREE, RETIRED = 0, 1, 2
NUM_COUNTERS = 3


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
def fill(heads, since, previous, num_nodes, version):  # type: ignore[no-untyped-def]
    """Create the first rows: node v has slot v. Slots of future nodes are empty."""
    for v in range(heads.shape[0]):
        heads[v] = v if v < num_nodes else -1
    for v in range(num_nodes):
        since[v] = version
        previous[v] = -1


@njit(nogil=True, cache=True)
def set_rows(heads, rows, cells, since, previous, ids, values, raw, version, free, retired, counters):  # type: ignore[no-untyped-def]
    """Set rows; for repeated ids the last row applies.

    Args:
        ids: int64 [n]. values: float32 [n, dim]. raw: float64 [n, columns].
        free: int64 [slots], a stack with counters[FREE] entries.
        retired: int64 [n], filled with slots, counters[RETIRED] of them.

    Returns: False if slots ran out; the caller has ensured that there are enough.
    """
    num_retired = 0
    for i in range(ids.shape[0]):
        v = ids[i]
        old = heads[v]
        if old >= 0 and since[old] == version:
            slot = old  # written by this batch, not visible yet
        else:
            if counters[FREE] > 0:
                counters[FREE] -= 1
                slot = free[counters[FREE]]
            elif counters[BUMP] < rows.shape[0]:
                slot = counters[BUMP]
                counters[BUMP] += 1
            else:
                return False
            since[slot] = version
            previous[slot] = old
            if old >= 0:
                retired[num_retired] = old
                num_retired += 1
        for c in range(rows.shape[1]):
            rows[slot, c] = values[i, c]
        for c in range(cells.shape[1]):
            cells[slot, c] = raw[i, c]
        release_fence()
        heads[v] = slot
    counters[RETIRED] = num_retired
    return True


@njit(nogil=True, cache=True)
def release(retired, free, counters):  # type: ignore[no-untyped-def]
    """Reuse the slots of retired rows that no reader needs."""
    for k in range(retired.shape[0]):
        free[counters[FREE]] = retired[k]
        counters[FREE] += 1


@njit(nogil=True, cache=True)
def undo(heads, since, previous, version):  # type: ignore[no-untyped-def]
    """Drop rows of versions later than `version`."""
    for v in range(heads.shape[0]):
        slot = heads[v]
        while slot >= 0 and since[slot] > version:
            slot = previous[slot]
        heads[v] = slot


@njit(nogil=True, cache=True)
def mark_used(heads, used):  # type: ignore[no-untyped-def]
    """used[slot] = 1 for the newest slot of each node."""
    for v in range(heads.shape[0]):
        if heads[v] >= 0:
            used[heads[v]] = 1


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
