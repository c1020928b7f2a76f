"""The L1 feature cache: rows in the shared memory of workers and prefetcher, read without locks.

Slots and tags come from `memory/row_cache.py`, eviction from `memory/sieve.py`, as in the state cache.

The difference: rows have an age. In addition to its tag, each slot stores when its row was fetched, and a
newer row replaces an older one. If the slot belongs to this process, the row is replaced in it. Otherwise
the row gets a new slot, and the index moves to it by compare-and-swap, so that of two writers the newer row
wins. The old slot is no longer reachable, and SIEVE reuses it.

A process that restarts finds its partition unchanged, and orders the rows by age.

Inside, times are int64 milliseconds; outside, float seconds on any clock that the processes share.
`time.monotonic()` is shared on Linux and, unlike `time.time()`, is never changed. Stamps are rounded down
and the present time up, so that no row is older than the TTL by a fraction of a millisecond.
All zero bytes are a valid, empty cache, so a fresh memfd needs no initialisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopline.errors import ConfigError
from hopline.features.claims import MAX_OWNERS, Claims
from hopline.kernels.intrinsics import acquire_fence, borrowed, compare_exchange
from hopline.kernels.jit import njit
from hopline.memory import row_cache, sieve
from hopline.memory.arena import Arena, array_bytes
from hopline.types import FloatArray, IdArray, StampArray

#: Names of the counters, in the order of the kernels' `counts`: rows requested by `read`, rows requested by
#: `probe`, and changes.
COUNTS = (
    "hits", "misses", "expired", "probed_hits", "probed_misses", "probed_expired", "writes", "evictions",
)  # fmt: skip
_HITS, _MISSES, _EXPIRED, _PROBES, _WRITES, _EVICTIONS = 0, 1, 2, 3, 6, 7

_TAG, _STAMP = 0, 1
#: Words of a partition's queue in the arena: one cache line, so that writers do not share lines.
_QUEUE_WORDS = 8


@njit(nogil=True, cache=True)
def _stamp_of(index, heads, v):  # type: ignore[no-untyped-def]
    """Return (slot, stamp) of the row of id v; slot -1 if it has none."""
    slot = np.int64(index[v]) - 1
    if slot >= 0:
        tag = heads[slot, _TAG]
        if tag & row_cache.OWNER_MASK == v + 1:
            acquire_fence()
            stamp = heads[slot, _STAMP]
            acquire_fence()
            if heads[slot, _TAG] == tag:
                return slot, stamp
    return np.int64(-1), np.int64(0)


@njit(nogil=True, cache=True)
def _read(  # type: ignore[no-untyped-def]
    index, heads, visited, rows, ids, out, stamps, now, ttl, expired_too, missing, counts
):
    """Copy rows to out[i], stamps to stamps[i] (inf: missing); list missing positions; return how many."""
    n, d = ids.shape[0], rows.shape[1]
    absent = expired = served_old = 0
    places, tags, flat = borrowed(index), borrowed(heads.reshape(-1)), borrowed(rows.reshape(-1))
    wanted = borrowed(ids)
    row_cache.prefetch_first(places, wanted)
    for i in range(n):
        row_cache.prefetch_ahead(places, tags, 2, flat, d, wanted, i)
        slot = np.int64(index[ids[i]]) - 1
        present = False
        if slot >= 0:
            tag = heads[slot, _TAG]
            if tag & row_cache.OWNER_MASK == ids[i] + 1:
                acquire_fence()
                stamp = heads[slot, _STAMP]
                # A stamp in the future comes from a clock that was set back: it expires too.
                fresh = abs(now - stamp) < ttl
                if fresh or expired_too:
                    source = rows[slot]
                    target = out[i]
                    for c in range(d):
                        target[c] = source[c]
                acquire_fence()
                if heads[slot, _TAG] == tag:
                    present = fresh or expired_too
                    if not fresh:
                        expired += 1
                        if expired_too:
                            served_old += 1
        if present:
            stamps[i] = 1e-3 * stamp
            if visited[slot] == 0:  # an unneeded store would invalidate the cache line of other readers
                visited[slot] = 1
        else:
            stamps[i] = np.inf
            missing[absent] = i
            absent += 1
    counts[_HITS] += n - absent - served_old
    counts[_MISSES] += absent - (expired - served_old)
    counts[_EXPIRED] += expired
    return absent


@njit(nogil=True, cache=True)
def _probe(index, heads, visited, ids, now, ttl, missing, counts):  # type: ignore[no-untyped-def]
    n = ids.shape[0]
    absent = expired = 0
    places, tags, wanted = borrowed(index), borrowed(heads.reshape(-1)), borrowed(ids)
    row_cache.prefetch_first(places, wanted)
    for i in range(n):
        row_cache.prefetch_ahead(places, tags, 2, tags, 0, wanted, i)
        slot, stamp = _stamp_of(index, heads, ids[i])
        if slot >= 0 and abs(now - stamp) < ttl:
            if visited[slot] == 0:
                visited[slot] = 1
        else:
            missing[absent] = i
            absent += 1
            expired += slot >= 0
    counts[_PROBES + _HITS] += n - absent
    counts[_PROBES + _MISSES] += absent - expired
    counts[_PROBES + _EXPIRED] += expired
    return absent


@njit(nogil=True, cache=True)
def _write(index, heads, visited, rows, ids, values, stamps, ttl, first, queue, links, counts):  # type: ignore[no-untyped-def]
    """Store rows. queue, links: see `sieve`, for the partition that begins at slot `first`."""
    d = rows.shape[1]
    num_slots = links.shape[1]
    line, flags, tags = borrowed(queue), borrowed(visited), borrowed(heads.reshape(-1))
    newer, older = borrowed(links[0]), borrowed(links[1])
    for i in range(ids.shape[0]):
        v, stamp = ids[i], stamps[i]
        known, known_stamp = _stamp_of(index, heads, v)
        if known >= 0 and 0 < known_stamp - stamp < ttl:
            continue  # an outdated row: a later fetch was faster
        if first <= known < first + num_slots:
            slot = known
            visited[slot] = 1  # fetched again, so it was requested
        else:
            slot = first + sieve.place(line, newer, older, flags, first)
            evicted = (heads[slot, _TAG] & row_cache.OWNER_MASK) - 1
            if evicted >= 0 and index[evicted] == slot + 1:
                counts[_EVICTIONS] += 1
            visited[slot] = 0

        counter = row_cache.begin_write(tags, 2 * slot)
        heads[slot, _STAMP] = stamp
        source = values[i]
        target = rows[slot]
        for c in range(d):
            target[c] = source[c]
        row_cache.end_write(tags, 2 * slot, counter, v)
        counts[_WRITES] += 1

        while True:
            seen = index[v]
            if seen == slot + 1:
                break
            known, known_stamp = _stamp_of(index, heads, v)
            if known >= 0 and 0 < known_stamp - stamp < ttl:
                break  # another process has just stored a newer row; this slot stays unreachable
            if compare_exchange(index, v, seen, np.int32(slot + 1)):
                if known >= 0:
                    visited[known] = 0  # unreachable; reused at the hand's next pass
                break


@njit(nogil=True, cache=True)
def _stamps(index, heads, ids, out):  # type: ignore[no-untyped-def]
    for i in range(ids.shape[0]):
        slot, stamp = _stamp_of(index, heads, ids[i])
        out[i] = stamp if slot >= 0 else np.nan


@dataclass(frozen=True, slots=True)
class CachePlan:
    """The layout of one node type's cache; equal in all processes that map it.

    Attributes:
        num_nodes: ids are in [0, num_nodes).
        dim: numbers per row.
        slots: limit of rows for each process; the length is the number of writers.
    """

    num_nodes: int
    dim: int
    slots: tuple[int, ...]

    @classmethod
    def within(
        cls,
        num_nodes: int,
        dim: int,
        memory_bytes: int,
        num_writers: int,
        shares: tuple[float, ...] | None = None,
    ) -> CachePlan:
        """Return the largest layout that needs at most `memory_bytes`, including the writers' own lists.

        Args:
            num_writers: processes that write: the workers and the prefetcher.
            shares: share of the slots for each writer, in any unit; None for equal shares. No writer gets
                more slots than there are nodes.

        Raises:
            ConfigError: less than one slot for each writer, or too many writers for claims.
        """
        if not 0 < num_writers < MAX_OWNERS:
            raise ConfigError(f"server.workers: {num_writers} processes cannot share a feature cache")
        shares = shares or (1.0,) * num_writers
        fixed = cls(num_nodes, dim, (0,) * num_writers).num_bytes
        # Each of the three arrays with an entry per slot is rounded up to whole pages.
        left = memory_bytes - fixed - 3 * array_bytes((1,), np.uint8)
        # The index stores slots in 32 bits.
        total = min(left // cls.slot_bytes(dim), 2**31 - 2)
        slots = tuple(min(max(1, num_nodes), int(total * share / math.fsum(shares))) for share in shares)
        if min(slots) < 1:
            needed = memory_bytes - left + 2 * num_writers * cls.slot_bytes(dim)
            raise ConfigError(
                f"features.memory_bytes: {memory_bytes} bytes are too few for {num_nodes} nodes of "
                f"{dim} numbers for {num_writers} processes; at least {needed} are required"
            )
        return cls(num_nodes, dim, slots)

    @staticmethod
    def slot_bytes(dim: int) -> int:
        """Return the bytes of a slot: row, tag, stamp, visited flag, and two links of the writer."""
        return 4 * dim + 8 + 8 + 1 + 8

    @property
    def num_bytes(self) -> int:
        """Bytes that the cache needs in the arena."""
        total = sum(self.slots)
        return (
            array_bytes((self.num_nodes,), np.int32)
            + array_bytes((total, 2), np.int64)
            + array_bytes((total,), np.uint8)
            + array_bytes((total, self.dim), np.float32)
            + array_bytes((len(self.slots), _QUEUE_WORDS), np.int64)
            + Claims.num_bytes(self.num_nodes)
        )


class L1FeatureCache:
    """The cached feature rows of one node type in this host's memory.

    Any thread may read; one thread of each process writes. Ids are global ids, int64 [n], not checked.

    Args:
        arena: memory of the cache; all processes must create their caches in the same order.
        plan: the layout.
        ttl_s: age at which a row expires, seconds; math.inf for never.
        writer: the partition that this process writes, and its number in claims.
    """

    def __init__(self, arena: Arena, plan: CachePlan, ttl_s: float = math.inf, writer: int = 0) -> None:
        total = sum(plan.slots)
        self.plan = plan
        self.ttl_s = ttl_s
        self._ttl = _milliseconds(min(ttl_s, 2.0**50))
        self._index = arena.take((plan.num_nodes,), np.int32)
        self._heads = arena.take((total, 2), np.int64)
        self._visited = arena.take((total,), np.uint8)
        self._rows = arena.take((total, plan.dim), np.float32)
        # Of the data of a dead predecessor, only the number of used slots is trusted.
        self._queues = arena.take((len(plan.slots), _QUEUE_WORDS), np.int64)
        self._queue = self._queues[writer]
        self._claims = Claims(arena, plan.num_nodes, writer)
        self._first = sum(plan.slots[:writer])
        self._links = sieve.empty_line(plan.slots[writer])[1]
        self._counts = np.zeros(len(COUNTS), np.int64)
        self._adopt()
        self._load_kernels()

    def read(
        self, ids: IdArray, out: FloatArray, now: float, allow_expired: bool = False
    ) -> tuple[IdArray, StampArray]:
        """Copy the cached rows.

        Args:
            ids: duplicates allowed.
            out: float32 [n, dim]; row i is filled if ids[i] is cached, otherwise undefined.
            now: seconds, on the clock of `write`.
            allow_expired: also return rows older than the TTL.

        Returns:
            int64 [m], positions in `ids` of missing or expired rows, ascending; and float64 [n], the stamps
            of the copied rows, inf for the others.
        """
        missing, stamps = np.empty(ids.shape[0], np.int64), np.empty(ids.shape[0])
        absent = _read(
            self._index,
            self._heads,
            self._visited,
            self._rows,
            ids,
            out,
            stamps,
            _rounded_up(now),
            self._ttl,
            allow_expired,
            missing,
            self._counts,
        )
        return missing[:absent], stamps

    def probe(self, ids: IdArray, now: float) -> IdArray:
        """Return the positions that `read` returns, without copying; present rows count as visited."""
        missing = np.empty(ids.shape[0], np.int64)
        absent = _probe(
            self._index, self._heads, self._visited, ids, _rounded_up(now), self._ttl, missing, self._counts
        )
        return missing[:absent]

    def ages(self, ids: IdArray, now: float) -> NDArray[np.float64]:
        """Return seconds since each row was fetched, float64 [n]; NaN for missing rows."""
        stamps = np.empty(ids.shape[0], np.float64)
        _stamps(self._index, self._heads, ids, stamps)
        return (_milliseconds(now) - stamps) * 1e-3

    def write(self, ids: IdArray, values: FloatArray, stamps: float | NDArray[np.float64]) -> None:
        """Store rows, and end all claims on them.

        A cached row is replaced, unless it was fetched later than the new one.

        Args:
            ids: int64 [n].
            values: float32 [n, dim].
            stamps: when the store had these values at the latest, seconds; float64 [n], or one for all.
        """
        _write(
            self._index,
            self._heads,
            self._visited,
            self._rows,
            ids,
            values,
            np.floor(np.broadcast_to(np.float64(1000) * stamps, ids.shape)).astype(np.int64),
            self._ttl,
            self._first,
            self._queue,
            self._links,
            self._counts,
        )
        # Only now: a process that finds no claim must find the row.
        self._claims.end(ids)

    def claim(self, ids: IdArray, now: float, claim_s: float) -> NDArray[np.bool_]:
        """Claim rows, and return which of them this process must fetch.

        False if another process is fetching the row (see `pending`), or if a fresh row has arrived in the
        meantime, so that each row is fetched once. A claim ends when the row is written, by `release`, or
        after `claim_s` seconds. This process's own claim is renewed and returned as true: requests of one
        process must be combined before.

        Returns: bool [n].
        """
        now_ms = _rounded_up(now)
        taken = self._claims.take(ids, now_ms, now_ms + _milliseconds(claim_s))
        claimed = ids[taken]
        stamps = np.empty(claimed.shape[0], np.float64)
        # After the claim: a row written before it is visible here, and no process writes it later.
        _stamps(self._index, self._heads, claimed, stamps)
        fresh = np.abs(now_ms - stamps) < self._ttl
        if fresh.any():
            self._claims.release(claimed[fresh])
            taken[taken] = ~fresh
        return taken

    def release(self, ids: IdArray) -> None:
        """End this process's claims on ids, after a fetch that failed or found no such rows."""
        self._claims.release(ids)

    def pending(self, ids: IdArray, now: float) -> NDArray[np.bool_]:
        """Return which rows another process is fetching, bool [n]."""
        return self._claims.pending(ids, _milliseconds(now))

    @property
    def counts(self) -> dict[str, int]:
        """Counters (COUNTS) of this process since its start.

        Hits, misses and expired add up to the requested rows: expired rows are counted separately, whether
        they were returned or not. Evictions count only reachable rows.
        """
        return dict(zip(COUNTS, self._counts.tolist(), strict=True))

    @property
    def num_rows(self) -> int:
        """Number of slots that all processes have used."""
        return int(self._queues[:, sieve.USED].sum())

    def _load_kernels(self) -> None:
        """Use every kernel for no rows: one that is compiled for a request would stop the event loop."""
        ids, rows = np.empty(0, np.int64), np.empty((0, self.plan.dim), np.float32)
        self.read(ids, rows, 0.0)
        self.probe(ids, 0.0)
        self.ages(ids, 0.0)
        self.write(ids, rows, 0.0)
        self.claim(ids, 0.0, 0.0)
        self.pending(ids, 0.0)

    def _adopt(self) -> None:
        """Order the rows that an earlier run of this process left in its partition, oldest first."""
        used = int(self._queue[sieve.USED])
        heads = self._heads[self._first : self._first + used]
        owners = (heads[:, _TAG] & row_cache.OWNER_MASK) - 1
        slots = np.arange(self._first, self._first + used)
        reachable = (owners >= 0) & (self._index[owners] == slots + 1)
        order = np.argsort(np.where(reachable, heads[:, _STAMP], np.iinfo(np.int64).min), kind="stable")
        self._visited[slots[~reachable]] = 0
        sieve.line_up(self._queue, self._links, order)


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _rounded_up(seconds: float) -> int:
    return math.ceil(seconds * 1000)
