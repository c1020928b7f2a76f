"""Carries a plan out, from raw features up: every missing row once, then into the table."""

from __future__ import annotations

from hopline.engine.plan import Need, Plan
from hopline.sampling.keyed import NO_CUT
from hopline.types import FloatArray


def execute(plan: Plan, features: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Compute what `plan` asks for.

    Args:
        plan: from `make_plan`, with the same levels.
        features: node type -> float32 [N, d], C-contiguous, read-only.

    Returns:
        node type -> float32 [n, d] states of the top level in the order asked for; valid until the
        next plan.
    """
    states: dict[str, FloatArray] = {}
    for needs in plan.needs:
        above = {}
        for node_type, need in needs.items():
            _compute(need, states, features, plan.as_of)
            above[node_type] = need.out
        states = above
    return states


def _compute(need: Need, below: dict[str, FloatArray], features: dict[str, FloatArray], as_of: int) -> None:
    num_rows = need.compute.shape[0]
    if num_rows == 0:
        return
    level = need.level
    assert level.runner is not None
    out = need.out if need.missing is None else level.computed(num_rows)
    views = {
        key: relation.view(
            _states(relation.adjacency.src, below, features),
            need.rows[key],
            need.compute,
            need.blocks[key],
            as_of,
        )
        for key, relation in level.relations.items()
    }
    raw = features[level.node_type]
    own = _states(level.node_type, below, features) if level.reads_self else raw
    level.runner.run(num_rows, own, need.own_rows, raw, need.compute, views, out)
    if need.missing is not None:
        need.out[need.missing] = out
    if level.table is not None and as_of == NO_CUT:
        level.table.write(need.compute, out)


def _states(node_type: str, below: dict[str, FloatArray], features: dict[str, FloatArray]) -> FloatArray:
    """The previous level's rows: computed ones where there are any, else the raw features."""
    states = below.get(node_type)
    return features[node_type] if states is None else states
