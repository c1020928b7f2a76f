"""The short way of small batches answers what the general way does, bit for bit."""

import msgspec
import numpy as np
import pytest
import torch

from hopline.artifact import read_spec
from hopline.engine.model import Model, StateCachePlan
from hopline.graph import Graph
from hopline.memory.arena import Arena
from hopline.packaging import package
from hopline.runtimes.onnx import CHUNK_ROWS
from hopline.sampling.keyed import NO_CUT
from tests.engine import zoo

N = 3000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A packaged three-layer model and a graph on which its levels have more rows than a runtime call."""
    rng = np.random.default_rng(3)
    edges = (N * rng.random((2, 30_000)) ** 2).astype(np.int64)
    edges[1, edges[1] % 50 == 7] = 0  # some nodes without in-neighbours
    graph = Graph.from_edges(
        edges,
        rng.standard_normal((N, 6)).astype(np.float32),
        edge_time=rng.integers(0, 100, edges.shape[1]),
        edge_weight=rng.random(edges.shape[1]).astype(np.float32),
    )
    torch.manual_seed(1)
    torch.set_num_threads(1)
    module = zoo.Plain().eval()
    report = package(
        module, graph, tmp_path_factory.mktemp("r"), name="plain", fanouts=[4, 3, 5], task="multiclass"
    )
    return report.path, graph


def load(place, memory=0, sampling="uniform", final=False):
    folder, graph = place
    spec = msgspec.structs.replace(read_spec(folder), sampling=sampling)
    plan = StateCachePlan(spec, graph, memory, final=final)
    return Model(folder, spec, graph, plan.build(Arena(plan.num_bytes)))


def general(model):
    """The same model by the general way."""
    model._fused_path = None
    return model


def test_the_usual_model_is_a_chain_and_others_are_not(place, cases):
    assert load(place)._fused_path is not None
    assert cases["plain"].model(True)._fused_path is not None
    assert cases["plain"].model(True, fanout=-1)._fused_path is None
    for name in ("sage", "gcn", "gat", "hetero", "link"):
        assert cases[name].model(True)._fused_path is None


@pytest.mark.parametrize("sampling", ["uniform", "recent", "weighted"])
@pytest.mark.parametrize("as_of", [NO_CUT, 40, -1])
def test_every_size_of_batch_equals_the_general_way(place, sampling, as_of):
    chain, other = load(place, sampling=sampling), general(load(place, sampling=sampling))
    rng = np.random.default_rng(0)
    for size in (1, 2, 17, 100, chain._fused_path.max_seeds, chain._fused_path.max_seeds + 1):
        ids = rng.permutation(N)[:size]
        expected = other.final_states({"node": ids}, as_of)["node"].copy()
        assert (chain.final_states({"node": ids}, as_of)["node"] == expected).all()


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("memory", [120_000, 2**26])
def test_state_caches_that_fill_and_evict_change_no_answer(place, memory, final):
    chain, other = load(place, memory, final=final), general(load(place))
    rng = np.random.default_rng(1)
    for turn in range(60):
        ids = rng.permutation(400 if turn % 2 else N)[: int(rng.integers(1, 200))]
        as_of = 50 if turn % 7 == 3 else NO_CUT
        expected = other.final_states({"node": ids}, as_of)["node"].copy()
        assert (chain.final_states({"node": ids}, as_of)["node"] == expected).all()
    used = [cache.num_rows for cache in chain.state_caches.values()]
    assert all(used)
    assert sum(cache.num_hits for cache in chain.state_caches.values()) > 0


def test_state_caches_count_and_hold_the_same_as_in_the_general_path(place):
    chain, other = load(place, 2**26), general(load(place, 2**26))
    rng = np.random.default_rng(2)
    for _ in range(20):
        ids = rng.permutation(N)[:40]
        for model in (chain, other):
            model.final_states({"node": ids})
    for key, cache in chain.state_caches.items():
        twin = other.state_caches[key]
        assert (cache.num_hits, cache.num_misses, cache.num_rows) == (
            twin.num_hits,
            twin.num_misses,
            twin.num_rows,
        )
        everyone = np.arange(N)
        rows, twins = (np.zeros((N, cache.arrays[3].shape[1]), np.float32) for _ in range(2))
        assert (cache.read(everyone, rows) == twin.read(everyone, twins)).all()
        assert (rows == twins).all()


def test_levels_may_have_more_rows_than_a_call_of_the_runtime(place):
    chain = load(place)
    ids = np.arange(200)
    chain.final_states({"node": ids})
    assert chain._fused_path._num_compute.tolist()[0] > CHUNK_ROWS


def test_ways_may_alternate(place):
    chain, other = load(place, 2**20), general(load(place))
    rng = np.random.default_rng(4)
    for size in (5, 900, 3, 1200, 250, 1):
        ids = rng.permutation(N)[:size]
        expected = other.final_states({"node": ids})["node"].copy()
        assert (chain.final_states({"node": ids})["node"] == expected).all()
