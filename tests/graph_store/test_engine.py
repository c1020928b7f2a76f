"""A model whose edges lie in a store: the bits of the local graph, one read for each hop."""

import numpy as np
import pytest

from hopline.artifact import read_spec
from hopline.engine.source import Absent, FetchedInputs
from hopline.errors import ArtifactError, GraphStoreUnavailable
from hopline.sampling import Sampler, layer_key
from hopline.types import ScoreRequest
from tests.graph_store.answers import answer, answerer_on, request_of, same
from tests.graph_store.memory_store import MemoryStore

NAMES = ("sage", "plain", "gat", "mixed", "aggregated", "hetero", "link")


async def opened(case):
    store = MemoryStore(case.graph)
    await store.open()
    return store


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("name", NAMES)
async def test_answers_are_those_of_the_local_graph(cases, name, caches):
    case = cases[name]
    store = await opened(case)
    stored, local = answerer_on(case, store.graph, caches), case.answerer(False)
    hops = read_spec(case.folder).num_layers
    for first in range(0, 100, 9):
        request = request_of(case, range(first, first + 6))
        found, num_reads = await answer(stored, store, request)
        (expected,) = local.answer([request])
        assert same(found, expected)
        assert num_reads <= hops


async def test_a_batch_gets_what_each_request_gets_alone(cases):
    case = cases["sage"]
    store = await opened(case)
    stored = answerer_on(case, store.graph, False)
    requests = [request_of(case, [i, i + 40]) for i in range(12)]
    alone = [await answer(stored, store, request) for request in requests]
    outcomes = stored.answer_supplied(requests, [FetchedInputs() for _ in requests])
    assert all(isinstance(outcome, Absent) and outcome.edges for outcome in outcomes)
    edges = [{} for _ in requests]
    while any(isinstance(outcome, Absent) for outcome in outcomes):
        for own, outcome in zip(edges, outcomes, strict=True):
            if isinstance(outcome, Absent):
                found = await store.fetch(outcome.edges, stored.model.edge_columns)
                for key, part in found.items():
                    own.setdefault(key, []).append(part)
        outcomes = stored.answer_supplied(requests, [FetchedInputs(fetched_edges=own) for own in edges])
    for outcome, (expected, _) in zip(outcomes, alone, strict=True):
        assert same(outcome, expected)


async def test_a_state_cache_saves_reads(cases):
    case = cases["plain"]
    store = await opened(case)
    stored = answerer_on(case, store.graph, True)
    _, first = await answer(stored, store, request_of(case, range(20)))
    _, again = await answer(stored, store, request_of(case, range(20)))
    assert again == 1 < first


async def test_inline_nodes_read_edges_of_their_neighbours(cases):
    from hopline.types import InlineNode

    case = cases["plain"]
    store = await opened(case)
    stored, local = answerer_on(case, store.graph, False), case.answerer(False)
    node = InlineNode(features=[0.5] * 6, neighbors={"node__to__node": ["n1", "n2", "n50"]})
    request = ScoreRequest("plain", nodes=["n4"], inline=[node])
    found, num_reads = await answer(stored, store, request)
    (expected,) = local.answer([request])
    assert same(found, expected)
    assert num_reads > 0


async def test_edges_that_cannot_be_read_fail_the_request_only(cases):
    case = cases["plain"]
    store = await opened(case)
    stored = answerer_on(case, store.graph, False)
    lost = GraphStoreUnavailable("a server is away")
    good = request_of(case, [3])
    edges = {}
    while True:
        outcomes = stored.answer_supplied(
            [good, request_of(case, [70])],
            [FetchedInputs(fetched_edges=edges), FetchedInputs(edges_failed=lost)],
        )
        assert outcomes[1] is lost
        if not isinstance(outcomes[0], Absent):
            break
        for key, found in (await store.fetch(outcomes[0].edges, stored.model.edge_columns)).items():
            edges.setdefault(key, []).append(found)
    assert same(outcomes[0], case.answerer(False).answer([good])[0])


async def test_models_that_need_whole_lists_are_refused(cases):
    case = cases["plain"]
    store = await opened(case)
    with pytest.raises(ArtifactError, match="running sums"):
        Sampler(store.graph.edges["node__to__node"], 3, "weighted", layer_key(1, 1, "x"))


async def test_recent_sampling_needs_no_times(cases):
    graph = cases["plain"].graph
    store = await opened(cases["plain"])
    from hopline.sampling import BlockBuffers

    nodes = np.arange(30)
    key = layer_key(1, 1, "x")
    near = Sampler(graph.edges["node__to__node"], 3, "recent", key).sample(nodes, BlockBuffers())
    far = Sampler(store.graph.edges["node__to__node"], 3, "recent", key).sample(nodes, BlockBuffers())
    assert np.array_equal(near.positions, far.positions)
