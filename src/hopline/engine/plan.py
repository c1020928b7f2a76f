"""Rows that a batch must compute: from the requested states down to raw features.

Level by level from the top, for each node type: look the wanted rows up in the state cache, and sample
neighbours for the rows that are not cached. The union of their ids and their neighbours' ids, each once,
is wanted one level below. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hopline.engine.guard import EDGE_BYTES, Guard
from hopline.engine.level import Level, Relation
from hopline.engine.level_plan import LevelPlan
from hopline.engine.source import FetchedEdgesByType, RawRead, RowsAbsent
from hopline.engine.state_cache import NO_STAMPS
from hopline.graph.store_columns import StoreIds
from hopline.sampling import Block
from hopline.sampling.keyed import NO_CUT
from hopline.types import IdArray

_NO_IDS: IdArray = np.empty(0, np.int64)
#: Fewer edges than this are sampled in less than a millisecond: the guard is not called for them.
_SOME_EDGES = 1 << 12


@dataclass(slots=True)
class Plan:
    """All needs of a batch, with the time cut that they hold for.

    Attributes:
        needs: for each level from the top down, the needs of its node types.
        guard: called before each step.
        reads: raw rows that come from sources; see `source.complete`.
        fetched_edges: edges that were fetched from a graph store for this batch.
        since: rows with this stamp or an older one have expired; -inf where rows do not age.
        num_computed: rows to compute, over all levels.
        num_edges: sampled edges, over all levels.
    """

    needs: list[list[LevelPlan]]
    as_of: int
    guard: Guard
    since: float = -np.inf
    num_computed: int = 0
    num_edges: int = 0
    reads: list[RawRead] = field(default_factory=list)
    fetched_edges: FetchedEdgesByType = field(default_factory=dict)


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
        plan.num_computed += num_rows
        guard.rows += num_rows
        level = need.level
        if level.own_below is not None:
            _expect(level.own_below, num_rows, touched)
        for relation, below in level.links:
            bound = relation.sampler.bound(need.compute)
            if bound >= _SOME_EDGES:
                _reserve(plan, num_rows, bound, below)
            block = relation.sampler.sample(need.compute, relation.buffers, plan.as_of, bound)
            need.blocks.append(block)
            if relation.sampler.is_stored:
                lost = _read_edges(plan, relation, block)
                if lost.shape[0]:
                    absent.setdefault(relation.key, []).append(lost)
            num_edges = block.num_edges
            guard.rows += num_edges
            plan.num_edges += num_edges
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
