"""Answers of a model whose edges lie in a store."""

from __future__ import annotations

import numpy as np

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan
from hopline.engine.source import Absent, FetchedInputs
from hopline.engine.tasks import default_outputs
from hopline.memory.arena import Arena
from hopline.types import ScoreRequest


def answerer_on(case, graph, caches: bool) -> Answerer:
    """The case's model on another form of its graph."""
    spec = read_spec(case.folder)
    plan = StateCachePlan(spec, graph, 2**26 if caches else 0)
    model = Model(case.folder, spec, graph, plan.build(Arena(plan.num_bytes)))
    return Answerer(model, default_outputs(spec), 1000)


def request_of(case, nodes) -> ScoreRequest:
    """A request about nodes, or about pairs of them for a link model."""
    head = read_spec(case.folder).head
    index = case.graph.nodes[head.node_type].ids
    ids = index.external(np.asarray(nodes) % len(index))
    if head.kind == "link":
        return ScoreRequest(case.name, pairs=(ids, ids[::-1]))
    return ScoreRequest(case.name, nodes=ids)


async def answer(answerer: Answerer, store, request: ScoreRequest):
    """The outcome of one request, and how many reads of edges it took."""
    edges, num_reads = {}, 0
    while True:
        (outcome,) = answerer.answer_supplied([request], [FetchedInputs(fetched_edges=edges)])
        if not isinstance(outcome, Absent):
            return outcome, num_reads
        num_reads += 1
        for key, found in (await store.fetch(outcome.edges, answerer.model.edge_columns)).items():
            edges.setdefault(key, []).append(found)


def same(found, expected) -> bool:
    """Whether two results have the same bits."""
    return found.outputs.keys() == expected.outputs.keys() and all(
        np.array_equal(found.outputs[name], expected.outputs[name]) for name in expected.outputs
    )
