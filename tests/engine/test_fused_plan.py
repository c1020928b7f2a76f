"""The short plan of small batches answers what the general way does, bit for bit."""

import msgspec
import numpy as np
import pytest
import torch
from torch_geometric.nn import GATConv, GCNConv, GINConv, MessagePassing, SAGEConv

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
    model._fused_plan = None
    return model


def test_plans_of_models_with_one_edge_type_at_each_level_are_one_call(place, cases):
    assert load(place)._fused_plan.executes
    for name in ("plain", "sage", "gcn", "gat"):
        assert cases[name].model(True, fanout=4)._fused_plan.executes == (name == "plain")
        assert cases[name].model(True, fanout=4)._fused_plan.max_seeds >= 16
        assert cases[name].model(True, fanout=-1)._fused_plan is None
    assert cases["hetero"].model(True, fanout=4)._fused_plan is None


class Gated(MessagePassing):
    """A convolution that is split by its code."""

    def __init__(self, width):
        super().__init__(aggr="mean")
        self.gate = torch.nn.Linear(2 * width, width)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=x) + x

    def message(self, x_i, x_j):
        return self.gate(torch.cat([x_i, x_j], dim=-1)).sigmoid() * x_j


class TwoConvs(torch.nn.Module):
    """A linear map, if wanted, and two convolutions."""

    def __init__(self, make, *, maps):
        super().__init__()
        self.map = torch.nn.Linear(6, 6) if maps else torch.nn.Identity()
        self.a, self.b = make(6), make(6)

    def forward(self, x, edge_index):
        return self.b(self.a(self.map(x), edge_index).relu(), edge_index)


@pytest.fixture(scope="module", params=["gcn", "gat", "gated", "gin", "max"])
def planned(request, place, tmp_path_factory):
    """Models of one convolution; the fused plan of `gin` is executed in compiled calls too."""
    makes = {
        "gcn": lambda width: GCNConv(width, width),
        "gat": lambda width: GATConv(width, width),
        "gated": Gated,
        "gin": lambda width: GINConv(torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU())),
        "max": lambda width: SAGEConv(width, width, aggr="max"),
    }
    torch.manual_seed(2)
    module = TwoConvs(makes[request.param], maps=request.param == "gcn").eval()
    where = tmp_path_factory.mktemp("planned")
    report = package(module, place[1], where, name="m", fanouts=[4, 3], task="embedding")
    return report.path, place[1]


@pytest.mark.sample(5)
@pytest.mark.parametrize("as_of", [NO_CUT, 40, -1])
def test_a_fused_plan_equals_the_general_one(planned, as_of):
    chain, other = load(planned, sampling="recent"), general(load(planned, sampling="recent"))
    rng = np.random.default_rng(0)
    most = chain._fused_plan.max_seeds
    for size in (1, 2, 17, most, most + 1):
        ids = rng.permutation(N)[:size]
        expected = other.final_states({"node": ids}, as_of)["node"].copy()
        rows, chain.guard.rows, other.guard.rows = other.guard.rows, 0, 0
        assert (chain.final_states({"node": ids}, as_of)["node"] == expected).all()
        assert chain.guard.rows == rows
    assert chain._fused_plan.max_seeds > 100


@pytest.mark.sample(5)
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("memory", [240_000, 2**26])
def test_a_fused_plan_reads_and_fills_state_caches_as_the_general_one(planned, memory, final):
    chain, other = load(planned, memory, final=final), general(load(planned, memory, final=final))
    rng = np.random.default_rng(1)
    for turn in range(60):
        ids = rng.permutation(400 if turn % 2 else N)[: int(rng.integers(1, 250))]
        as_of = 50 if turn % 7 == 3 else NO_CUT
        expected = other.final_states({"node": ids}, as_of)["node"].copy()
        assert (chain.final_states({"node": ids}, as_of)["node"] == expected).all()
    assert chain.state_caches
    for key, cache in chain.state_caches.items():
        twin = other.state_caches[key]
        assert cache.num_hits == twin.num_hits > 0
        assert (cache.num_misses, cache.num_rows) == (twin.num_misses, twin.num_rows)


@pytest.mark.parametrize("sampling", ["uniform", "recent", "weighted"])
@pytest.mark.parametrize("as_of", [NO_CUT, 40, -1])
def test_every_size_of_batch_equals_the_general_way(place, sampling, as_of):
    chain, other = load(place, sampling=sampling), general(load(place, sampling=sampling))
    rng = np.random.default_rng(0)
    for size in (1, 2, 17, chain._fused_plan.max_seeds, chain._fused_plan.max_seeds + 1):
        ids = rng.permutation(N)[:size]
        expected = other.final_states({"node": ids}, as_of)["node"].copy()
        assert (chain.final_states({"node": ids}, as_of)["node"] == expected).all()


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("memory", [120_000, 2**26])
def test_state_caches_that_fill_and_evict_change_no_answer(place, memory, final):
    chain, other = load(place, memory, final=final), general(load(place))
    rng = np.random.default_rng(1)
    for turn in range(60):
        ids = rng.permutation(400 if turn % 2 else N)[: int(rng.integers(1, 50))]
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
        ids = rng.permutation(N)[:30]
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
    ids = np.arange(chain._fused_plan.max_seeds)
    chain.final_states({"node": ids})
    assert chain._fused_plan._counts[0, 1] > CHUNK_ROWS


def test_ways_may_alternate(place):
    chain, other = load(place, 2**20), general(load(place))
    rng = np.random.default_rng(4)
    for size in (5, 900, 3, 1200, 250, 1):
        ids = rng.permutation(N)[:size]
        expected = other.final_states({"node": ids})["node"].copy()
        assert (chain.final_states({"node": ids})["node"] == expected).all()
