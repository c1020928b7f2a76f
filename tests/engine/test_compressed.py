"""Answers on a compressed graph are those on the plain graph of the same weights, by every way there is."""

import numpy as np
import pytest

from hopline.artifact import read_spec
from hopline.engine.model import Model, StateCachePlan
from hopline.memory.arena import Arena
from hopline.sampling.keyed import NO_CUT
from tests.graph.unpacked import decompressed

KINDS = ["sage", "plain", "gcn", "gat", "hetero"]


def load(case, graph, memory=0):
    spec = read_spec(case.folder)
    plan = StateCachePlan(spec, graph, memory)
    return Model(case.folder, spec, graph, plan.build(Arena(plan.num_bytes)))


def final(model, ids, as_of=NO_CUT):
    node_type = model.spec.head.node_type
    return np.array(model.final_states({node_type: ids}, as_of=as_of)[node_type])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("memory", [0, 2**26])
def test_every_kind_of_model_answers_alike(cases, name, memory):
    packed = cases[name].graph.compressed()
    models = [load(cases[name], graph, memory) for graph in (packed, decompressed(packed))]
    for ids in (np.arange(60), np.array([7]), np.arange(20, 50)):
        for as_of in (NO_CUT, 40):
            np.testing.assert_array_equal(*(final(model, ids, as_of) for model in models))


def test_without_weights_answers_are_those_of_the_graph_itself(cases):
    case = cases["plain"]
    models = [load(case, graph) for graph in (case.graph.compressed(), case.graph)]
    assert all(model._fused_plan is not None for model in models)
    np.testing.assert_array_equal(*(final(model, np.arange(60)) for model in models))
