"""Models that rely on the absence of a kind of edges: served without such edges, refused with them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.utils import degree

import hopline
from hopline.artifact import ONE_WAY, read_spec
from hopline.engine.answer import Answerer
from hopline.engine.inline import parse_inline
from hopline.engine.model import load_model
from hopline.errors import BadRequest, NotServable, SchemaMismatch
from hopline.graph import Graph
from hopline.graph_store.disk import DiskStore
from hopline.types import InlineNode, ScoreRequest
from tests.packaging.live_graph import live_view

KEY = "node__to__node"


def graph_of(*further, num_nodes=60, times=None):
    """Random pairs in both directions, and further edges."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.sort(rng.integers(0, num_nodes, (2, 2 * num_nodes)), axis=0), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    edges = np.concatenate([pairs, pairs[::-1], np.array(further, np.int64).reshape(-1, 2).T], axis=1)
    x = rng.normal(size=(num_nodes, 6)).astype(np.float32)
    return Graph.from_edges(edges, x, edge_time=None if times is None else times(edges.shape[1]))


class Normed(pyg.MessagePassing):
    """Divides by out-degrees of sources."""

    def __init__(self):
        super().__init__(aggr="add")
        self.lin = nn.Linear(6, 3)

    def forward(self, x, edge_index):
        scale = degree(edge_index[0], x.size(0)).clamp(min=1).reciprocal()
        return self.propagate(edge_index, x=self.lin(x) * scale[:, None])

    def message(self, x_j):
        return x_j


class OfDestinations(Normed):
    """Divides by in-degrees."""

    def forward(self, x, edge_index):
        scale = degree(edge_index[1], x.size(0)).clamp(min=1).reciprocal()
        return self.propagate(edge_index, x=self.lin(x) * scale[:, None])


def package(model, graph, repository, fanouts=(-1, -1, -1)):
    return hopline.package(model, graph, repository, name="m", fanouts=list(fanouts), task="multiclass")


@pytest.mark.parametrize("model", [Normed, lambda: pyg.ChebConv(6, 3, 2)], ids=["degree", "ChebConv"])
def test_out_degrees_are_served_on_edges_of_both_directions_only(model, tmp_path):
    graph, model = graph_of(), model()
    report = package(model, graph, tmp_path)
    assert read_spec(report.path).edges_without == {KEY: (ONE_WAY,)}
    assert any("rely on node__to__node having no one-way edges" in note for note in report.notes)
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 99)
    (found,) = answerer.answer([ScoreRequest("m", nodes=list(range(60)))])
    edges = graph.edges[KEY]
    into = np.repeat(np.arange(60), np.diff(edges.indptr))
    with torch.no_grad():
        wanted = model.eval()(
            torch.from_numpy(np.array(graph.nodes["node"].features)),
            torch.from_numpy(np.stack([edges.indices, into]).astype(np.int64)),
        )
    np.testing.assert_allclose(found.outputs["logits"], wanted, atol=1e-5)
    for later in (graph_of((5, 9)), live_view(graph)):
        with pytest.raises(SchemaMismatch, match=r"no one-way edges.*both directions"):
            load_model(report.path, report.spec, later)
    with pytest.raises(NotServable, match="outgoing edges"):
        package(model, graph_of((5, 9)), tmp_path / "directed")


class Followed(OfDestinations):
    """Counts out-edges beyond those that any node of the sample has."""

    def __init__(self, num_edges, of_neighbours=False):
        super().__init__()
        self.num_edges, self.of_neighbours = num_edges, of_neighbours

    def forward(self, x, edge_index):
        more = (degree(edge_index[0], x.size(0)) - self.num_edges).relu()[:, None]
        if self.of_neighbours:
            more = self.propagate(edge_index, x=more)
        return super().forward(x, edge_index) + more


@pytest.mark.parametrize("model", [Followed(25), Followed(25, of_neighbours=True), Followed(400)])
def test_out_degrees_beyond_those_of_the_sample_are_found(model, tmp_path):
    with pytest.raises(NotServable, match="outgoing edges"):
        package(model, graph_of((5, 9)), tmp_path / "directed")
    assert package(model, graph_of(), tmp_path).spec.edges_without == {KEY: (ONE_WAY,)}


def test_in_degrees_rely_on_nothing(tmp_path):
    report = package(OfDestinations(), graph_of(), tmp_path, fanouts=(-1, -1))
    assert report.spec.edges_without == {}
    load_model(report.path, report.spec, graph_of((5, 9), (5, 9), (7, 7)))


def test_one_edge_outside_of_the_sample_makes_a_graph_one_way(tmp_path):
    large = graph_of((3, 1990), num_nodes=2000)
    with pytest.raises(NotServable, match="outgoing edges"):
        hopline.package(
            Normed(), large, tmp_path, name="m", fanouts=[-1] * 3, task="multiclass", check_nodes=64
        )


@pytest.mark.parametrize(
    ("times", "one_way"),
    [(lambda n: np.full(n, 7), False), (lambda n: np.arange(n), True)],
    ids=["both at once", "one after the other"],
)
def test_directions_of_other_times_are_one_way(times, one_way):
    """At a time between them, a request sees one of them."""
    assert graph_of(times=times).edges[KEY].has_one_way_edges is one_way


def test_it_is_stored_with_the_graph_and_known_to_graph_stores(tmp_path):
    for edges, expected in (((), False), (((5, 9),), True)):
        folder = tmp_path / str(expected)
        graph_of(*edges).save(folder)
        opened = Graph.open(folder)
        assert opened.edges[KEY].has_one_way_edges is expected
        assert DiskStore(opened).graph.edges[KEY].has_one_way_edges is expected


@pytest.mark.parametrize(
    ("nodes", "is_good"),
    [
        ([InlineNode(np.ones(6), {"": [4]})], False),
        ([InlineNode(np.ones(6), {}, "a"), InlineNode(np.ones(6), {"": ["a"]}, "b")], False),
        ([InlineNode(np.ones(6), {"": ["b"]}, "a"), InlineNode(np.ones(6), {"": ["a", "b"]}, "b")], True),
        ([InlineNode(np.ones(6), {})], True),
    ],
    ids=["known neighbour", "one lists the other", "each lists the other", "none"],
)
def test_an_unseen_node_may_not_have_one_way_edges(nodes, is_good, tmp_path):
    graph = graph_of()
    spec = package(Normed(), graph, tmp_path).spec
    if is_good:
        parse_inline(graph, "node", nodes, 9, (), spec)
        return
    with pytest.raises(BadRequest, match=r"neighbors: an edge .* goes one way.*both directions"):
        parse_inline(graph, "node", nodes, 9, (), spec)
