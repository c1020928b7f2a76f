"""Executes a plan from raw features up: computes each missing row once and puts it into the state cache."""

from __future__ import annotations

import numpy as np

from hopline.engine.kernels import reduce_oldest
from hopline.engine.level_plan import LevelPlan
from hopline.engine.narrow_kernels import Matrix
from hopline.engine.plan import Plan
from hopline.engine.stage import Given
from hopline.engine.state_cache import NO_STAMPS
from hopline.graph.live.view import NO_HISTORY, Histories
from hopline.sampling.keyed import NO_CUT
from hopline.types import FloatArray, StampArray

_NO_ROWS: FloatArray = np.empty((0, 0), np.float32)


def execute(
    plan: Plan, features: dict[str, Matrix], past: Histories = NO_HISTORY, *, keep: bool = True
) -> dict[str, FloatArray]:
    """Compute the rows that `plan` needs.

    Args:
        plan: from `make_plan`; the newest one of its levels.
        features: node type -> [N, d], for those in the process.
        past: node type -> history, for a plan with a time cut: `features` are its rows then.
        keep: store the computed rows in the state caches.

    Raises: any error that the plan's guard raises before the next step.

    Returns:
        node type -> float32 [n, d] states of the top level in the order requested; valid until the
        next plan.
    """
    guard = plan.guard
    for needs in reversed(plan.needs):
        for need in needs:
            if need.compute.shape[0]:
                if guard.rows > guard.few_rows:
                    guard.look()
                _compute(need, features, past, plan, keep)
            need.level.state, need.level.stamps = need.out, need.stamps
    return {need.level.node_type: need.out for need in plan.needs[0]} if plan.needs else {}


def _compute(need: LevelPlan, features: dict[str, Matrix], past: Histories, plan: Plan, keep: bool) -> None:
    level, as_of = need.level, plan.as_of
    num_rows = need.compute.shape[0]
    assert level.runner is not None
    raw: Matrix = features.get(level.node_type, _NO_ROWS)
    raw_rows = need.compute
    if need.raw is not None:
        raw, raw_rows = need.raw.out, np.arange(num_rows)
    elif level.node_type in past:
        if level.own_below is None or level.stage.reads_features:
            raw_rows = past[level.node_type].rows(need.compute, as_of)
    elif level.own_slots is not None:
        raw_rows = level.own_slots.slots(need.compute)
    own = raw if level.own_below is None else level.own_below.state
    # Without a level below, a stage reads raw features of its nodes and of their neighbours.
    own_rows = raw_rows if level.own_below is None and need.raw is None else need.own_rows
    views = {}
    for (relation, below), block, rows in zip(level.links, need.blocks, need.rows, strict=True):
        base = features[relation.source] if below is None else below.state
        if below is None and relation.source in past:
            rows = past[relation.source].rows(rows[: block.num_edges], as_of)  # what follows is unused
        elif below is None and relation.source_slots is not None:
            rows = relation.source_slots.slots(rows[: block.num_edges])
        views[relation.key] = relation.view(base, rows, need.compute, block, as_of)
    out = level.out(num_rows) if need.missing is None else level.computed(num_rows)
    structure = None
    if level.structure is not None:
        structure = level.structure.rows(need.compute, raw, raw_rows)
    given = Given(own, own_rows, raw, raw_rows, views, structure, plan.seed_time)
    level.runner.run(given, out, plan.guard.look)
    stamps = _stamps(need) if need.stamps.shape[0] else NO_STAMPS
    if need.missing is None:
        need.out = out
    else:
        need.out[need.missing] = out
        if stamps.shape[0]:
            need.stamps[need.missing] = stamps
    if keep and level.state_cache is not None and as_of == NO_CUT:
        level.state_cache.write(need.compute, out, stamps)


def _stamps(need: LevelPlan) -> StampArray:
    """The stamp of the oldest feature row that each row of `compute` was computed from, float64 [m]."""
    level = need.level
    out = need.stamps if need.missing is None else np.empty(need.compute.shape[0])
    oldest = NO_STAMPS if need.raw is None else need.raw.stamps
    own = NO_STAMPS if level.own_below is None else level.own_below.stamps
    for (_, below), block, rows in zip(level.links, need.blocks, need.rows, strict=True):
        base = NO_STAMPS if below is None else below.stamps
        reduce_oldest(oldest, own, need.own_rows, base, rows, block.offsets, out)
        oldest, own = out, NO_STAMPS
    if oldest is not out:  # it reads no edges
        reduce_oldest(oldest, own, need.own_rows, NO_STAMPS, need.own_rows, need.own_rows, out)
    return out
