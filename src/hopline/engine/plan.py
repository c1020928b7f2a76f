"""Rows that a batch must compute: from the requested states down to raw features.

Level by level from the top, for each node type: look the wanted rows up in the state cache, and sample
neighbours for the rows that are not cached. The union of their ids and their neighbours' ids, each once,
is wanted one level below. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hopline.engine.fallbacks import MEAN_FEATURES, SMALLER_FANOUT, STALE_FEATURES
from hopline.engine.guard import EDGE_BYTES, Guard
from hopline.engine.level import Level, Relation
from hopline.engine.level_plan import LevelPlan, RawRead
from hopline.engine.source import FetchedEdgesByType, FetchedRowsByType, RowsAbsent
from hopline.engine.state_cache import NO_STAMPS
from hopline.graph.store_columns import StoreIds
from hopline.kernels.jit import njit
from hopline.sampling import Block
from hopline.sampling.keyed import NO_CUT
from hopline.types import IdArray

_NO_IDS: IdArray = np.empty(0, np.int64)
#: Fewer edges than this are sampled in less than a millisecond: the guard is not called for them.
SOME_EDGES = 1 << 12


@dataclass(slots=True)
class Plan:
    """All needs of a batch, with the time cut that they hold for.

    Attributes:
        needs: for each level from the top down, the needs of its node types.
        guard: called before each step.
        reads: raw rows that come from sources; see `complete`.
        fetched_edges: edges that were fetched from a graph store for this batch.
        since: rows with this stamp or an older one have expired; -inf where rows do not age.
        seed_time: the time that stages read: that of the cut, or the graph's latest time.
    """

    needs: list[list[LevelPlan]]
    as_of: int
    guard: Guard
    since: float = -np.inf
    reads: list[RawRead] = field(default_factory=list)
    fetched_edges: FetchedEdgesByType = field(default_factory=dict)
    seed_time: int = 0


def make_plan(
    levels: list[dict[str, Level]],
    top: int,
    wanted: Mapping[str, IdArray],
    as_of: int = NO_CUT,
    guard: Guard | None = None,
    fetched_edges: FetchedEdgesByType | None = None,
    since: float = -np.inf,
) -> Plan:
    """Plan the states of `wanted` (node type -> int64 [n] distinct ids) at level `top`.

    A plan with a time cut neither reads nor fills state caches: their rows are about the present graph.

    Raises: any error that `guard` raises before the next step; RowsAbsent: edges of the next hop lie in a
        graph store and are not in `fetched_edges`.
    """
    if guard is None:
        guard = Guard()
    guard.num_bytes = 0
    plan = Plan([], as_of, guard, since, fetched_edges=fetched_edges or {})
    stages = levels[top]
    needs = [_look_up(plan, stages[node_type], ids) for node_type, ids in wanted.items()]
    needs = [need for need in needs if need.level.runner is not None or need.level.source is not None]
    while needs:
        plan.needs.append(needs)
        for need in needs:
            if need.level.port is not None and need.compute.shape[0]:
                _read_raw(plan, need)
        needs = [_look_up(plan, level, ids) for level, ids in _descend(plan, needs)]
    return plan


def _reserve(plan: Plan, num_rows: int, num_edges: int, below: Level | None) -> None:
    """Check that a step may sample so many edges, and hold the rows that they need one level below."""
    plan.guard.look_at(num_edges)
    num_bytes = EDGE_BYTES * num_edges
    if below is not None:
        num_bytes += below.bytes_of(num_rows + num_edges)
    plan.guard.reserve(num_bytes, num_edges)


def _look_up(plan: Plan, level: Level, ids: IdArray) -> LevelPlan:
    out = level.out(ids.shape[0])
    if level.source is not None:
        read = RawRead(level, level.source, ids, out)
        plan.reads.append(read)
        return LevelPlan(level, ids, out, None, _NO_IDS, read.stamps)
    stamps = level.stamps_out(ids.shape[0]) if plan.since > -np.inf else NO_STAMPS
    if level.state_cache is None or plan.as_of != NO_CUT:
        return LevelPlan(level, ids, out, None, ids, stamps)
    missing = level.state_cache.read(ids, out, plan.since, stamps)
    if missing.shape[0] == ids.shape[0]:
        return LevelPlan(level, ids, out, None, ids, stamps)
    return LevelPlan(level, ids, out, missing, ids[missing], stamps)


def _read_raw(plan: Plan, need: LevelPlan) -> None:
    """Read the raw rows for the `features` input of the nodes that a level computes."""
    level = need.level
    assert level.port is not None
    need.raw = RawRead(level, level.port, need.compute, level.raw(need.compute.shape[0]))
    plan.reads.append(need.raw)


def _descend(plan: Plan, needs: list[LevelPlan]) -> list[tuple[Level, IdArray]]:
    """Sample the edges of the needs, and number the rows that they need one level below."""
    touched: list[Level] = []
    absent: dict[str, list[IdArray]] = {}
    guard = plan.guard
    if guard.rows > guard.few_rows:
        guard.look()
    for need in needs:
        num_rows = need.compute.shape[0]
        if num_rows == 0:
            continue
        guard.rows += num_rows
        level = need.level
        if level.own_below is not None:
            _expect(level.own_below, num_rows, touched)
        for relation, below in level.links:
            bound = relation.sampler.bound(need.compute)
            if bound >= SOME_EDGES:
                _reserve(plan, num_rows, bound, below)
            block = relation.sampler.sample(need.compute, relation.buffers, plan.as_of, bound)
            need.blocks.append(block)
            if relation.sampler.is_stored:
                lost = _read_edges(plan, relation, block)
                if lost.shape[0]:
                    absent.setdefault(relation.key, []).append(lost)
            num_edges = block.num_edges
            guard.rows += num_edges
            if below is not None:
                _expect(below, num_edges, touched)
    if absent:
        edges = {key: np.unique(np.concatenate(parts)) for key, parts in absent.items()}
        raise RowsAbsent({}, edges)
    for below in touched:
        below.interner.start(below.num_pending)
    for need in needs:
        if need.compute.shape[0]:
            _number(need)
    return [(below, below.interner.distinct) for below in touched]


def _read_edges(plan: Plan, relation: Relation, block: Block) -> IdArray:
    """Fill a block whose edges lie in a graph store; returns the positions that are still absent."""
    indices = relation.adjacency.indices
    assert isinstance(indices, StoreIds)
    positions = block.positions
    block.columns = columns = relation.new_columns(block.num_edges)
    out = {"indices": block.neighbors, **columns}
    rows = indices.read(positions, out)
    for fetched in plan.fetched_edges.get(relation.key, ()):
        rows = fetched.take(positions, rows, out)
    lost: IdArray = positions[rows]
    return lost


def _expect(below: Level, num_ids: int, touched: list[Level]) -> None:
    if below not in touched:
        touched.append(below)
        below.num_pending = 0
    below.num_pending += num_ids


def _number(need: LevelPlan) -> None:
    level = need.level
    own = level.own_below
    compute = need.compute
    if own is not None and len(level.links) == 1 and level.links[0][1] is own:
        # The usual case in one call: own rows and neighbours are of one type.
        rows = own.interner.add(compute, need.blocks[0].neighbors)
        num_rows = compute.shape[0]
        need.own_rows = rows[:num_rows]
        need.rows.append(rows[num_rows:])
        return
    if own is not None:
        need.own_rows = own.interner.add(compute)
    for (_, below), block in zip(level.links, need.blocks, strict=True):
        need.rows.append(block.neighbors if below is None else below.interner.add(block.neighbors))


def complete(plan: Plan, fetched_rows: FetchedRowsByType) -> dict[str, IdArray]:
    """Fill in fetched rows; returns node type -> int64 ids that are still absent (distinct, sorted)."""
    absent: dict[str, list[IdArray]] = {}
    for read in plan.reads:
        read.take(fetched_rows.get(read.reader.node_type, ()))
        if read.missing.shape[0]:
            absent.setdefault(read.reader.node_type, []).append(read.ids[read.missing])
    return {node_type: np.unique(np.concatenate(ids)) for node_type, ids in absent.items()}


def do_without(plan: Plan, fetched_rows: FetchedRowsByType) -> set[str]:
    """Make a plan with absent rows computable; returns the fallbacks that this used.

    Args:
        fetched_rows: as for `complete`; here also those that are too old.
    """
    used: set[str] = set()
    for read in plan.reads:
        if read.take_stale(fetched_rows.get(read.reader.node_type, ())):
            used.add(STALE_FEATURES)
    lost = {id(read.reader): read for read in plan.reads if read.missing.shape[0]}
    for needs in plan.needs if lost else ():
        for need in needs:
            if need.compute.shape[0]:
                used |= _compute_without(need, lost)
    return used


def share_there(plan: Plan) -> float:
    """The share of the rows that a plan reads from sources which is available after `do_without`."""
    total = sum(read.ids.shape[0] for read in plan.reads)
    lost = sum(read.missing.shape[0] for read in plan.reads)
    return 1.0 - lost / total if total else 1.0


def _compute_without(need: LevelPlan, lost: Mapping[int, RawRead]) -> set[str]:
    """Drop edges to absent rows; returns the fallbacks for these and for absent own rows."""
    used: set[str] = set()
    level = need.level
    for (_, below), block, rows in zip(level.links, need.blocks, need.rows, strict=True):
        read = lost.get(id(below))
        if read is not None:
            if block.columns:  # aligned with the edges that stay
                stays = ~_lost_rows(read)[rows[: block.num_edges]]
                block.columns = {name: c[: block.num_edges][stays] for name, c in block.columns.items()}
            left = drop_edges(_lost_rows(read), rows, block.offsets, block.neighbors, block.positions)
            if left < block.num_edges:
                used.add(SMALLER_FANOUT)
                block.num_edges = left
    own = lost.get(id(level.own_below))
    if own is not None and _lost_rows(own)[need.own_rows[: need.compute.shape[0]]].any():
        used.add(MEAN_FEATURES)
    if id(level) in lost:  # a `features` input
        used.add(MEAN_FEATURES)
    return used


def _lost_rows(read: RawRead) -> NDArray[np.bool_]:
    lost = np.zeros(read.ids.shape[0], np.bool_)
    lost[read.missing] = True
    return lost


@njit(nogil=True, cache=True)
def drop_edges(lost, rows, offsets, neighbors, positions):  # type: ignore[no-untyped-def]
    """Remove, in place, the edges whose source row is lost; returns the number of remaining edges."""
    left = 0
    first = offsets[0]
    for i in range(offsets.shape[0] - 1):
        last = offsets[i + 1]
        for e in range(first, last):
            if not lost[rows[e]]:
                rows[left] = rows[e]
                neighbors[left] = neighbors[e]
                positions[left] = positions[e]
                left += 1
        first = last
        offsets[i + 1] = left
    return left
