"""Edges with negative weights: answers are PyG's; models that sample by weight are refused."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    from torch_geometric.nn import GCNConv, GraphConv

from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan, load_model
from hopline.errors import ArtifactError, BadRequest, PackagingError, SchemaMismatch
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.live.changes import Changes, EdgeChanges
from hopline.memory.arena import Arena
from hopline.packaging import package
from hopline.sampling.keyed import NO_CUT
from hopline.types import InlineNode, ScoreRequest
from tests.engine.zoo import EDGE, edge_index
from tests.graph.live.test_writer import live

N, DIM = 60, 5
NAMES = ["add", "mean", "gcn", "gcn without loops", "gcn twice"]


class Convs(nn.Module):
    def __init__(self, *convs):
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x, edge_index, edge_weight):
        for conv in self.convs:
            x = torch.tanh(conv(x, edge_index, edge_weight))
        return x


def module(name):
    torch.manual_seed(1)
    if name in ("add", "mean"):
        return Convs(GraphConv(DIM, 8, aggr=name), GraphConv(8, 3, aggr=name)).eval()
    if name == "gcn twice":
        return Convs(GCNConv(DIM, 8), GCNConv(8, 3)).eval()
    return Convs(GCNConv(DIM, 3, add_self_loops=name == "gcn")).eval()


def ratings(seed=0, low=-10):
    """Integers as in Bitcoin-OTC, mostly good ones; self-loops, multi-edges, isolated nodes.

    Nodes 0 to 2 have degrees below 0, of 0 and of -1: PyG's normalisation is NaN, 0 and (with a loop) 0.
    """
    rng = np.random.default_rng(seed)
    count = 300
    edges = np.stack([rng.integers(3, N - 5, count), rng.integers(3, N - 5, count)])
    edges[:, :4] = 7
    edges[:, 4:8] = edges[:, 8:12]
    weight = np.where(rng.random(count) < 0.15, rng.integers(low, 1, count), rng.integers(0, 11, count))
    if low < 0:
        edges = np.concatenate(
            [edges, [[20, 21, 20, 21, 22, 0, 1, 2], [0, 0, 1, 1, 2, 30, 31, 32]]], axis=1
        )
        weight = np.concatenate([weight, [-10, 3, -4, 4, -1, 2, 2, 2]])
    time = rng.integers(0, 100, edges.shape[1])
    x = rng.standard_normal((N, DIM)).astype(np.float32)
    return Graph.from_edges(
        edges, x, edge_time=time, edge_weight=np.maximum(weight, low).astype(np.float32)
    )


@dataclass
class Packaged:
    folder: Path
    spec: object
    module: nn.Module

    def model(self, graph, caches=False):
        plan = StateCachePlan(self.spec, graph, 2**24 if caches else 0)
        return Model(self.folder, self.spec, graph, plan.build(Arena(plan.num_bytes)))

    def oracle(self, graph):
        edges = graph.edges[EDGE]
        x, weight = (
            torch.from_numpy(np.array(part)) for part in (graph.nodes["node"].features, edges.weight)
        )
        with torch.no_grad():
            return self.module(x, edge_index(edges), weight).numpy()


@pytest.fixture(scope="module")
def packaged(tmp_path_factory):
    found = {}

    def of(name, low=-10):
        if (name, low) not in found:
            torch_module = module(name)
            report = package(
                torch_module,
                ratings(low=low),
                tmp_path_factory.mktemp("models"),
                name="m",
                task="embedding",
                fanouts=[-1] * len(torch_module.convs),
            )
            found[name, low] = Packaged(report.path, report.spec, torch_module)
        return found[name, low]

    return of


def rows(model, ids, as_of=NO_CUT):
    return np.array(model.final_states({"node": ids}, as_of)["node"])


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("caches", [False, True])
def test_answers_are_those_of_pyg(packaged, name, caches):
    case, graph = packaged(name), ratings()
    found, expected = rows(case.model(graph, caches), np.arange(N)), case.oracle(graph)
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)
    assert np.isfinite(expected).any()
    assert np.isnan(expected).any() == name.startswith("gcn")


@pytest.mark.parametrize("name", NAMES)
def test_integers_are_packed_without_loss_and_so_are_answers(packaged, name):
    case, graph = packaged(name), ratings()
    models = [case.model(each) for each in (graph, graph.compressed())]
    for as_of in (NO_CUT, 40):
        np.testing.assert_array_equal(*(rows(model, np.arange(N), as_of) for model in models))


def cut(graph, as_of):
    """The edges up to a time."""
    edges = graph.edges[EDGE]
    keep = edges.time <= as_of
    ends = edge_index(edges).numpy()[:, keep]
    return Graph.from_edges(
        ends, graph.nodes["node"].features, edge_time=edges.time[keep], edge_weight=edges.weight[keep]
    )


@pytest.mark.parametrize("name", NAMES)
def test_as_of_answers_as_pyg_on_the_edges_until_then(packaged, name):
    case, graph = packaged(name), ratings()
    for as_of in (30, 70):
        expected = case.oracle(cut(graph, as_of))
        found = rows(case.model(graph), np.arange(N), as_of)
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("caches", [False, True])
def test_the_first_negative_weights_of_a_live_graph_are_answered_as_by_pyg(packaged, name, caches):
    """The model was packaged where no weight was negative."""
    case, start = packaged(name, 0), ratings(low=0)
    edges = start.edges[EDGE]
    graph = Graph.from_tables(
        {"node": NodeTable(start.nodes["node"].features)},
        {
            ("node", "to", "node"): EdgeTable(
                edge_index(edges).numpy(), time=edges.time, weight=edges.weight, signed_weight=True
            )
        },
    )
    writer, view = live(graph, num_levels=3, reads_degrees=True)
    model = case.model(view, caches)
    with view:
        before = rows(model, np.arange(N))
    np.testing.assert_allclose(before, case.oracle(start), atol=1e-4, rtol=1e-4)
    src, dst = np.array([9, 10, 11, 12]), np.array([1, 1, 30, 2])
    weight = np.array([-5, 4, -60, -1], np.float32)
    changes = EdgeChanges(src, dst, np.zeros(4, bool), np.arange(4), np.full(4, 99), None, weight)
    assert not writer.apply(Changes({EDGE: changes}, {}, 4)).rejected
    with view:
        found = rows(model, np.arange(N))
    np.testing.assert_allclose(found, case.oracle(view.snapshot()), atol=1e-4, rtol=1e-4)
    assert not np.array_equal(found, before, equal_nan=True)
    view.close()


@pytest.mark.parametrize("name", ["add", "mean", "gcn"])
def test_an_unseen_node_answers_as_if_it_were_in_the_graph(packaged, name):
    case, graph = packaged(name), ratings()
    answerer = Answerer(case.model(graph), ("embedding",), 1000)
    edges = graph.edges[EDGE]
    nodes = [0, 1, 2, 12, 25]
    inline = [
        InlineNode(graph.nodes["node"].features[v], {"": edges.neighbors(v)}, edge_weight={"": weight})
        for v in nodes
        for weight in [edges.weight[edges.indptr[v] : edges.indptr[v + 1]]]
    ]
    assert any((node.edge_weight[""] < 0).any() for node in inline)
    (found,) = answerer.answer([ScoreRequest("m", inline=inline)])
    np.testing.assert_allclose(found.outputs["embedding"], case.oracle(graph)[nodes], atol=1e-4, rtol=1e-4)


def test_packaging_refuses_to_sample_by_negative_weights(tmp_path):
    options = {"name": "m", "task": "embedding", "fanouts": [3, 3], "sampling": "weighted"}
    with pytest.raises(PackagingError, match=f"weights of edge type '{EDGE}' may be negative.*'uniform'"):
        package(module("add"), ratings(), tmp_path, **options)
    assert package(module("add"), ratings(low=0), tmp_path, **options).spec.sampling == "weighted"


def test_a_model_that_samples_by_weight_does_not_fit_a_graph_with_negative_ones(packaged):
    case = packaged("add", 0)
    spec = msgspec.structs.replace(
        case.spec, sampling="weighted", fanouts={EDGE: (3,) * len(case.spec.fanouts[EDGE])}
    )
    load_model(case.folder, spec, ratings(low=0))
    for graph in (ratings(), live(ratings())[1]):
        with pytest.raises(
            SchemaMismatch, match=f"weights of edge type '{EDGE}' may be negative"
        ) as refused:
            load_model(case.folder, spec, graph)
        assert len(refused.value.differences) == 1
        assert isinstance(refused.value, ArtifactError)


def test_weights_of_an_unseen_node_are_not_negative_where_the_model_samples_by_them(packaged):
    case, graph = packaged("add", 0), ratings(low=0)
    spec = msgspec.structs.replace(case.spec, sampling="weighted", fanouts={EDGE: (1, 1)})
    answerer = Answerer(load_model(case.folder, spec, graph), ("embedding",), 1000)
    node = InlineNode(np.ones(DIM), {"": [5, 6]}, edge_weight={"": [1, -1]})
    (refused,) = answerer.answer([ScoreRequest("m", inline=[node])])
    assert isinstance(refused, BadRequest)
    assert str(refused) == (
        "inline[0].edge_weight: values must not be negative: the model samples by weight"
    )
