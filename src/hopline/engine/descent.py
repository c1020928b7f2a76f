"""One step of a plan in one compiled call, for levels that read one edge type.

Samples neighbours, numbers what that reads one level below and looks it up in that level's table,
with the very kernels that the general step calls one by one. For a single request the calls, not the
work, are what costs (docs/log.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hopline.engine.kernels import intern
from hopline.engine.need import Need
from hopline.engine.table import read_rows
from hopline.kernels.jit import njit
from hopline.sampling import Block
from hopline.sampling.keyed import KEPT_ROWS, NO_CUT, roomy, sample
from hopline.types import FloatArray, IdArray

if TYPE_CHECKING:
    from hopline.engine.level import Level, Relation


@njit(nogil=True, cache=True)
def descend(  # type: ignore[no-untyped-def]
    nodes,
    indptr,
    records,
    indices,
    time,
    cumweight,
    weight,
    fanout,
    mode,
    version,
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
    use_table,
    index,
    tags,
    visited,
    kept,
    stamps,
    marks,
    out,
    missing,
    compute,
):
    """`sample`, `intern` and `read_rows` in a row; arguments as there.

    Args:
        nodes: int64 [n], whose neighbours to sample.
        numbered: number own ids and neighbours.
        use_table: look the numbered ids up; `index` to `out` are of the level below.
        compute: int64 [>= distinct ids], filled with the ids that are not kept.

    Returns: (sampled edges, distinct ids, distinct ids that are not kept).
    """
    total = sample(
        indptr,
        records,
        indices,
        time,
        cumweight,
        weight,
        nodes,
        fanout,
        mode,
        version,
        as_of,
        key,
        offsets,
        positions,
        neighbors,
    )
    if not numbered:
        return total, 0, 0
    count = intern(nodes, neighbors[:total], True, shift, keys, values, distinct, 0, rows)
    if not use_table:
        return total, count, count
    ids = distinct[:count]
    absent = read_rows(index, tags, visited, kept, stamps, marks, version, ids, out, missing)
    if absent < count:
        for i in range(absent):
            compute[i] = ids[missing[i]]
    return total, count, absent


_NO_IDS: IdArray = np.empty(0, np.int64)
_NO_ROWS: FloatArray = np.empty((0, 0), np.float32)
_NO_TABLE: tuple[Any, ...] = (
    np.empty(0, np.int32), _NO_IDS, np.empty(0, np.uint8), _NO_ROWS, _NO_IDS, _NO_IDS,
)  # fmt: skip
_NO_INTERNER: tuple[Any, ...] = (0, _NO_IDS, np.empty(0, np.int32), _NO_IDS, _NO_IDS)


class Descent:
    """The compiled step from one level to the one below.

    Args:
        relation: the level's only one, of a bounded fanout.
        below: where own rows and neighbours both come from; None where they are raw features.

    Attributes:
        fanout, below: of the relation; see above.
    """

    def __init__(self, relation: Relation, below: Level | None) -> None:
        self._relation = relation
        self.below = below
        self._sampler = relation.sampler.arrays
        self.fanout = relation.sampler.fanout
        self._clock = relation.sampler.clock
        self._table = _NO_TABLE if below is None or below.table is None else below.table.arrays
        self._has_table = below is not None and below.table is not None
        self._missing = np.empty(64, np.int64)
        self._compute = np.empty(64, np.int64)

    @staticmethod
    def suits(level: Level) -> bool:
        """Whether a level can be planned like this."""
        if len(level.links) != 1 or level.links[0][0].sampler.fanout < 0:
            return False
        return not level.reads_self or level.links[0][1] is level.own_below

    def shrink(self) -> None:
        """Give back what only the largest batches need."""
        if self._missing.shape[0] > KEPT_ROWS:
            self._missing = np.empty(64, np.int64)
            self._compute = np.empty(64, np.int64)

    def run(self, need: Need, as_of: int) -> tuple[Need | None, int]:
        """Sample for `need` (with rows to compute) and say what that reads.

        Returns: (the need one level below, or None where that is raw; sampled edges).
        """
        below, buffers = self.below, self._relation.buffers
        nodes = need.compute
        n = nodes.shape[0]
        num_edges = n * self.fanout
        if n >= buffers.offsets.shape[0] or num_edges > buffers.neighbors.shape[0]:
            buffers.reserve(n, num_edges)
        interner, out, use_table = _NO_INTERNER, _NO_ROWS, False
        if below is not None:
            bound = n + num_edges
            interner = below.interner.start(bound)
            use_table = self._has_table and as_of == NO_CUT
            if use_table:
                out = below.out(bound)
                if bound > self._missing.shape[0]:
                    self._missing = np.empty(roomy(bound), np.int64)
                    self._compute = np.empty(roomy(bound), np.int64)
        total, count, absent = descend(
            nodes,
            *self._sampler,
            self._clock.version,
            as_of,
            self._relation.sampler.key,
            buffers.offsets,
            buffers.positions,
            buffers.neighbors,
            below is not None,
            *interner,
            use_table,
            *self._table,
            out,
            self._missing,
            self._compute,
        )
        need.blocks.append(Block(buffers, n, total))
        if below is None:
            need.rows.append(buffers.neighbors)
            return None, total
        rows = interner[4]
        need.own_rows = rows
        need.rows.append(rows[n:])
        ids = interner[3][:count]
        if use_table:
            assert below.table is not None
            below.table.num_misses += absent
            below.table.num_hits += count - absent
            if absent < count:
                missing, compute = self._missing[:absent], self._compute[:absent]
                return Need(below, ids, out[:count], missing, compute), total
        return Need(below, ids, _NO_ROWS, None, ids), total
