"""The state cache: hidden states of one level that were computed earlier.

With keyed sampling a row is a pure function of (model, graph version, node). A cached row is therefore
exact, and two workers that compute the same row write the same bytes. Slots and tags come from
`memory/row_cache.py`, eviction from `memory/sieve.py`. A row that another worker has cached is not cached
again.

Where features come from a store, each row has a *stamp*, that of the oldest feature row which it was
computed from, and expires with it. Elsewhere rows do not expire.

On a live graph each row has `computed_at`, the graph version that it was computed at, and each node has
`changed_at`, the last version at which its state may have changed (graph/live/changed_at.py). A row is
valid for a reader at version V if changed_at <= computed_at (nothing has changed since) and changed_at <= V
(the reader does not come before the change). Rows need no explicit invalidation.
"""

from __future__ import annotations

import numpy as np

from hopline.graph.extent import STILL, Clock
from hopline.kernels.intrinsics import acquire_fence, borrowed, prefetch
from hopline.kernels.jit import njit
from hopline.memory import row_cache, sieve
from hopline.memory.arena import Arena, array_bytes
from hopline.types import AnyArray, FloatArray, IdArray, StampArray

#: Stamps where rows do not expire.
NO_STAMPS: StampArray = np.empty(0, np.float64)


@njit(nogil=True, cache=True)
def read_rows(  # type: ignore[no-untyped-def]
    index, tags, visited, rows, stamps, computed_at, changed_at, version, since,
    ids, out, out_stamps, missing,
):  # fmt: skip
    """Copy cached rows to out[i]; list positions of the other rows in `missing`; return their number.

    Args:
        stamps: float64 [slots]; [0] where rows do not expire. since: only rows with later stamps are read.
        out_stamps: float64 [n], filled where rows expire; inf for a missing row.
        computed_at: int64 [slots]; [0] where the graph is not live.
        changed_at: int64 [N], or [0], read as of `version`.
    """
    live, ages = changed_at.shape[0] > 0, stamps.shape[0] > 0
    n, d = ids.shape[0], rows.shape[1]
    places, heads, flat, wanted = borrowed(index), borrowed(tags), borrowed(rows.reshape(-1)), borrowed(ids)
    absent = 0
    row_cache.prefetch_first(places, wanted)
    for i in range(n):
        row_cache.prefetch_ahead(places, heads, 1, flat, d, wanted, i)
        if live and i + row_cache.INDEX_AHEAD < n:
            prefetch(changed_at, ids[i + row_cache.INDEX_AHEAD])
        slot = index[ids[i]] - 1
        present = False
        if slot >= 0:
            tag = tags[slot]
            if tag & row_cache.OWNER_MASK == ids[i] + 1:
                acquire_fence()
                changed = changed_at[ids[i]] if live else np.int64(0)
                holds = not live or (changed <= computed_at[slot] and changed <= version)
                if ages:
                    out_stamps[i] = stamps[slot]
                    holds = holds and out_stamps[i] > since
                source = rows[slot]
                target = out[i]
                for c in range(d):
                    target[c] = source[c]
                acquire_fence()
                present = holds and tags[slot] == tag
        if present:
            visited[slot] = 1
        else:
            if ages:
                out_stamps[i] = np.inf
            missing[absent] = i
            absent += 1
    return absent


@njit(nogil=True, cache=True)
def _write(  # type: ignore[no-untyped-def]
    index, tags, visited, rows, stamps, computed_at, changed_at, version,
    ids, values, oldest, first, queue, links,
):  # fmt: skip
    """Write rows with the stamps `oldest`. queue, links: see `sieve`; links: int32 [2, slots]."""
    live, ages = changed_at.shape[0] > 0, stamps.shape[0] > 0
    d = rows.shape[1]
    num_slots = links.shape[1]
    line, flags, heads = borrowed(queue), borrowed(visited), borrowed(tags)
    newer, older = borrowed(links[0]), borrowed(links[1])  # towards the head, towards the tail
    for i in range(ids.shape[0]):
        v = ids[i]
        known = index[v] - 1
        again = False
        if live and changed_at[v] > version:
            continue  # it has changed in the meantime
        if known >= 0 and tags[known] & row_cache.OWNER_MASK == v + 1:
            unchanged = not live or computed_at[known] >= changed_at[v]
            if unchanged and (not ages or stamps[known] >= oldest[i]):
                continue  # another worker, or an earlier batch, was first
            again = known >= first and known < first + num_slots
        if again:
            s = known - first
        else:
            s = sieve.place(line, newer, older, flags, first)

        slot = first + s
        counter = row_cache.begin_write(heads, slot)
        source = values[i]
        target = rows[slot]
        for c in range(d):
            target[c] = source[c]
        if live:
            computed_at[slot] = version
        if ages:
            stamps[slot] = oldest[i]
        visited[slot] = 0
        row_cache.end_write(heads, slot, counter, v)
        index[v] = slot + 1


@njit(nogil=True, cache=True)
def _forget(index, ids):  # type: ignore[no-untyped-def]
    for i in range(ids.shape[0]):
        index[ids[i]] = 0


class StateCache:
    """Cached rows of one level and node type.

    Args:
        arena: memory for the arrays; every worker must create its caches in the same order.
        num_nodes: ids are in [0, num_nodes).
        dim: columns of a row.
        num_slots: largest number of rows that each worker writes.
        worker, num_workers: which partition this process writes.
        ages: rows have stamps.
        live: of a live graph, changed_at int64 [num_nodes] and the version that the reader sees.
    """

    def __init__(
        self,
        arena: Arena,
        num_nodes: int,
        dim: int,
        num_slots: int,
        worker: int = 0,
        num_workers: int = 1,
        live: tuple[IdArray, Clock] | None = None,
        *,
        ages: bool = False,
    ) -> None:
        total = num_slots * num_workers
        changed_at, self.clock = live or (np.empty(0, np.int64), STILL)
        self.num_slots = num_slots
        self.dim = dim
        self._index = arena.take((num_nodes,), np.int32)
        self._tags = arena.take((total,), np.int64)
        self._visited = arena.take((total,), np.uint8)
        self._rows = arena.take((total, dim), np.float32)
        self._stamps = arena.take((total if ages else 0,), np.float64)
        self._computed_at = arena.take((total if live is not None else 0,), np.int64)
        self._changed_at = changed_at
        self._first = worker * num_slots
        self._queue, self._links = sieve.empty_line(num_slots)
        self._missing = np.empty(256, np.int64)
        #: (index, tags, visited, rows, stamps, computed_at, changed_at): arguments of `read_rows`.
        self.arrays: tuple[AnyArray, ...] = self._index, self._tags, self._visited, self._rows, self._stamps
        self.arrays += self._computed_at, self._changed_at
        self.num_hits = 0
        self.num_misses = 0

    @staticmethod
    def row_bytes(dim: int, ages: bool = False) -> int:
        """Bytes of one cached row with its tag, visited flag and stamp."""
        return 4 * dim + 8 + 1 + 8 * ages

    @staticmethod
    def num_bytes(
        num_nodes: int, dim: int, num_slots: int, num_workers: int, live: bool = False, ages: bool = False
    ) -> int:
        """Bytes of the arena that a state cache needs."""
        total = num_slots * num_workers
        return (
            array_bytes((num_nodes,), np.int32)
            + array_bytes((total,), np.int64)
            + array_bytes((total,), np.uint8)
            + array_bytes((total, dim), np.float32)
            + array_bytes((total if ages else 0,), np.float64)
            + array_bytes((total if live else 0,), np.int64)
        )

    def read(
        self, ids: IdArray, out: FloatArray, since: float = -np.inf, stamps: StampArray = NO_STAMPS
    ) -> IdArray:
        """Copy cached rows.

        Args:
            ids: int64 [n], in range.
            out: float32 [n, dim]; row i is filled where ids[i] is cached, undefined elsewhere.
            since: rows with this stamp or an older one have expired.
            stamps: float64 [n], of the cached rows, inf elsewhere; not used where rows do not expire.

        Returns: int64 [m], positions in `ids` that are not cached, ascending; valid until the next call.
        """
        if ids.shape[0] > self._missing.shape[0]:
            self._missing = np.empty(2 * ids.shape[0], np.int64)
        absent = read_rows(*self.arrays, self.clock.version, since, ids, out, stamps, self._missing)
        self.num_misses += absent
        self.num_hits += ids.shape[0] - absent
        return self._missing[:absent]

    def write(self, ids: IdArray, values: FloatArray, stamps: StampArray = NO_STAMPS) -> None:
        """Cache rows: values float32 [n, dim] and stamps float64 [n] of ids int64 [n]."""
        _write(*self.arrays, self.clock.version, ids, values, stamps, self._first, self._queue, self._links)

    def forget(self, ids: IdArray) -> None:
        """Drop the rows of `ids` (int64 [n])."""
        _forget(self._index, ids)

    def clear(self) -> None:
        """Drop all rows."""
        self._index[:] = 0

    @property
    def num_rows(self) -> int:
        """Slots of this worker's partition that have been used."""
        return int(self._queue[0])
