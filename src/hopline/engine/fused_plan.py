"""The plan of a small batch in one compiled call, for models that read one edge type at each level.

`plan.py` does the same for every model and every size, with the same kernels. For one seed its calls cost
more than their work (log/). Each level must read edges of one type, of bounded fanout, and own rows (if
any) from the level that computes that type's sources.

Arguments would cost as much as calls (0.1 µs for each array), so the kernels read *frames*: an int64 row
of addresses and sizes for each level. Python keeps the arrays behind the addresses alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import carray

from hopline.engine.guard import Guard
from hopline.engine.kernels import intern
from hopline.engine.level_plan import LevelPlan
from hopline.engine.plan import SOME_EDGES, Plan
from hopline.engine.state_cache import read_rows
from hopline.graph.extent import NUM_COLUMNS
from hopline.kernels.intrinsics import pointer
from hopline.kernels.jit import njit
from hopline.sampling import Block, BlockBuffers, Sampler
from hopline.sampling.keyed import NO_CUT, sample
from hopline.types import AnyArray, FloatArray, IdArray

if TYPE_CHECKING:
    from hopline.engine.level import Level

#: Largest number of seeds.
_MAX_SEEDS = 256

# Columns of a frame. Names that end in _AT are addresses; NUM_ are sizes of arrays.
(
    INDPTR_AT, NUM_INDPTR, RECORDS_AT, NUM_RECORDS, VERSION,
    INDICES_AT, NUM_EDGES, IS_WIDE, TIME_AT, NUM_TIMES, CUMWEIGHT_AT, NUM_CUMWEIGHTS,
    WEIGHT_AT, NUM_WEIGHTS, FANOUT, MODE, KEY, DATA_AT, ID_BITS, SCALE_AT, ZERO_CODE, LONG_BOUNDS_AT,
    OFFSETS_AT, POSITIONS_AT, NEIGHBORS_AT, KEYS_AT, VALUES_AT, ROWS_AT, CAPACITY,
    IDS_AT, OUT_AT, MISSING_AT, COMPUTE_AT, STATE_DIM, HAS_EDGES, READS_OWN,
    HAS_CACHE, INDEX_AT, NUM_NODES, TAGS_AT, VISITED_AT, KEPT_AT, NUM_SLOTS,
    COMPUTED_AT_ARRAY, NUM_COMPUTED_AT, CHANGED_AT_ARRAY, NUM_CHANGED_AT,
    NUM_IDS, NUM_COMPUTE, NUM_SAMPLED,
    NUM_PLACES,
) = range(51)  # fmt: skip


@njit(inline="always")
def _ints(address, count):  # type: ignore[no-untyped-def]
    """int64 [count] at an address."""
    return carray(pointer(address), (count,), np.int64)


@njit(inline="always")
def _matrix(address, rows, columns):  # type: ignore[no-untyped-def]
    """float32 [rows, columns] at an address."""
    return carray(pointer(address), (rows, columns), np.float32)


@njit(nogil=True, cache=True)
def _sample(f, nodes, as_of, packed):  # type: ignore[no-untyped-def]
    """`sample` the in-neighbours of int64 [n] nodes with the arrays of frame `f`; returns the edges."""
    records = carray(pointer(f[RECORDS_AT]), (f[NUM_RECORDS], NUM_COLUMNS), np.int64)
    time = _ints(f[TIME_AT], f[NUM_TIMES])
    if packed is not None:  # decided at compile time: neither variant contains the other's code
        scale = carray(pointer(f[SCALE_AT]), (1,), np.float64)[0]
        weights = (f[WEIGHT_AT], f[CUMWEIGHT_AT], scale, f[ZERO_CODE])
        edges = nodes.shape[0] * f[FANOUT]
        return sample(
            (f[INDPTR_AT], f[LONG_BOUNDS_AT]), records,
            (f[INDICES_AT], f[DATA_AT], f[ID_BITS]), time, weights, weights, nodes,
            f[FANOUT], f[MODE], f[VERSION], as_of, np.uint64(f[KEY]),
            _ints(f[OFFSETS_AT], nodes.shape[0] + 1), _ints(f[POSITIONS_AT], edges),
            _ints(f[NEIGHBORS_AT], edges),
        )  # fmt: skip
    indptr = _ints(f[INDPTR_AT], f[NUM_INDPTR])
    cumweight = carray(pointer(f[CUMWEIGHT_AT]), (f[NUM_CUMWEIGHTS],), np.float64)
    weight = carray(pointer(f[WEIGHT_AT]), (f[NUM_WEIGHTS],), np.float32)
    bound = nodes.shape[0] * f[FANOUT]
    offsets = _ints(f[OFFSETS_AT], nodes.shape[0] + 1)
    positions = _ints(f[POSITIONS_AT], bound)
    neighbors = _ints(f[NEIGHBORS_AT], bound)
    key = np.uint64(f[KEY])
    if f[IS_WIDE]:
        wide = _ints(f[INDICES_AT], f[NUM_EDGES])
        return sample(
            indptr, records, wide, time, cumweight, weight, nodes,
            f[FANOUT], f[MODE], f[VERSION], as_of, key, offsets, positions, neighbors,
        )  # fmt: skip
    indices = carray(pointer(f[INDICES_AT]), (f[NUM_EDGES],), np.int32)
    return sample(
        indptr, records, indices, time, cumweight, weight, nodes,
        f[FANOUT], f[MODE], f[VERSION], as_of, key, offsets, positions, neighbors,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _look_up(f, use_caches):  # type: ignore[no-untyped-def]
    """Fill the rows that the state cache has; list the ids to compute."""
    n = f[NUM_IDS]
    ids = _ints(f[IDS_AT], n)
    compute = _ints(f[COMPUTE_AT], n)
    if not (use_caches and f[HAS_CACHE]):
        f[NUM_COMPUTE] = n
        for i in range(n):
            compute[i] = ids[i]
        return
    total = f[NUM_SLOTS]
    index, tags = carray(pointer(f[INDEX_AT]), (f[NUM_NODES],), np.int32), _ints(f[TAGS_AT], total)
    visited = carray(pointer(f[VISITED_AT]), (total,), np.uint8)
    kept = _matrix(f[KEPT_AT], total, f[STATE_DIM])
    stamps = carray(pointer(f[KEPT_AT]), (0,), np.float64)  # its rows do not expire
    computed_at = _ints(f[COMPUTED_AT_ARRAY], f[NUM_COMPUTED_AT])
    changed_at = _ints(f[CHANGED_AT_ARRAY], f[NUM_CHANGED_AT])
    missing = _ints(f[MISSING_AT], n)
    out = _matrix(f[OUT_AT], n, f[STATE_DIM])
    absent = read_rows(
        index, tags, visited, kept, stamps, computed_at, changed_at, f[VERSION], 0.0, ids, out, stamps,
        missing,
    )  # fmt: skip
    f[NUM_COMPUTE] = absent
    for i in range(absent):
        compute[i] = ids[missing[i]]


@njit(nogil=True, cache=True)
def plan_levels(frames, seeds, as_of, use_caches, packed):  # type: ignore[no-untyped-def]
    """Find the rows to compute of each level, sample their edges, and number the rows that they read.

    Args:
        frames: int64 [levels, NUM_PLACES]; NUM_IDS, NUM_COMPUTE and NUM_SAMPLED are filled.
        seeds: int64 [n] distinct ids. packed: None, or 1 where edges are compressed.
    """
    top = frames.shape[0] - 1
    ids = _ints(frames[top, IDS_AT], seeds.shape[0])
    for i in range(seeds.shape[0]):
        ids[i] = seeds[i]
    frames[top, NUM_IDS] = seeds.shape[0]
    for k in range(top, -1, -1):
        f = frames[k]
        _look_up(f, use_caches)
        n = f[NUM_COMPUTE]
        if n == 0:
            for below in range(k):
                frames[below, NUM_IDS] = 0
                frames[below, NUM_COMPUTE] = 0
            return
        nodes = _ints(f[COMPUTE_AT], n)
        total = _sample(f, nodes, as_of, packed) if f[HAS_EDGES] else 0
        f[NUM_SAMPLED] = total
        if k > 0:
            # Small batches use a small part of the hash, which stays in the CPU cache.
            shift = 58
            while (np.int64(1) << (64 - shift)) < 2 * (n + total):
                shift -= 1
            own = n if f[READS_OWN] else 0
            frames[k - 1, NUM_IDS] = intern(
                nodes[:own],
                _ints(f[NEIGHBORS_AT], total),
                True,
                shift,
                _ints(f[KEYS_AT], f[CAPACITY]),
                carray(pointer(f[VALUES_AT]), (f[CAPACITY],), np.int32),
                _ints(frames[k - 1, IDS_AT], own + total),
                0,
                _ints(f[ROWS_AT], own + total),
            )


def chain_to(level: Level) -> list[Level] | None:
    """The levels that a level is computed from, bottom first; None where they have no fused plan."""
    chain: list[Level] = []
    above: Level | None = level
    while above is not None:
        is_lowest = not above.links and above.own_below is None
        if above.runner is None or not (above.is_simple or is_lowest):
            return None
        chain.append(above)
        above = above.links[0][1] if above.links else None
    packed = {relation.sampler.packed for each in chain for relation, _ in each.links}
    return chain[::-1] if len(packed) == 1 else None


class FusedPlan:
    """Plans the levels of a chain.

    Args:
        chain: bottom first, from `chain_to`.

    Attributes:
        max_seeds: the largest batch that it plans: no level has so many edges that the guard looks at them.
    """

    def __init__(self, chain: list[Level]) -> None:
        self._chain = chain
        edges, self.max_seeds = 1, _MAX_SEEDS
        for level in chain[::-1]:
            edges *= level.links[0][0].sampler.fanout + 1 if level.links else 1
            self.max_seeds = min(self.max_seeds, SOME_EDGES // edges)
        sampler = chain[-1].links[0][0].sampler
        self._clock, self._packed = sampler.clock, 1 if sampler.packed else None
        self._frames = np.zeros((len(chain), NUM_PLACES), np.int64)
        self._counts = self._frames[:, NUM_IDS : NUM_SAMPLED + 1]
        self._alive: list[AnyArray] = []
        #: Of each level: ids, missing, compute, rows, and the sampled edges.
        self._arrays: list[tuple[IdArray, IdArray, IdArray, IdArray, BlockBuffers]] = []
        self._outs: list[FloatArray] = []
        capacity = self.max_seeds
        for k in range(len(chain) - 1, -1, -1):
            capacity = self._fill(k, chain[k], capacity)
        self._outs.reverse()
        self._arrays.reverse()

    def make(self, ids: IdArray, as_of: int, guard: Guard) -> Plan:
        """The plan of distinct ids, int64 [n], n at most `max_seeds`; see `make_plan`."""
        guard.num_bytes = 0
        plan = Plan([], as_of, guard)
        frames, use_caches = self._frames, as_of == NO_CUT
        frames[:, VERSION] = self._clock.version
        plan_levels(frames, ids, as_of, use_caches, self._packed)
        counts: list[list[int]] = self._counts.tolist()
        for k in range(len(counts) - 1, -1, -1):
            num_ids, num_compute, num_edges = counts[k]
            if not num_ids:
                break
            level, (found, missing, compute, rows, buffers) = self._chain[k], self._arrays[k]
            if use_caches and level.state_cache is not None:
                level.state_cache.num_misses += num_compute
                level.state_cache.num_hits += num_ids - num_compute
            need = LevelPlan(
                level,
                found[:num_ids],
                self._outs[k][:num_ids],
                missing[:num_compute] if num_compute < num_ids else None,
                compute[:num_compute],
            )
            if num_compute:
                guard.rows += num_compute + num_edges
            if num_compute and level.links:
                block = Block(buffers, num_compute, num_edges)
                need.blocks.append(block)
                own = num_compute if level.own_below is not None else 0
                if own:
                    need.own_rows = rows[:own]
                need.rows.append(rows[own : own + num_edges] if k else block.neighbors)
            plan.needs.append([need])
        return plan

    def _fill(self, k: int, level: Level, capacity: int) -> int:
        """Fill the frame of a level; returns the rows that the level below must have room for."""
        edges = capacity * level.links[0][0].sampler.fanout if level.links else 0
        rows_below = capacity + edges
        bits = max(6, (2 * rows_below).bit_length())
        out = np.empty((capacity, level.stage.state_dim), np.float32)
        buffers = BlockBuffers()
        buffers.offsets, buffers.positions, buffers.neighbors = (
            np.empty(size, np.int64) for size in (capacity + 1, max(1, edges), max(1, edges))
        )
        ids, missing, compute = (np.empty(capacity, np.int64) for _ in range(3))
        rows = np.empty(rows_below, np.int64)
        self._outs.append(out)
        self._arrays.append((ids, missing, compute, rows, buffers))
        values: dict[int, Any] = {
            HAS_EDGES: bool(level.links), READS_OWN: level.own_below is not None,
            OFFSETS_AT: buffers.offsets, POSITIONS_AT: buffers.positions,
            NEIGHBORS_AT: buffers.neighbors, KEYS_AT: np.empty(1 << bits, np.int64),
            VALUES_AT: np.empty(1 << bits, np.int32), ROWS_AT: rows, CAPACITY: 1 << bits,
            IDS_AT: ids, OUT_AT: out, MISSING_AT: missing, COMPUTE_AT: compute,
            STATE_DIM: level.stage.state_dim,
        }  # fmt: skip
        if level.links:
            values |= _sampler_values(level.links[0][0].sampler)
        if level.state_cache is not None:
            index, tags, visited, kept, _, computed_at, changed_at = level.state_cache.arrays
            values |= {
                HAS_CACHE: 1, INDEX_AT: index, NUM_NODES: len(index), TAGS_AT: tags,
                VISITED_AT: visited, KEPT_AT: kept, NUM_SLOTS: len(tags),
                COMPUTED_AT_ARRAY: computed_at, NUM_COMPUTED_AT: len(computed_at),
                CHANGED_AT_ARRAY: changed_at, NUM_CHANGED_AT: len(changed_at),
            }  # fmt: skip
        for place, value in values.items():
            if isinstance(value, np.ndarray):
                assert value.flags.c_contiguous
                self._alive.append(value)
                value = value.ctypes.data
            self._frames[k, place] = value
        return rows_below


def _sampler_values(sampler: Sampler) -> dict[int, Any]:
    """The values of a frame that `sample` reads."""
    indptr, records, indices, time, cumweight, weight, fanout, mode = sampler.arrays
    values = {
        RECORDS_AT: records, NUM_RECORDS: len(records), TIME_AT: time, NUM_TIMES: len(time),
        FANOUT: fanout, MODE: mode, KEY: int(sampler.key.astype(np.int64)),
    }  # fmt: skip
    if sampler.packed:
        codes, sums, scale, zero = weight
        return values | {
            INDPTR_AT: indptr[0], LONG_BOUNDS_AT: indptr[1],
            INDICES_AT: indices[0], DATA_AT: indices[1], ID_BITS: indices[2], WEIGHT_AT: codes,
            CUMWEIGHT_AT: sums, SCALE_AT: np.array([scale]), ZERO_CODE: zero,
        }  # fmt: skip
    return values | {
        INDPTR_AT: indptr, NUM_INDPTR: len(indptr),
        INDICES_AT: indices, NUM_EDGES: len(indices), IS_WIDE: indices.itemsize == 8,
        CUMWEIGHT_AT: cumweight, NUM_CUMWEIGHTS: len(cumweight),
        WEIGHT_AT: weight, NUM_WEIGHTS: len(weight),
    }  # fmt: skip
