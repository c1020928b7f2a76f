"""One step of a plan in one compiled call, for levels that read one edge type.

Looks rows up, samples neighbours of those that are missing and numbers what they read, with the very
kernels that the general step calls one by one. For a single request the calls, not the work, are what
costs: 3 calls of 3 to 6 µs against one of 5 (docs/log.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit

from hopline.engine.kernels import intern
from hopline.engine.need import Need
from hopline.engine.table import read_rows
from hopline.sampling.keyed import NO_CUT, Block, sample
from hopline.types import FloatArray, IdArray

if TYPE_CHECKING:
    from hopline.engine.level import Level, Relation


@njit(nogil=True, cache=True)
def descend(  # type: ignore[no-untyped-def]
    index,
    tags,
    visited,
    kept,
    use_table,
    ids,
    out,
    missing,
    compute,
    indptr,
    indices,
    time,
    cumweight,
    weight,
    fanout,
    mode,
    as_of,
    key,
    offsets,
    positions,
    neighbors,
    numbered,
    shift,
    keys,
    values,
    distinct,
    rows,
):
    """`read_rows`, `sample` and `intern` in a row; arguments as there.

    Args:
        use_table: look up at all.
        compute: int64 [>= n], filled with the missing ids where some rows are kept.
        numbered: number own ids and neighbours.

    Returns: (missing rows, sampled edges, distinct ids).
    """
    absent = ids.shape[0]
    wanted = ids
    if use_table:
        absent = read_rows(index, tags, visited, kept, ids, out, missing)
        if absent == 0:
            return 0, 0, 0
        if absent < ids.shape[0]:
            for i in range(absent):
                compute[i] = ids[missing[i]]
            wanted = compute[:absent]
    total = sample(
        indptr,
        indices,
        time,
        cumweight,
        weight,
        wanted,
        fanout,
        mode,
        as_of,
        key,
        offsets,
        positions,
        neighbors,
    )
    count = 0
    if numbered:
        count = intern(wanted, neighbors[:total], True, shift, keys, values, distinct, 0, rows)
    return absent, total, count


_NO_ROWS: FloatArray = np.empty((0, 0), np.float32)
_NO_TABLE: tuple[Any, ...] = (
    np.empty(0, np.int32),
    np.empty(0, np.int64),
    np.empty(0, np.uint8),
    _NO_ROWS,
)


class Descent:
    """The compiled step of one level.

    Args:
        level: with one link, of a bounded fanout; its own rows and its neighbours' come from the same
            level below, or both are raw.
    """

    def __init__(self, level: Level, relation: Relation, below: Level | None) -> None:
        self._level = level
        self._relation = relation
        self.below = below
        self._table = _NO_TABLE if level.table is None else level.table.arrays
        self._has_table = level.table is not None
        self._sampler = relation.sampler.arrays
        self._missing = np.empty(64, np.int64)
        self._compute = np.empty(64, np.int64)

    @staticmethod
    def suits(level: Level) -> bool:
        """Whether a level can be planned like this."""
        if len(level.links) != 1 or level.links[0][0].sampler.fanout < 0:
            return False
        return not level.reads_self or level.links[0][1] is level.own_below

    def run(self, ids: IdArray, as_of: int) -> tuple[Need, int, int]:
        """Plan `ids` (int64 [n], distinct).

        Returns: (the need, rows to compute, sampled edges); the level below holds the numbered ids.
        """
        level, relation, below = self._level, self._relation, self.below
        sampler, buffers = relation.sampler, relation.buffers
        n = ids.shape[0]
        num_edges = n * sampler.fanout
        if n >= buffers.offsets.shape[0] or num_edges > buffers.neighbors.shape[0]:
            buffers.reserve(n, num_edges)
        if n > self._missing.shape[0]:
            self._missing = np.empty(2 * n, np.int64)
            self._compute = np.empty(2 * n, np.int64)
        use_table = self._has_table and as_of == NO_CUT
        out = level.out(n) if use_table else _NO_ROWS
        interner = _NO_INTERNER if below is None else below.interner.start(n + num_edges)
        absent, total, count = descend(
            *self._table,
            use_table,
            ids,
            out,
            self._missing,
            self._compute,
            *self._sampler,
            as_of,
            sampler.key,
            buffers.offsets,
            buffers.positions,
            buffers.neighbors,
            below is not None,
            *interner,
        )
        if use_table:
            assert level.table is not None
            level.table.num_misses += absent
            level.table.num_hits += n - absent
        if absent == n:
            need = Need(level, ids, out, None, ids)
        else:
            need = Need(level, ids, out, self._missing[:absent], self._compute[:absent])
            if absent == 0:
                return need, 0, 0
        need.blocks.append(Block(buffers, absent, total))
        if below is None:
            need.rows.append(buffers.neighbors)
        else:
            below.interner.set_count(count)
            rows = interner[4]
            need.own_rows = rows
            need.rows.append(rows[absent:])
        return need, absent, total


_NO_INTERNER: tuple[Any, ...] = (
    0,
    np.empty(0, np.int64),
    np.empty(0, np.int32),
    np.empty(0, np.int64),
    np.empty(0, np.int64),
)
