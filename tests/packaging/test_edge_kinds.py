"""Models that rely on the absence of a kind of edges: served without such edges, refused with them."""

import msgspec
import numpy as np
import pytest
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.utils import degree

import hopline
from hopline.artifact import NEGATIVE, ONE_WAY, read_spec
from hopline.engine.answer import Answerer
from hopline.engine.inline import parse_inline
from hopline.engine.model import load_model
from hopline.errors import BadRequest, NotSplittable, SchemaMismatch
from hopline.graph import EdgeTable, Graph, NodeTable
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


#: What a model would rely on that reads out-degrees of the in-neighbours' lists.
NO_ONE_WAY = {KEY: (ONE_WAY,)}


@pytest.mark.parametrize("graph", [graph_of(), graph_of((5, 9))], ids=["both directions", "one way"])
@pytest.mark.parametrize("model", [Normed, lambda: pyg.ChebConv(6, 3, 2)], ids=["degree", "ChebConv"])
def test_out_degrees_need_the_lists_of_both_directions(model, graph, tmp_path):
    with pytest.raises(NotSplittable, match=r"both_directions=True"):
        package(model(), graph, tmp_path)


def test_a_model_that_relies_on_both_directions_is_refused_on_a_graph_with_one_way_edges(tmp_path):
    graph = graph_of()
    report = package(OfDestinations(), graph, tmp_path, fanouts=(-1, -1))
    spec = msgspec.structs.replace(report.spec, edges_without=NO_ONE_WAY)
    load_model(report.path, spec, graph)
    for later in (graph_of((5, 9)), live_view(graph)):
        with pytest.raises(SchemaMismatch, match=r"no one-way edges.*both directions"):
            load_model(report.path, spec, later)


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
@pytest.mark.parametrize("graph", [graph_of(), graph_of((5, 9))], ids=["both directions", "one way"])
def test_out_degrees_beyond_those_of_the_sample_are_found(model, graph, tmp_path):
    with pytest.raises(NotSplittable, match="both_directions=True"):
        package(model, graph, tmp_path)


def test_in_degrees_rely_on_nothing(tmp_path):
    report = package(OfDestinations(), graph_of(), tmp_path, fanouts=(-1, -1))
    assert report.spec.edges_without == {}
    load_model(report.path, report.spec, graph_of((5, 9), (5, 9), (7, 7)))


def test_one_edge_outside_of_the_sample_makes_a_graph_one_way():
    assert graph_of((3, 1990), num_nodes=2000).edges[KEY].has_one_way_edges


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
    report = package(OfDestinations(), graph, tmp_path, fanouts=(-1, -1))
    model = load_model(report.path, report.spec, graph)
    model.spec = msgspec.structs.replace(report.spec, edges_without=NO_ONE_WAY)
    if is_good:
        parse_inline(model, nodes, 9)
        return
    with pytest.raises(BadRequest, match=r"neighbors: an edge .* goes one way.*both directions"):
        parse_inline(model, nodes, 9)


def weighted(low=0.5, signed=False, both_directions=False):
    """Pairs in both directions with one weight; `low` is the weight of one of them."""
    graph = graph_of()
    into = np.repeat(np.arange(60), np.diff(graph.edges[KEY].indptr))
    ends = np.stack([graph.edges[KEY].indices, into]).astype(np.int64)
    weight = (0.2 + (ends.min(0) * 7 + ends.max(0)) % 10 / 5).astype(np.float32)
    pair = (ends.min(0) == ends.min(0)[0]) & (ends.max(0) == ends.max(0)[0])
    weight[pair] = low
    nodes = {"node": NodeTable(np.array(graph.nodes["node"].features))}
    edges = {("node", "to", "node"): EdgeTable(ends, weight=weight, signed_weight=signed, by_row=True)}
    return Graph.from_tables(nodes, edges, both_directions=both_directions)


class Weighted(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index, edge_weight):
        return self.conv(x, edge_index, edge_weight)


def test_weights_of_the_whole_graph_are_served_where_none_is_negative(tmp_path):
    graph = weighted(both_directions=True)
    report = package(Weighted(pyg.ChebConv(6, 3, 2)), graph, tmp_path, fanouts=(-1, -1))
    assert read_spec(report.path).edges_without == {KEY: (NEGATIVE,)}
    assert any("having no negative weights" in note for note in report.notes)
    load_model(report.path, report.spec, weighted(low=0.9, both_directions=True))
    for later in (weighted(low=-0.5, both_directions=True), weighted(signed=True, both_directions=True)):
        with pytest.raises(SchemaMismatch, match=r"may be negative.*keep them >= 0"):
            load_model(report.path, report.spec, later)


@pytest.mark.parametrize("conv", [pyg.GCNConv(6, 3), pyg.GraphConv(6, 3), pyg.LEConv(6, 3)])
def test_layers_that_weigh_messages_do_not_rely_on_the_sign(conv, tmp_path):
    report = package(Weighted(conv), weighted(), tmp_path, fanouts=(-1,))
    assert NEGATIVE not in report.spec.edges_without.get(KEY, ())
    load_model(report.path, report.spec, weighted(low=-0.5))


def test_a_model_that_relies_on_the_sign_of_weights_is_served_on_a_live_graph_without_negative_ones(
    tmp_path,
):
    graph = weighted()
    report = package(Weighted(pyg.GraphConv(6, 3)), graph, tmp_path, fanouts=(-1,))
    spec = msgspec.structs.replace(report.spec, edges_without={KEY: (NEGATIVE,)})
    model = load_model(report.path, spec, live_view(graph))
    with pytest.raises(SchemaMismatch, match="may be negative"):
        load_model(report.path, spec, live_view(weighted(signed=True)))
    node = InlineNode(np.ones(6), {"": [5, 6]}, edge_weight={"": [1, -1]})
    (refused,) = Answerer(model, ("logits",), 99).answer([ScoreRequest("m", inline=[node])])
    assert isinstance(refused, BadRequest)
    assert "a weight is negative" in str(refused)
