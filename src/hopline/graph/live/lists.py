"""Kernels that change in-neighbour lists with versions. The writer's side of `extent.py`.

Memory that a reader may read is never changed. A change writes the whole new list into other room, or
appends to the old one if it only grows and there is room, and then writes a new record. The previous record
stays until no reader needs it. Lists stay in canonical order: by time where there are times, then by
source, ties in order of arrival. They therefore equal, bit for bit, the lists of a graph built from the
final edges.
"""

from __future__ import annotations

import numpy as np

from hopline.graph.extent import DEGREE, PREVIOUS, SINCE, START
from hopline.graph.live.pool import allot, capacity_of, free
from hopline.kernels.intrinsics import release_fence
from hopline.kernels.jit import njit

#: Columns of a retired list: its record, and its room (first position, or -1, and entries).
RECORD, ROOM, ROOM_SIZE = 0, 1, 2
#: Columns of `counters` of `merge`.
TOUCHED, RETIRED, FREE, NUM_EDGES, MAX_DEGREE, REMOVED = 0, 1, 2, 3, 4, 5
NUM_COUNTERS = 6


@njit(nogil=True, cache=True)
def _first_removal(sources, times, has_time, orders, first, last, source, at, after):  # type: ignore[no-untyped-def]
    """The first removal of an edge among [first, last), sorted by (source, order), -1 for none.

    Args:
        after: only removals later than this in the batch.
    """
    low, high = first, last
    while low < high:
        middle = (low + high) >> 1
        if sources[middle] < source:
            low = middle + 1
        else:
            high = middle
    while low < last and sources[low] == source:
        if orders[low] > after and (not has_time[low] or times[low] == at):
            return low
        low += 1
    return np.int64(-1)


@njit(nogil=True, cache=True)
def merge(  # type: ignore[no-untyped-def]
    heads, records, indices, time, weight, cumweight, attr, capacities, pool, free_records,
    add_dst, add_src, add_time, add_weight, add_attr, add_order,
    del_dst, del_src, del_time, del_has_time, del_order,
    version, found, touched, retired, counters,
):  # fmt: skip
    """Create new lists for the destinations that a batch changes.

    Args:
        heads, records, indices, time, weight, cumweight, attr: of the edge type's memory; `attr` may hold
            slots of rows of columns.
        capacities: int64 [R], entries of each record's room.
        pool: see `pool.py`.
        free_records: int64 [R], a stack with counters[FREE] entries.
        add_dst, add_src, add_time, add_weight, add_attr, add_order: edges to add, sorted by (dst, time,
            src, order). add_time, add_weight, add_attr are [0] where the type has none.
        del_dst, del_src, del_time, del_has_time, del_order: removals, sorted by (dst, src, order).
        version: of the batch.
        found: bool [removals], filled: whether a removal met an edge.
        touched: int64 [distinct destinations], filled with those whose lists changed.
        retired: int64 [distinct destinations, 3], filled.
        counters: int64 [NUM_COUNTERS]; TOUCHED and RETIRED are set, the others are updated.

    Returns: False if room ran out; the caller has ensured that there is enough.
    """
    timed = time.shape[0] > 0
    weighted = weight.shape[0] > 0
    width = attr.shape[1] if attr.shape[0] > 0 else 0
    num_adds, num_dels = add_dst.shape[0], del_dst.shape[0]
    for r in range(num_dels):
        found[r] = False
    i, j = 0, 0
    num_touched, num_retired = 0, 0
    while i < num_adds or j < num_dels:
        v = add_dst[i] if i < num_adds else del_dst[j]
        if j < num_dels and del_dst[j] < v:
            v = del_dst[j]
        first_add, first_del = i, j
        while i < num_adds and add_dst[i] == v:
            i += 1
        while j < num_dels and del_dst[j] == v:
            j += 1
        old = heads[v]
        start, degree, capacity = np.int64(0), np.int64(0), np.int64(0)
        if old >= 0:
            start, degree, capacity = records[old, START], records[old, DEGREE], capacities[old]
        count = i - first_add
        moved = True
        if first_del == j and degree + count <= capacity:
            last = start + degree - 1
            later = degree == 0 or (
                (not timed and indices[last] <= add_src[first_add])
                or (timed and time[last] < add_time[first_add])
                or (timed and time[last] == add_time[first_add] and indices[last] <= add_src[first_add])
            )
            if later:
                moved = False
        if moved:
            target = allot(pool, indices, degree + count)
            if target < 0:
                return False
            # Two sorted runs are merged; removed edges are omitted.
            at, e, a = target, np.int64(0), first_add
            removed, refused = 0, 0
            while e < degree or a < i:
                take_old = a >= i
                if not take_old and e < degree:
                    p = start + e
                    if timed and time[p] != add_time[a]:
                        take_old = time[p] < add_time[a]
                    else:
                        take_old = indices[p] <= add_src[a]
                if take_old:
                    p = start + e
                    e += 1
                    if first_del < j:
                        r = _first_removal(
                            del_src, del_time, del_has_time, del_order, first_del, j,
                            np.int64(indices[p]), time[p] if timed else np.int64(0), np.int64(-1),
                        )  # fmt: skip
                        if r >= 0:
                            found[r] = True
                            removed += 1
                            continue
                    indices[at] = indices[p]
                    if timed:
                        time[at] = time[p]
                    if weighted:
                        weight[at] = weight[p]
                    for c in range(width):
                        attr[at, c] = attr[p, c]
                else:
                    q = a
                    a += 1
                    if first_del < j:
                        r = _first_removal(
                            del_src, del_time, del_has_time, del_order, first_del, j,
                            add_src[q], add_time[q] if timed else np.int64(0), add_order[q],
                        )  # fmt: skip
                        if r >= 0:
                            found[r] = True
                            refused += 1
                            continue
                    indices[at] = add_src[q]
                    if timed:
                        time[at] = add_time[q]
                    if weighted:
                        weight[at] = add_weight[q]
                    for c in range(width):
                        attr[at, c] = add_attr[q, c]
                at += 1
            size = capacity_of(degree + count)
            if removed == 0 and refused == count:
                free(pool, indices, target, size)  # nothing has changed
                continue
            degree_now = at - target
            counters[REMOVED] += removed
        else:
            target, size = start, capacity
            for a in range(first_add, i):
                at = start + degree + a - first_add
                indices[at] = add_src[a]
                if timed:
                    time[at] = add_time[a]
                if weighted:
                    weight[at] = add_weight[a]
                for c in range(width):
                    attr[at, c] = add_attr[a, c]
            degree_now = degree + count
        if weighted:
            total = 0.0
            for at in range(target, target + degree_now):
                total += np.float64(weight[at])
                cumweight[at] = total
        if counters[FREE] == 0:
            return False
        counters[FREE] -= 1
        new = free_records[counters[FREE]]
        records[new, START] = target
        records[new, DEGREE] = degree_now
        records[new, SINCE] = version
        records[new, PREVIOUS] = old
        capacities[new] = size
        release_fence()
        heads[v] = new
        counters[NUM_EDGES] += degree_now - degree
        counters[MAX_DEGREE] = max(counters[MAX_DEGREE], degree_now)
        touched[num_touched] = v
        num_touched += 1
        if old >= 0:
            retired[num_retired, RECORD] = old
            retired[num_retired, ROOM] = start if moved and capacity > 0 else np.int64(-1)
            retired[num_retired, ROOM_SIZE] = capacity
            num_retired += 1
    counters[TOUCHED] = num_touched
    counters[RETIRED] = num_retired
    return True


@njit(nogil=True, cache=True)
def release(retired, records, indices, pool, free_records, counters):  # type: ignore[no-untyped-def]
    """Reuse the records and the room of retired lists that no reader needs."""
    for k in range(retired.shape[0]):
        free_records[counters[FREE]] = retired[k, RECORD]
        counters[FREE] += 1
        if retired[k, ROOM] >= 0:
            free(pool, indices, retired[k, ROOM], retired[k, ROOM_SIZE])


@njit(nogil=True, cache=True)
def fill(indptr, heads, records, capacities, num_nodes, version):  # type: ignore[no-untyped-def]
    """Create a record for each list of a snapshot, whose edges were copied to the front of the arrays."""
    for v in range(heads.shape[0]):
        heads[v] = -1
    for v in range(num_nodes):
        records[v, START] = indptr[v]
        records[v, DEGREE] = indptr[v + 1] - indptr[v]
        records[v, SINCE] = version
        records[v, PREVIOUS] = -1
        capacities[v] = indptr[v + 1] - indptr[v]
        heads[v] = v


@njit(nogil=True, cache=True)
def undo(heads, records, version):  # type: ignore[no-untyped-def]
    """Drop records of versions later than `version`; returns the number of affected lists."""
    undone = 0
    for v in range(heads.shape[0]):
        at = heads[v]
        while at >= 0 and records[at, SINCE] > version:
            at = records[at, PREVIOUS]
        if at != heads[v]:
            heads[v] = at
            undone += 1
    return undone


@njit(nogil=True, cache=True)
def mark_rows(heads, records, attr, oldest, used):  # type: ignore[no-untyped-def]
    """used[slot] = 1 for the rows of columns of all edges that versions from `oldest` on have.

    Args:
        attr: int32 [positions, 1], slots.
    """
    for v in range(heads.shape[0]):
        at = heads[v]
        while at >= 0:
            for position in range(records[at, START], records[at, START] + records[at, DEGREE]):
                used[attr[position, 0]] = 1
            at = records[at, PREVIOUS] if records[at, SINCE] > oldest else -1


@njit(nogil=True, cache=True)
def find_ids(heads, records, attr, cells, column, owners, places, version, found, of):  # type: ignore[no-untyped-def]
    """Find edges by their ids: found[i], of[i] = position and destination; -1 for unknown ones.

    Args:
        attr: as of `mark_rows`. owners: see `memory.py`. cells: rows by slot; column: that of ids.
        places: int64 [n], of ids among the texts; -1 for unknown ones.
        version: at which edges exist.
    """
    for i in range(places.shape[0]):
        found[i], of[i] = -1, -1
        if places[i] < 0:
            continue
        v = owners[places[i]]
        at = heads[v]
        while at >= 0 and records[at, SINCE] > version:
            at = records[at, PREVIOUS]
        first = records[at, START] if at >= 0 else np.int64(0)
        for position in range(first, first + (records[at, DEGREE] if at >= 0 else 0)):
            if cells[attr[position, 0], column] == places[i]:
                found[i], of[i] = position, v
                break


@njit(nogil=True, cache=True)
def mark_owners(heads, records, attr, cells, column, owners):  # type: ignore[no-untyped-def]
    """Fill `owners` of all edges of the newest version."""
    for v in range(heads.shape[0]):
        at = heads[v]
        if at >= 0:
            for position in range(records[at, START], records[at, START] + records[at, DEGREE]):
                text = cells[attr[position, 0], column]
                if text >= 0:  # not NaN, in a file that is damaged
                    owners[np.int64(text)] = v
