"""The plan of a small batch in one compiled call, for models that read one edge type at each level.

`plan.py` does the same for every model and every size, with the same kernels. For one seed its calls cost
more than their work (log/). Each level must read edges of one type, of bounded fanout, and own rows (if
any) from the level that computes that type's sources.

If each stage reads own rows and a plain sum or mean (`StageRunner.pair`: GraphSAGE, GIN), it also
stands in for `execute.py`: one call between two of the runtime stores rows and fills the next input.

Arguments would cost as much as calls (0.1 µs for each array), so the kernels read *frames*: an int64 row
of addresses and sizes for each level. Python keeps the arrays behind the addresses alive.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numba import carray

from hopline.engine.guard import Guard
from hopline.engine.kernels import gather_reduce, intern
from hopline.engine.lap import LapWatch
from hopline.engine.level_plan import LevelPlan
from hopline.engine.narrow_kernels import Matrix
from hopline.engine.plan import SOME_EDGES, Plan
from hopline.engine.state_cache import read_rows
from hopline.graph.extent import NUM_COLUMNS
from hopline.kernels.intrinsics import pointer
from hopline.kernels.jit import njit
from hopline.sampling import Block, BlockBuffers, Sampler
from hopline.sampling.keyed import ALWAYS, NO_CUT, sample
from hopline.types import AnyArray, FloatArray, IdArray

if TYPE_CHECKING:
    from hopline.engine.level import Level
    from hopline.graph.live.view import Histories

#: Node type -> rows, and node type -> history whose places these have.
_Rows: TypeAlias = "tuple[dict[str, Matrix], Histories]"
#: Largest number of seeds.
_MAX_SEEDS = 256

# Places in a frame. At a place is a number, or an array: its address, and behind it its length.
(
    INDPTR, LONG_BOUNDS, RECORDS, INDICES, DATA, ID_BITS, IS_WIDE, TIME, CUMWEIGHT, WEIGHT, SCALE,
    ZERO_CODE, FANOUT, MODE, KEY, VERSION, OFFSETS, POSITIONS, NEIGHBORS, KEYS, VALUES, ROWS, IDS, OUT,
    MISSING, COMPUTE, STATE_DIM, READS_OWN, INDEX, TAGS, VISITED, KEPT, STAMPS, COMPUTED_AT, CHANGED_AT,
    OWN_ROWS, OWN_COLUMN, OWN_WIDTH, OWN_INPUT, OWN_PLACE, MEAN, COLUMN, WIDTH, INPUT, PLACE, OWN_DIM,
    INPUT_DIM, OUTPUT, NUM_IDS, NUM_COMPUTE, NUM_SAMPLED, END,
) = range(0, 104, 2)  # fmt: skip


@njit(inline="always")
def _ints(f, place):  # type: ignore[no-untyped-def]
    """The int64 array at a place of frame `f`."""
    return carray(pointer(f[place]), (f[place + 1],), np.int64)


@njit(inline="always")
def _matrix(f, place, columns):  # type: ignore[no-untyped-def]
    """The float32 [n, columns] at a place of frame `f`."""
    return carray(pointer(f[place]), (f[place + 1], columns), np.float32)


@njit(nogil=True, cache=True)
def _sample(f, nodes, as_of, packed):  # type: ignore[no-untyped-def]
    """`sample` the in-neighbours of int64 [n] nodes with the arrays of frame `f`; returns the edges."""
    records = carray(pointer(f[RECORDS]), (f[RECORDS + 1], NUM_COLUMNS), np.int64)
    time = _ints(f, TIME)
    how = nodes, f[FANOUT], f[MODE], f[VERSION], as_of, ALWAYS, np.uint64(f[KEY])
    found = _ints(f, OFFSETS), _ints(f, POSITIONS), _ints(f, NEIGHBORS)
    if packed is not None:  # decided at compile time: neither variant contains the other's code
        scale = carray(pointer(f[SCALE]), (1,), np.float64)[0]
        weights = f[WEIGHT], f[CUMWEIGHT], scale, f[ZERO_CODE]
        lists, codes = (f[INDPTR], f[LONG_BOUNDS]), (f[INDICES], f[DATA], f[ID_BITS])
        return sample(lists, records, codes, time, weights, weights, *how, *found)
    indptr = _ints(f, INDPTR)
    cumweight = carray(pointer(f[CUMWEIGHT]), (f[CUMWEIGHT + 1],), np.float64)
    weight = carray(pointer(f[WEIGHT]), (f[WEIGHT + 1],), np.float32)
    if f[IS_WIDE]:
        return sample(indptr, records, _ints(f, INDICES), time, cumweight, weight, *how, *found)
    indices = carray(pointer(f[INDICES]), (f[INDICES + 1],), np.int32)
    return sample(indptr, records, indices, time, cumweight, weight, *how, *found)


@njit(nogil=True, cache=True)
def _look_up(f, use_caches):  # type: ignore[no-untyped-def]
    """Fill the rows that the state cache has; list the ids to compute."""
    n = f[NUM_IDS]
    ids, compute = _ints(f, IDS)[:n], _ints(f, COMPUTE)
    if not (use_caches and f[TAGS]):
        f[NUM_COMPUTE] = n
        for i in range(n):
            compute[i] = ids[i]
        return
    index = carray(pointer(f[INDEX]), (f[INDEX + 1],), np.int32)
    visited = carray(pointer(f[VISITED]), (f[VISITED + 1],), np.uint8)
    stamps = carray(pointer(f[STAMPS]), (0,), np.float64)  # its rows do not expire
    rows, out, missing = _matrix(f, KEPT, f[STATE_DIM]), _matrix(f, OUT, f[STATE_DIM]), _ints(f, MISSING)
    kept = index, _ints(f, TAGS), visited, rows, stamps, _ints(f, COMPUTED_AT), _ints(f, CHANGED_AT)
    f[NUM_COMPUTE] = absent = read_rows(*kept, f[VERSION], 0.0, ids, out, stamps, missing)
    for i in range(absent):
        compute[i] = ids[missing[i]]


@njit(nogil=True, cache=True)
def plan_levels(frames, seeds, as_of, use_caches, packed):  # type: ignore[no-untyped-def]
    """Find the rows to compute of each level, sample their edges, and number the rows that they read.

    Args:
        frames: int64 [levels, END]; NUM_IDS, NUM_COMPUTE and NUM_SAMPLED are filled.
        seeds: int64 [n] distinct ids. packed: None, or 1 where edges are compressed.
    """
    top = frames.shape[0] - 1
    ids = _ints(frames[top], IDS)
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
        nodes = _ints(f, COMPUTE)[:n]
        f[NUM_SAMPLED] = total = _sample(f, nodes, as_of, packed) if f[RECORDS] else 0
        if k > 0:
            # Small batches use a small part of the hash, which stays in the CPU cache.
            shift = 58
            while (np.int64(1) << (64 - shift)) < 2 * (n + total):
                shift -= 1
            own = nodes[: n if f[READS_OWN] else 0]
            values = carray(pointer(f[VALUES]), (f[VALUES + 1],), np.int32)
            table = _ints(f, KEYS), values, _ints(frames[k - 1], IDS), 0, _ints(f, ROWS)
            frames[k - 1, NUM_IDS] = intern(own, _ints(f, NEIGHBORS)[:total], True, shift, *table)


@njit(nogil=True, cache=True)
def fill_input(frames, k, a, own, base):  # type: ignore[no-untyped-def]
    """Fill the runtime's input for the rows to compute of level k from `a` on.

    Args:
        own, base: `Matrix`, features of the nodes of the lowest level and of their neighbours.
    """
    f = frames[k]
    n = f[NUM_COMPUTE]
    b = min(a + f[INPUT + 1], n)
    own_part = f[OWN_COLUMN], f[OWN_WIDTH], _matrix(f, OWN_INPUT, f[OWN_DIM]), f[OWN_PLACE]
    part = f[MEAN] != 0, f[COLUMN], f[WIDTH], _matrix(f, INPUT, f[INPUT_DIM]), f[PLACE]
    own_rows, offsets = _ints(f, OWN_ROWS)[a:b], _ints(f, OFFSETS)[a : b + 1]
    if k == 0:
        gather_reduce(own, own_rows, *own_part, base, _ints(f, NEIGHBORS), offsets, *part)
    else:
        states = _matrix(frames[k - 1], OUT, frames[k - 1, STATE_DIM])
        gather_reduce(states, own_rows, *own_part, states, _ints(f, ROWS)[n:], offsets, *part)


@njit(nogil=True, cache=True)
def descend(frames, seeds, as_of, use_caches, packed, own, base):  # type: ignore[no-untyped-def]
    """`plan_levels`, and `fill_input` for the runtime's first call."""
    plan_levels(frames, seeds, as_of, use_caches, packed)
    for k in range(frames.shape[0]):
        if frames[k, NUM_COMPUTE]:
            fill_input(frames, k, 0, own, base)
            return


@njit(nogil=True, cache=True)
def climb(frames, k, a, own, base):  # type: ignore[no-untyped-def]
    """Store what the runtime has computed for the input of `fill_input`, and fill its next input."""
    f = frames[k]
    n, d = f[NUM_COMPUTE], f[STATE_DIM]
    b = min(a + f[INPUT + 1], n)
    computed, out, missing = _matrix(f, OUTPUT, d), _matrix(f, OUT, d), _ints(f, MISSING)
    for i in range(b - a):
        source = computed[i]
        target = out[a + i if n == f[NUM_IDS] else missing[a + i]]
        for c in range(d):
            target[c] = source[c]
    if b < n:
        fill_input(frames, k, b, own, base)
    elif k + 1 < frames.shape[0]:
        fill_input(frames, k + 1, 0, own, base)


def chain_to(level: Level) -> list[Level] | None:
    """The levels that a level is computed from, bottom first; None where they have no fused plan."""
    chain: list[Level] = []
    above: Level | None = level
    while above is not None:
        is_lowest = not above.links and above.own_below is None
        has_window = any(relation.sampler.window is not None for relation, _ in above.links)
        if above.runner is None or has_window or not (above.is_simple or is_lowest):
            return None
        chain.append(above)
        above = above.links[0][1] if above.links else None
    packed = {relation.sampler.packed for each in chain for relation, _ in each.links}
    return chain[::-1] if len(packed) == 1 else None


class FusedPlan:
    """Plans the levels of a chain, and executes the plan where each stage has a `pair`.

    Args:
        chain: bottom first, from `chain_to`.
        now, then: what `execute` reads, without and with a time cut.

    Attributes:
        max_seeds: the largest batch that it plans: no level has so many edges that the guard looks at them.
        executes: True if there is `run`.
    """

    def __init__(self, chain: list[Level], now: _Rows, then: _Rows) -> None:
        self._chain, self._past = chain, then[1]
        self._row_stages = [
            level.runner.row_stage
            for level in chain
            if level.runner and level.runner.row_stage and level.runner.pair
        ]
        self.executes = len(self._row_stages) == len(chain)
        if self.executes:
            types = chain[0].node_type, chain[0].links[0][0].source
            self._raw, self._raw_then = ([rows[name] for name in types] for rows, _ in (now, then))
            self._has_past = not self._past.keys().isdisjoint(types)
        edges, self.max_seeds = 1, _MAX_SEEDS
        for level in chain[::-1]:
            edges *= level.links[0][0].sampler.fanout + 1 if level.links else 1
            self.max_seeds = min(self.max_seeds, SOME_EDGES // edges)
        sampler = chain[-1].links[0][0].sampler
        self._clock, self._packed = sampler.clock, 1 if sampler.packed else None
        self._frames = np.zeros((len(chain), END), np.int64)
        self._counts = self._frames[:, NUM_IDS:END:2]
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
        plan = Plan([], as_of, guard)
        frames, use_caches = self._frames, as_of == NO_CUT
        frames[:, VERSION] = self._clock.version
        plan_levels(frames, ids, as_of, use_caches, self._packed)
        counts = self._count(use_caches, guard)
        for k in range(len(counts) - 1, -1, -1):
            num_ids, num_compute, num_edges = counts[k]
            if not num_ids:
                break
            level, (found, missing, compute, rows, buffers) = self._chain[k], self._arrays[k]
            need = LevelPlan(
                level,
                found[:num_ids],
                self._outs[k][:num_ids],
                missing[:num_compute] if num_compute < num_ids else None,
                compute[:num_compute],
            )
            if num_compute and level.links:
                block = Block(buffers, num_compute, num_edges)
                need.blocks.append(block)
                own = num_compute if level.own_below is not None else 0
                if own:
                    need.own_rows = rows[:own]
                need.rows.append(rows[own : own + num_edges] if k else block.neighbors)
            plan.needs.append([need])
        return plan

    def run(self, ids: IdArray, as_of: int, guard: Guard, watch: LapWatch) -> FloatArray:
        """Final states of ids as for `make`: float32 [n, d], valid until the next call.

        Raises: any error that the guard raises before a call of the runtime.
        """
        frames, use_caches = self._frames, as_of == NO_CUT
        own, base = self._raw if use_caches else self._raw_then
        frames[:, VERSION] = self._clock.version
        has_slots = self._chain[0].own_slots is not None or (self._has_past and not use_caches)
        if has_slots:
            plan_levels(frames, ids, as_of, use_caches, self._packed)
        else:
            descend(frames, ids, as_of, use_caches, self._packed, own, base)
        counts = self._count(use_caches, guard)
        watch.sampled()
        if has_slots:
            self._find_slots(counts[0], as_of)
            lowest = next((k for k, (_, num_compute, _) in enumerate(counts) if num_compute), -1)
            if lowest >= 0:
                fill_input(frames, lowest, 0, own, base)
        top, num_seeds = len(counts) - 1, ids.shape[0]
        for k, (_, num_compute, _) in enumerate(counts):
            stage, cache = self._row_stages[k], self._chain[k].state_cache if use_caches else None
            for a in range(0, num_compute, stage.chunk_rows):
                if guard.rows > guard.few_rows:
                    guard.look()
                b = min(a + stage.chunk_rows, num_compute)
                out = stage.run(b - a)
                if cache is not None:
                    cache.write(self._arrays[k][2][a:b], out)
                elif k == top and b - a == num_seeds:
                    return out  # nothing to merge
                climb(frames, k, a, own, base)
        return self._outs[top][:num_seeds]

    def _count(self, use_caches: bool, guard: Guard) -> list[list[int]]:
        """Report the rows of the present plan; returns (ids, computed ids, edges) of each level."""
        guard.num_bytes = 0
        counts: list[list[int]] = self._counts.tolist()
        for level, (num_ids, num_compute, num_edges) in zip(self._chain, counts, strict=True):
            if use_caches and level.state_cache is not None:
                level.state_cache.num_misses += num_compute
                level.state_cache.num_hits += num_ids - num_compute
            if num_compute:
                guard.rows += num_compute + num_edges
        return counts

    def _find_slots(self, counts: list[int], as_of: int) -> None:
        """Look up the rows of features that the lowest level reads, of a live graph or of a history."""
        level, (_, _, compute, rows, buffers) = self._chain[0], self._arrays[0]
        past = self._past if as_of != NO_CUT else {}
        relation, own, neighbors = level.links[0][0], compute[: counts[1]], buffers.neighbors[: counts[2]]
        found = own if level.own_slots is None else rows[: counts[1]]
        for name, nodes, ids, out in (
            (level.node_type, level.own_slots, own, found),
            (relation.source, relation.source_slots, neighbors, neighbors),
        ):
            if name in past:
                out[:] = past[name].rows(ids, as_of)
            elif nodes is not None:
                out[:] = nodes.slots(ids)

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
        keys, numbers = np.empty(1 << bits, np.int64), np.empty(1 << bits, np.int32)
        values: dict[int, Any] = {
            OFFSETS: buffers.offsets, POSITIONS: buffers.positions, NEIGHBORS: buffers.neighbors,
            KEYS: keys, VALUES: numbers, ROWS: rows, IDS: ids, OUT: out, MISSING: missing, COMPUTE: compute,
            STATE_DIM: level.stage.state_dim, READS_OWN: level.own_below is not None,
        }  # fmt: skip
        if level.links:
            values |= _sampler_values(level.links[0][0].sampler)
        if self.executes:
            values |= _input_values(level)
            values |= {OWN_ROWS: rows if k or level.own_slots else compute}
        if level.state_cache is not None:
            values |= zip(range(INDEX, OWN_ROWS, 2), level.state_cache.arrays, strict=True)
        for place, value in values.items():
            if isinstance(value, np.ndarray):
                assert value.flags.c_contiguous
                self._alive.append(value)
                self._frames[k, place : place + 2] = value.ctypes.data, len(value)
            else:
                self._frames[k, place] = value
        return rows_below


def _input_values(level: Level) -> dict[int, Any]:
    """The values of a frame that `fill_input` and `climb` read."""
    assert level.runner is not None
    assert level.runner.pair is not None
    assert level.runner.row_stage is not None
    _, own_part, part = level.runner.pair
    values = *own_part, *part, own_part[2].shape[1], part[3].shape[1], level.runner.row_stage.output
    return dict(zip(range(OWN_COLUMN, NUM_IDS, 2), values, strict=True))


def _sampler_values(sampler: Sampler) -> dict[int, Any]:
    """The values of a frame that `sample` reads."""
    places = INDPTR, RECORDS, INDICES, TIME, CUMWEIGHT, WEIGHT, FANOUT, MODE
    values = dict(zip(places, sampler.arrays, strict=True)) | {KEY: int(sampler.key.astype(np.int64))}
    if not sampler.packed:
        return values | {IS_WIDE: values[INDICES].itemsize == 8}
    codes, sums, scale, zero = values[WEIGHT]
    parts = *values[INDPTR], *values[INDICES], codes, sums, np.array([scale]), zero
    inner = INDPTR, LONG_BOUNDS, INDICES, DATA, ID_BITS, WEIGHT, CUMWEIGHT, SCALE, ZERO_CODE
    return values | dict(zip(inner, parts, strict=True))
