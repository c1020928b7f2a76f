"""Which rows a batch must compute: from the requested states down to raw features.

Level by level from the top, for each node type: look the wanted rows up in the table; sample
neighbours for those it lacks; the union of their own and their neighbours' ids, each once, is wanted
one level below. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hopline.engine.level import Level
from hopline.sampling import Block
from hopline.sampling.keyed import NO_CUT
from hopline.types import FloatArray, IdArray


@dataclass(slots=True)
class Need:
    """Rows of one level and node type that a batch needs.

    Attributes:
        level: where they come from.
        ids: int64 [n] distinct global ids.
        out: float32 [n, state_dim]; rows that the table had are filled already.
        missing: int64 [m] positions in `ids` to compute; None means all of them.
        compute: int64 [m] ids to compute.
        own_rows: int64 [m] rows of `compute` one level below (global ids where that level is raw).
        blocks, rows: edge type key -> sampled edges, and their sources' rows one level below.
    """

    level: Level
    ids: IdArray
    out: FloatArray
    missing: IdArray | None
    compute: IdArray
    own_rows: IdArray
    blocks: dict[str, Block] = field(default_factory=dict)
    rows: dict[str, IdArray] = field(default_factory=dict)


@dataclass(slots=True)
class Plan:
    """All needs of a batch, by level, with the time cut that they hold for.

    Attributes:
        needs: needs[l][node type], l from 0 to the wanted level; raw levels are left out.
        num_computed: rows to compute, over all levels.
        num_edges: sampled edges, over all levels.
    """

    needs: list[dict[str, Need]]
    as_of: int
    num_computed: int = 0
    num_edges: int = 0


_NONE = np.empty(0, np.int64)


def make_plan(
    levels: list[dict[str, Level]], top: int, wanted: Mapping[str, IdArray], as_of: int = int(NO_CUT)
) -> Plan:
    """Plan the states of `wanted` (node type -> int64 [n] distinct ids) at level `top`.

    A plan with a time cut neither reads nor fills tables: their rows are about the present graph.
    """
    plan = Plan([{} for _ in range(top + 1)], as_of)
    ids_of = dict(wanted)
    for number in range(top, -1, -1):
        needs = {}
        for node_type, ids in ids_of.items():
            level = levels[number][node_type]
            if level.runner is not None:
                needs[node_type] = _look_up(level, ids, as_of)
        plan.needs[number] = needs
        if number == 0:
            plan.num_computed += sum(need.compute.shape[0] for need in needs.values())
            break
        for need in needs.values():
            plan.num_computed += need.compute.shape[0]
            if need.compute.shape[0]:
                for key, relation in need.level.relations.items():
                    block = relation.sampler.sample(need.compute, relation.buffers, as_of)
                    need.blocks[key] = block
                    plan.num_edges += block.neighbors.shape[0]
        ids_of = _intern(levels[number - 1], needs)
        if not ids_of:
            break
    return plan


def _look_up(level: Level, ids: IdArray, as_of: int) -> Need:
    out = level.out(ids.shape[0])
    if level.table is None or as_of != NO_CUT:
        return Need(level, ids, out, None, ids, _NONE)
    missing = level.table.read(ids, out)
    if missing.shape[0] == ids.shape[0]:
        return Need(level, ids, out, None, ids, _NONE)
    return Need(level, ids, out, missing, ids[missing], _NONE)


def _intern(below: dict[str, Level], needs: dict[str, Need]) -> dict[str, IdArray]:
    """Number the rows wanted one level below; returns node type -> distinct ids."""
    bounds: dict[str, int] = {}
    for node_type, need in needs.items():
        if need.level.reads_self and need.compute.shape[0]:
            bounds[node_type] = bounds.get(node_type, 0) + need.compute.shape[0]
        for key, block in need.blocks.items():
            source = need.level.relations[key].adjacency.src
            bounds[source] = bounds.get(source, 0) + block.neighbors.shape[0]
    computed = {t: bound for t, bound in bounds.items() if below[t].runner is not None}
    for node_type, bound in computed.items():
        below[node_type].interner.start(bound)
    for node_type, need in needs.items():
        if need.level.reads_self and need.compute.shape[0]:
            raw = node_type not in computed
            need.own_rows = need.compute if raw else below[node_type].interner.add(need.compute)
        for key, block in need.blocks.items():
            source = need.level.relations[key].adjacency.src
            raw = source not in computed
            need.rows[key] = block.neighbors if raw else below[source].interner.add(block.neighbors)
    return {node_type: below[node_type].interner.distinct for node_type in computed}
