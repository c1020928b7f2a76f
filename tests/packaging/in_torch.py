"""Split a model and run its stages in torch, without ONNX: cheap, so that many options can be tried."""

from __future__ import annotations

import numpy as np
import torch

from hopline.packaging.analysis import check_rows
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.lower import trace_and_lower
from hopline.packaging.probe import beside, strangers
from hopline.packaging.reference import eval_copy
from hopline.packaging.signature import bind
from hopline.packaging.split import Splitter
from tests.packaging import full_graph


def split(model, graph, target="node", **options):
    """Split, check that rows do not mix; returns (binding, traced, plans, check graph)."""
    binding = bind(model, graph.schema, **options)
    check = CheckGraph.of(graph)
    targets = (target,) if isinstance(target, str) else target
    with torch.no_grad():
        slots = binding.slots(check)
        traced, lowered = trace_and_lower(eval_copy(model).float(), binding, targets, slots)
        check_rows(traced, binding, slots, beside(check, strangers(check, 2, np.random.default_rng(0))))
        plans = Splitter(traced, lowered, dict(traced.outputs)).stages()
    return binding, traced, plans, check


def assert_equals_pyg(model, graph, target="node", **options):
    """Split, and compare the last state with the module's own answer."""
    binding, traced, plans, check = split(model, graph, target, **options)
    levels = [{} for _ in range(max(plan.level for plan in plans) + 1)]
    with torch.no_grad():
        for plan in plans:
            if plan.module is None:
                levels[plan.level][plan.node_type] = check.features[plan.node_type]
                continue
            previous = levels[plan.level - 1] if plan.level else {}
            query = None
            if plan.query is not None:
                rows = full_graph.stage_inputs(plan.query_inputs, plan.node_type, check, previous)
                query = plan.query(
                    *(torch.from_numpy(rows[item.name]) for item in plan.query_inputs)
                ).numpy()
            feeds = full_graph.stage_inputs(plan.inputs, plan.node_type, check, previous, query)
            state = plan.module(*(torch.from_numpy(feeds[item.name]) for item in plan.inputs)).numpy()
            state = state[: check.num_nodes(plan.node_type)]
            assert state.shape[1] == plan.state_dim
            rows = [traced.values[node] for node in plan.values]
            expected = torch.cat([row.reshape(len(row), -1) for row in rows], dim=1).numpy()
            np.testing.assert_allclose(state, expected, atol=1e-4, rtol=1e-4, err_msg=f"stage {plan.level}")
            levels[plan.level][plan.node_type] = state
        answer = binding.call(eval_copy(model).float(), binding.slots(check))
    answer = answer[target] if isinstance(answer, dict) else answer
    expected = answer.reshape(len(answer), -1).numpy()
    np.testing.assert_allclose(levels[-1][target], expected, atol=1e-4, rtol=1e-4)
    return plans
