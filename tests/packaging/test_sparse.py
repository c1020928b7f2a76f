"""Models over an `adj_t`: served where a list of edges answers the same, else refused with the cause."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import BadRequest, NotServable, SchemaMismatch
from hopline.graph import Graph
from hopline.graph_store.disk import DiskStore
from hopline.types import InlineNode, ScoreRequest
from tests.packaging.live_graph import live_view

pytestmark = pytest.mark.filterwarnings("ignore:.*[Ss]parse:UserWarning")


def graph_of(num_nodes=40, *, repeats=False, loops=False, weight=False):
    """A graph without repeated edges and self-loops but for one of each where asked for."""
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, num_nodes, (2, 4 * num_nodes)), axis=1)
    edges = edges[:, edges[0] != edges[1]]
    if repeats:
        edges = np.concatenate([edges, edges[:, -1:]], axis=1)
    if loops:
        edges = np.concatenate([edges, [[7], [7]]], axis=1)
    return Graph.from_edges(
        edges,
        rng.normal(size=(num_nodes, 6)).astype(np.float32),
        edge_weight=rng.uniform(0.5, 2.0, edges.shape[1]).astype(np.float32) if weight else None,
    )


class Sparse(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.first, self.last = conv(6, 8), conv(8, 3)

    def forward(self, x, adj_t):
        return self.last(self.first(x, adj_t).relu(), adj_t)


class OfData(Sparse):
    def forward(self, data):
        return super().forward(data.x, data.adj_t)


def package(model, graph, repository, **options):
    options = {"name": "m", "fanouts": [-1, -1], "task": "multiclass", **options}
    return hopline.package(model, graph, repository, **options)


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("conv", "options"),
    [
        (pyg.SAGEConv, {"repeats": True}),
        (pyg.GCNConv, {"repeats": True}),
        (pyg.GCNConv, {"loops": True}),
        (pyg.GCNConv, {"repeats": True, "loops": True}),
        (pyg.SAGEConv, {"weight": True}),
    ],
)
@pytest.mark.parametrize("form", [Sparse, OfData])
def test_what_a_matrix_holds_otherwise_is_named(form, conv, options, tmp_path):
    with pytest.raises(NotServable, match=r"over an adj_t .*repeated edges.*self-loops.*weights") as caught:
        package(form(conv), graph_of(**options), tmp_path)
    assert "fanouts were given" not in str(caught.value)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("conv", "options"),
    [
        (pyg.SAGEConv, {}),
        (pyg.SAGEConv, {"loops": True}),
        (pyg.GCNConv, {}),
        (pyg.GCNConv, {"weight": True, "repeats": True}),
    ],
)
def test_what_a_matrix_holds_the_same_way_is_served(conv, options, tmp_path):
    package(Sparse(conv), graph_of(**options), tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("options", [{"repeats": True}, {"loops": True}])
def test_one_odd_edge_outside_of_the_sample_is_enough(options, tmp_path):
    with pytest.raises(NotServable, match=r"repeated edges|self-loops"):
        package(Sparse(pyg.GCNConv), graph_of(2000, **options), tmp_path, check_nodes=64)


@pytest.mark.release
def test_pairs_and_stages_only_get_the_cause_too(tmp_path):
    graph = graph_of(repeats=True)
    for options in ({"task": "binary", "head": "dot"}, {}):
        with pytest.raises(NotServable, match="repeated edges"):
            package(Sparse(pyg.SAGEConv), graph, tmp_path, **options)


@pytest.mark.sample(1)
@pytest.mark.parametrize("trait", ["repeats", "loops"])
def test_a_later_graph_with_edges_that_were_not_compared_is_refused(trait, tmp_path):
    graph = graph_of()
    report = package(Sparse(pyg.SAGEConv), graph, tmp_path)
    load_model(report.path, report.spec, graph)
    with pytest.raises(SchemaMismatch, match=r"node__to__node has no .*rely on that; this graph has"):
        load_model(report.path, report.spec, graph_of(**{trait: True}))


def test_a_live_graph_is_refused_to_a_model_that_reads_a_matrix(tmp_path):
    graph = graph_of()
    report = package(Sparse(pyg.SAGEConv), graph, tmp_path)
    with pytest.raises(SchemaMismatch, match="a live graph can get repeated edges and self-loops"):
        load_model(report.path, report.spec, live_view(graph))


def test_a_list_of_edges_may_get_repeated_edges_and_self_loops(tmp_path):
    report = package(pyg.SAGEConv(6, 3), graph_of(), tmp_path, fanouts=[-1])
    assert report.spec.edges_without == {}
    load_model(report.path, report.spec, graph_of(repeats=True, loops=True))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("described", "message"),
    [
        (
            [InlineNode(np.ones(6), {"": [4, 9, 4]})],
            r"inline\[0\].neighbors: 4 is listed more than once.*adj_t",
        ),
        (
            [InlineNode(np.ones(6), {"": [4]}), InlineNode(np.ones(6), {"": [4, "a"]}, "a")],
            r"inline\[1\].neighbors: the node is its own neighbour.*no repeated edges and no self-loops",
        ),
    ],
)
def test_an_unseen_node_may_not_have_edges_that_were_not_compared(described, message, tmp_path):
    graph = graph_of()
    report = package(Sparse(pyg.SAGEConv), graph, tmp_path)
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 99)
    (refused,) = answerer.answer([ScoreRequest("m", inline=described)])
    assert isinstance(refused, BadRequest)
    assert re.search(message, str(refused))
    plain = [InlineNode(np.ones(6), {"": [4, 9]}), InlineNode(np.ones(6), {"": ["b"]}, "a")]
    plain.append(InlineNode(np.ones(6), {"": [4]}, "b"))
    (good,) = answerer.answer([ScoreRequest("m", inline=plain)])
    assert good.outputs["logits"].shape == (3, 3)


def test_an_unseen_node_of_a_model_over_a_list_may_have_them(tmp_path):
    graph, conv = graph_of(), pyg.SAGEConv(6, 3)
    report = package(conv, graph, tmp_path, fanouts=[-1])
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 99)
    (found,) = answerer.answer(
        [ScoreRequest("m", inline=[InlineNode(np.ones(6), {"": [4, 9, 4, "a"]}, "a")])]
    )
    x = torch.cat([torch.from_numpy(np.array(graph.nodes["node"].features)), torch.ones(1, 6)])
    with torch.no_grad():
        wanted = conv(x, torch.tensor([[4, 9, 4, 40], [40, 40, 40, 40]]))[40:]
    np.testing.assert_allclose(found.outputs["logits"], wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("known", "message"),
    [(True, "; this graph has repeated edges"), (None, "repeated edges was not stored.*build it again")],
)
def test_a_graph_store_with_repeated_edges_is_refused(known, message, tmp_path):
    graph = graph_of(repeats=True)
    report = package(Sparse(pyg.SAGEConv), graph_of(), tmp_path / "m")
    edges = {key: dataclasses.replace(part, has_repeated_edges=known) for key, part in graph.edges.items()}
    Graph(graph.schema, graph.nodes, edges).save(tmp_path / "graph")
    stored = DiskStore(Graph.open(tmp_path / "graph")).graph
    with pytest.raises(SchemaMismatch, match=message):
        load_model(report.path, report.spec, stored)
