"""The fused path: small batches of the usual model, with one compiled call between two runtime calls.

A model has a fused path when each level reads one edge type, of bounded fanout, through a stage of own rows
and a plain sum or mean (`StageRunner.pair`): GraphSAGE, GIN, GraphConv. Planning from the seeds down to raw
features is then one call. Going up is one call per level: store the rows that the runtime has computed, and
gather the inputs of its next call. `plan.py` and `execute.py` do the same for every model and every size,
with the same kernels. For one seed their calls cost more than their work (log/).

Arguments would cost as much as calls (0.1 µs for each array), so the kernels read *frames*: an int64 row
of addresses and sizes for each level. Python keeps the arrays behind the addresses alive.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import carray

from hopline.engine.kernels import gather_reduce, intern
from hopline.engine.lap import LapWatch
from hopline.engine.narrow_kernels import Matrix, like_of, matrix_at, parts_of
from hopline.engine.state_cache import _write, read_rows
from hopline.graph.extent import NUM_COLUMNS
from hopline.graph.live.rows import find_late, slots_at
from hopline.kernels.intrinsics import pointer
from hopline.kernels.jit import njit
from hopline.memory.sieve import QUEUE_WORDS
from hopline.runtimes.onnx import CHUNK_ROWS
from hopline.sampling.keyed import NO_CUT, sample
from hopline.types import AnyArray, FloatArray, IdArray

if TYPE_CHECKING:
    from hopline.engine.level import Level

#: Largest number of seeds, and of sampled edges at one level; larger batches use the general path.
_MAX_SEEDS = 256
_MAX_EDGES = 1 << 18

# Columns of a frame. Names that end in _AT are addresses; NUM_ are sizes of arrays.
(
    INDPTR_AT, NUM_INDPTR, RECORDS_AT, NUM_RECORDS, VERSION,
    INDICES_AT, NUM_EDGES, IS_WIDE, TIME_AT, NUM_TIMES, CUMWEIGHT_AT, NUM_CUMWEIGHTS,
    WEIGHT_AT, NUM_WEIGHTS, FANOUT, MODE, KEY,
    OFFSETS_AT, POSITIONS_AT, NEIGHBORS_AT,
    KEYS_AT, VALUES_AT, ROWS_AT, CAPACITY,
    IDS_AT, OUT_AT, MISSING_AT, COMPUTE_AT, STATE_DIM,
    HAS_CACHE, INDEX_AT, NUM_NODES, TAGS_AT, VISITED_AT, KEPT_AT, NUM_SLOTS, FIRST_SLOT, QUEUE_AT, LINKS_AT,
    NUM_OWN_SLOTS, COMPUTED_AT_ARRAY, NUM_COMPUTED_AT, CHANGED_AT_ARRAY, NUM_CHANGED_AT,
    OWN_AT, NUM_OWN, OWN_DIM, OWN_COLUMN, OWN_WIDTH, OWN_PLACE, OWN_HEADS_AT, NUM_OWN_HEADS, OWN_SINCE_AT,
    OWN_PREVIOUS_AT, BASE_HEADS_AT, NUM_BASE_HEADS, BASE_SINCE_AT, BASE_PREVIOUS_AT, OWN_SLOTS_AT,
    BASE_AT, NUM_BASE, BASE_DIM, MEAN, COLUMN, WIDTH, PLACE, INPUT_AT, INPUT_DIM, OUTPUT_AT,
    OWN_SCALE_AT, OWN_OFFSET_AT, BASE_SCALE_AT, BASE_OFFSET_AT,
    NUM_IDS, NUM_COMPUTE,
    DATA_AT, ID_BITS, SCALE_AT, ZERO_CODE, LONG_BOUNDS_AT,
    OWN_READY_AT, BASE_READY_AT,
    NUM_PLACES,
) = range(83)  # fmt: skip


@njit(inline="always")
def _ints(address, count):  # type: ignore[no-untyped-def]
    return carray(pointer(address), (count,), np.int64)


@njit(inline="always")
def _matrix(address, rows, columns):  # type: ignore[no-untyped-def]
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
            (f[INDICES_AT], f[DATA_AT], f[ID_BITS]), time, weights, weights, nodes, f[FANOUT], f[MODE],
            f[VERSION], as_of, np.uint64(f[KEY]), _ints(f[OFFSETS_AT], nodes.shape[0] + 1),
            _ints(f[POSITIONS_AT], edges), _ints(f[NEIGHBORS_AT], edges),
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
            indptr, records, wide, time, cumweight, weight, nodes, f[FANOUT], f[MODE], f[VERSION], as_of,
            key, offsets, positions, neighbors,
        )  # fmt: skip
    indices = carray(pointer(f[INDICES_AT]), (f[NUM_EDGES],), np.int32)
    return sample(
        indptr, records, indices, time, cumweight, weight, nodes, f[FANOUT], f[MODE], f[VERSION], as_of,
        key, offsets, positions, neighbors,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _state_cache(f):  # type: ignore[no-untyped-def]
    """The arrays of the state cache of a level (`StateCache.arrays`); its rows do not expire."""
    total = f[NUM_SLOTS]
    return (
        carray(pointer(f[INDEX_AT]), (f[NUM_NODES],), np.int32),
        _ints(f[TAGS_AT], total),
        carray(pointer(f[VISITED_AT]), (total,), np.uint8),
        _matrix(f[KEPT_AT], total, f[STATE_DIM]),
        carray(pointer(f[KEPT_AT]), (0,), np.float64),
        _ints(f[COMPUTED_AT_ARRAY], f[NUM_COMPUTED_AT]),
        _ints(f[CHANGED_AT_ARRAY], f[NUM_CHANGED_AT]),
    )


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
    index, tags, visited, kept, stamps, computed_at, changed_at = _state_cache(f)
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
def _num_late(slots, since, ready_at):  # type: ignore[no-untyped-def]
    """As `find_late`; 0 where all features exist."""
    if ready_at == 0:
        return 0
    return find_late(slots, since, _ints(ready_at, since.shape[0]), np.empty(slots.shape[0], np.int64))


@njit(nogil=True, cache=True)
def _find_slots(f):  # type: ignore[no-untyped-def]
    """On a live graph, replace the ids whose features the lowest level reads by their row numbers.

    Returns: the number of features that have not been made; see `LiveNodes.ready`.
    """
    n, late = f[NUM_COMPUTE], 0
    compute = _ints(f[COMPUTE_AT], n)
    own = _ints(f[OWN_SLOTS_AT], n)
    if f[NUM_OWN_HEADS]:
        heads = _ints(f[OWN_HEADS_AT], f[NUM_OWN_HEADS])
        since, previous = _ints(f[OWN_SINCE_AT], f[NUM_OWN]), _ints(f[OWN_PREVIOUS_AT], f[NUM_OWN])
        slots_at(heads, since, previous, f[VERSION], compute, own)
        late += _num_late(own, since, f[OWN_READY_AT])
    if f[NUM_BASE_HEADS]:
        total = _ints(f[OFFSETS_AT], n + 1)[n]
        heads = _ints(f[BASE_HEADS_AT], f[NUM_BASE_HEADS])
        since, previous = _ints(f[BASE_SINCE_AT], f[NUM_BASE]), _ints(f[BASE_PREVIOUS_AT], f[NUM_BASE])
        neighbors = _ints(f[NEIGHBORS_AT], total)
        slots_at(heads, since, previous, f[VERSION], neighbors, neighbors)
        late += _num_late(neighbors, since, f[BASE_READY_AT])
    return late


@njit(nogil=True, cache=True)
def _gather(frames, k, a, b, like):  # type: ignore[no-untyped-def]
    """Fill the runtime's input for the rows [a, b) to compute of level k.

    `like` is a number whose type is the storage type of the features; its value is not read.
    """
    f = frames[k]
    n = f[NUM_COMPUTE]
    offsets = _ints(f[OFFSETS_AT], n + 1)
    total = offsets[n]
    target = _matrix(f[INPUT_AT], CHUNK_ROWS, f[INPUT_DIM])
    if k == 0:
        own = matrix_at(like, f[OWN_AT], f[NUM_OWN], f[OWN_DIM], f[OWN_SCALE_AT], f[OWN_OFFSET_AT])
        own_rows = _ints(f[OWN_SLOTS_AT] if f[NUM_OWN_HEADS] else f[COMPUTE_AT], n)
        base = matrix_at(like, f[BASE_AT], f[NUM_BASE], f[BASE_DIM], f[BASE_SCALE_AT], f[BASE_OFFSET_AT])
        rows = _ints(f[NEIGHBORS_AT], total)
        gather_reduce(
            own, own_rows[a:b], f[OWN_COLUMN], f[OWN_WIDTH], f[OWN_PLACE],
            base, rows, offsets[a : b + 1], f[MEAN] != 0, f[COLUMN], f[WIDTH], target, f[PLACE],
        )  # fmt: skip
    else:
        below = frames[k - 1]
        states = _matrix(below[OUT_AT], below[NUM_IDS], below[STATE_DIM])
        everyone = _ints(f[ROWS_AT], n + total)
        gather_reduce(
            states, everyone[a:b], f[OWN_COLUMN], f[OWN_WIDTH], f[OWN_PLACE],
            states, everyone[n:], offsets[a : b + 1], f[MEAN] != 0, f[COLUMN], f[WIDTH], target, f[PLACE],
        )  # fmt: skip


@njit(nogil=True, cache=True)
def _store(f, a, b, use_caches):  # type: ignore[no-untyped-def]
    """Store the runtime's output: the rows [a, b) to compute."""
    n, dim = f[NUM_IDS], f[STATE_DIM]
    computed = _matrix(f[OUTPUT_AT], b - a, dim)
    out = _matrix(f[OUT_AT], n, dim)
    all_of_them = f[NUM_COMPUTE] == n
    missing = _ints(f[MISSING_AT], n)
    for i in range(b - a):
        source = computed[i]
        target = out[a + i if all_of_them else missing[a + i]]
        for c in range(dim):
            target[c] = source[c]
    if use_caches and f[HAS_CACHE]:
        index, tags, visited, kept, stamps, computed_at, changed_at = _state_cache(f)
        compute = _ints(f[COMPUTE_AT], f[NUM_COMPUTE])
        links = carray(pointer(f[LINKS_AT]), (2, f[NUM_OWN_SLOTS]), np.int32)
        queue = _ints(f[QUEUE_AT], QUEUE_WORDS)
        _write(
            index, tags, visited, kept, stamps, computed_at, changed_at, f[VERSION], compute[a:b], computed,
            stamps, f[FIRST_SLOT], queue, links,
        )  # fmt: skip


@njit(nogil=True, cache=True)
def descend(frames, seeds, as_of, use_caches, like, packed):  # type: ignore[no-untyped-def]
    """Plan the batch, and gather for the first call of the runtime.

    Args:
        frames: int64 [levels, NUM_PLACES]; NUM_IDS and NUM_COMPUTE are filled.
        seeds: int64 [n] distinct ids. like: see `_gather`. packed: None, or 1 where edges are compressed.

    Returns: the lowest level that has rows to compute, or the number of levels if no level has any; -1 if
        features have not been made.
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
            lowest = k + 1
            break
        nodes = _ints(f[COMPUTE_AT], n)
        total = _sample(f, nodes, as_of, packed)
        lowest = 0
        if k > 0:
            # Small batches use a small part of the hash, which stays in the CPU cache.
            shift = 58
            while (np.int64(1) << (64 - shift)) < 2 * (n + total):
                shift -= 1
            frames[k - 1, NUM_IDS] = intern(
                nodes,
                _ints(f[NEIGHBORS_AT], total),
                True,
                shift,
                _ints(f[KEYS_AT], f[CAPACITY]),
                carray(pointer(f[VALUES_AT]), (f[CAPACITY],), np.int32),
                _ints(frames[k - 1, IDS_AT], n + total),
                0,
                _ints(f[ROWS_AT], n + total),
            )
    if lowest == 0 and _find_slots(frames[0]):
        return -1
    if lowest <= top:
        _gather(frames, lowest, 0, min(CHUNK_ROWS, frames[lowest, NUM_COMPUTE]), like)
    return lowest


@njit(nogil=True, cache=True)
def climb(frames, k, a, b, use_caches, like):  # type: ignore[no-untyped-def]
    """Store the rows [a, b) of level k, which the runtime has computed; gather for its next call."""
    _store(frames[k], a, b, use_caches)
    if b < frames[k, NUM_COMPUTE]:
        _gather(frames, k, b, min(b + CHUNK_ROWS, frames[k, NUM_COMPUTE]), like)
    elif k + 1 < frames.shape[0]:
        _gather(frames, k + 1, 0, min(CHUNK_ROWS, frames[k + 1, NUM_COMPUTE]), like)


class FusedPath:
    """The levels of a model with a fused path, bottom first.

    Args:
        levels: see the module; `FusedPath.of` selects them.
        features: node type -> [N, d].
        watch: its `sampled` is called when planning is done.

    Attributes:
        max_seeds: the largest batch that uses this path.
        rows_ran: distinct ids of all levels, of the last batch.
    """

    def __init__(
        self, levels: list[Level], features: Mapping[str, Matrix], max_seeds: int, watch: LapWatch
    ) -> None:
        self.max_seeds = max_seeds
        self.rows_ran = 0
        self._watch = watch
        self._clock = levels[-1].links[0][0].sampler.clock
        self._state_caches = [
            (k, level.state_cache) for k, level in enumerate(levels) if level.state_cache is not None
        ]
        self._frames = np.zeros((len(levels), NUM_PLACES), np.int64)
        self._num_ids = self._frames[:, NUM_IDS]
        self._num_compute = self._frames[:, NUM_COMPUTE]
        self._alive: list[AnyArray] = []
        self._like = like_of(features[levels[0].node_type])
        self._packed = 1 if levels[0].links[0][0].sampler.packed else None
        self._outs: list[FloatArray] = []
        self._runs: list[Any] = []
        capacity = max_seeds
        for k in range(len(levels) - 1, -1, -1):
            below = levels[k - 1] if k else None
            capacity = self._fill(k, levels[k], below, capacity, features)
        self._outs.reverse()
        self._runs.reverse()

    @staticmethod
    def of(
        levels: list[dict[str, Level]], node_type: str, features: Mapping[str, Matrix], watch: LapWatch
    ) -> FusedPath | None:
        """The fused path to the last level of `node_type`, or None where the model has none."""
        chain: list[Level] = []
        level: Level | None = levels[-1][node_type]
        max_seeds, edges = _MAX_SEEDS, 1
        while level is not None:
            if not level.is_simple or level.runner is None or level.runner.pair is None:
                return None
            chain.append(level)
            relation, level = level.links[0]
            edges *= relation.sampler.fanout + 1
            max_seeds = min(max_seeds, _MAX_EDGES // edges)
        raw = features[chain[-1].node_type], features[chain[-1].links[0][0].source]
        packed = {level.links[0][0].sampler.packed for level in chain}
        if not max_seeds or len(packed) > 1 or like_of(raw[0]) != like_of(raw[1]):
            return None
        return FusedPath(chain[::-1], features, max_seeds, watch)

    def run(self, ids: IdArray, as_of: int = NO_CUT) -> FloatArray | None:
        """Final states of distinct ids: int64 [n] to float32 [n, d], valid until the next call.

        None if features of a live graph have not been made: the general path makes them.

        With a time cut, state caches are neither read nor filled: their rows are about the present graph.
        """
        frames = self._frames
        use_caches = as_of == NO_CUT
        frames[:, VERSION] = self._clock.version
        lowest = descend(frames, ids, as_of, use_caches, self._like, self._packed)
        if lowest < 0:
            return None
        self._watch.sampled()
        counts = self._num_compute.tolist()
        requested = self._num_ids.tolist()
        self.rows_ran = sum(requested)
        if use_caches:
            for k, cache in self._state_caches:
                cache.num_misses += counts[k]
                cache.num_hits += requested[k] - counts[k]
        top = len(counts) - 1
        num_seeds = ids.shape[0]
        for k in range(lowest, top + 1):
            run, count = self._runs[k], counts[k]
            a = 0
            while a < count:
                b = min(a + CHUNK_ROWS, count)
                out: FloatArray = run(b - a)
                if k == top and b - a == num_seeds and not frames[k, HAS_CACHE]:
                    return out  # no state cache to fill, no cached rows to merge
                climb(frames, k, a, b, use_caches, self._like)
                a = b
        return self._outs[top][:num_seeds]

    def _fill(
        self, k: int, level: Level, below: Level | None, capacity: int, features: Mapping[str, Matrix]
    ) -> int:
        """Fill the frame of a level; returns the rows that the level below must have room for."""
        relation = level.links[0][0]
        sampler = relation.sampler
        runner = level.runner
        assert runner is not None
        assert runner.pair is not None
        assert runner.row_stage is not None
        stage = runner.row_stage
        edges = capacity * sampler.fanout
        rows_below = capacity + edges
        bits = max(6, (2 * rows_below).bit_length())
        indptr, records, indices, time, cumweight, weight, fanout, mode = sampler.arrays
        _, (own_column, own_width, own_place), mean, column, width, place = runner.pair
        own, own_scale, own_offset = parts_of(
            features[level.node_type] if below is None else stage.inputs[0]
        )
        base, base_scale, base_offset = parts_of(
            features[relation.source] if below is None else stage.inputs[0]
        )
        out = np.empty((capacity, level.stage.state_dim), np.float32)
        self._outs.append(out)
        self._runs.append(stage.run)
        values = {
            RECORDS_AT: records, NUM_RECORDS: len(records),
            TIME_AT: time, NUM_TIMES: len(time), FANOUT: fanout, MODE: mode,
            KEY: int(sampler.key.astype(np.int64)),
            OFFSETS_AT: np.empty(capacity + 1, np.int64), POSITIONS_AT: np.empty(max(1, edges), np.int64),
            NEIGHBORS_AT: np.empty(max(1, edges), np.int64),
            KEYS_AT: np.empty(1 << bits, np.int64), VALUES_AT: np.empty(1 << bits, np.int32),
            ROWS_AT: np.empty(rows_below, np.int64), CAPACITY: 1 << bits,
            IDS_AT: np.empty(capacity, np.int64), OUT_AT: out, MISSING_AT: np.empty(capacity, np.int64),
            COMPUTE_AT: np.empty(capacity, np.int64), STATE_DIM: level.stage.state_dim,
            OWN_AT: own, NUM_OWN: own.shape[0], OWN_DIM: own.shape[1], OWN_COLUMN: own_column,
            OWN_WIDTH: own_width, OWN_PLACE: own_place, BASE_AT: base, NUM_BASE: base.shape[0],
            BASE_DIM: base.shape[1], OWN_SCALE_AT: own_scale, OWN_OFFSET_AT: own_offset,
            BASE_SCALE_AT: base_scale, BASE_OFFSET_AT: base_offset, MEAN: mean,
            COLUMN: column, WIDTH: width, PLACE: place,
            INPUT_AT: stage.inputs[0], INPUT_DIM: stage.inputs[0].shape[1], OUTPUT_AT: stage.output,
        }  # fmt: skip
        if sampler.packed:
            codes, sums, scale, zero = weight
            values |= {
                INDPTR_AT: indptr[0], LONG_BOUNDS_AT: indptr[1],
                INDICES_AT: indices[0], DATA_AT: indices[1], ID_BITS: indices[2], WEIGHT_AT: codes,
                CUMWEIGHT_AT: sums, SCALE_AT: np.array([scale]), ZERO_CODE: zero,
            }  # fmt: skip
        else:
            values |= {
                INDPTR_AT: indptr, NUM_INDPTR: len(indptr),
                INDICES_AT: indices, NUM_EDGES: len(indices), IS_WIDE: indices.itemsize == 8,
                CUMWEIGHT_AT: cumweight, NUM_CUMWEIGHTS: len(cumweight),
                WEIGHT_AT: weight, NUM_WEIGHTS: len(weight),
            }  # fmt: skip
        if level.state_cache is not None:
            cache = level.state_cache
            index, tags, visited, kept, _, computed_at, changed_at = cache.arrays
            queue, links = cache.queue_arrays
            values |= {
                HAS_CACHE: 1, INDEX_AT: index, NUM_NODES: len(index), TAGS_AT: tags, VISITED_AT: visited,
                KEPT_AT: kept, NUM_SLOTS: len(tags), FIRST_SLOT: cache.first_slot, QUEUE_AT: queue,
                LINKS_AT: links, NUM_OWN_SLOTS: links.shape[1], COMPUTED_AT_ARRAY: computed_at,
                NUM_COMPUTED_AT: len(computed_at),
                CHANGED_AT_ARRAY: changed_at, NUM_CHANGED_AT: len(changed_at),
            }  # fmt: skip
        if below is None and level.own_slots is not None:
            heads, since, previous = level.own_slots.slot_arrays
            ready = level.own_slots.ready
            values |= {
                OWN_HEADS_AT: heads, NUM_OWN_HEADS: len(heads), OWN_SINCE_AT: since,
                OWN_PREVIOUS_AT: previous, OWN_SLOTS_AT: np.empty(capacity, np.int64),
                OWN_READY_AT: 0 if ready is None else ready,
            }  # fmt: skip
        if below is None and relation.source_slots is not None:
            heads, since, previous = relation.source_slots.slot_arrays
            ready = relation.source_slots.ready
            values |= {
                BASE_HEADS_AT: heads, NUM_BASE_HEADS: len(heads), BASE_SINCE_AT: since,
                BASE_PREVIOUS_AT: previous, BASE_READY_AT: 0 if ready is None else ready,
            }  # fmt: skip
        for at, value in values.items():
            if isinstance(value, np.ndarray):
                assert value.flags.c_contiguous
                self._alive.append(value)
                value = value.ctypes.data
            self._frames[k, at] = value
        return rows_below
