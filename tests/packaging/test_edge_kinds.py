"""Models that rely on the absence of a kind of edges: served without such edges, refused with them."""

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import degree, is_undirected, scatter, softmax, to_undirected

import hopline
from hopline.artifact import NEGATIVE, read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import ArtifactError, BadRequest, NotServable, NotSplittable, SchemaMismatch
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import InlineNode, ScoreRequest
from tests.packaging.live_graph import live_view

KEY = "node__to__node"


def graph_of(*further, num_nodes=60):
    """Random pairs in both directions, and further edges."""
    rng = np.random.default_rng(0)
    pairs = np.unique(np.sort(rng.integers(0, num_nodes, (2, 2 * num_nodes)), axis=0), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    edges = np.concatenate([pairs, pairs[::-1], np.array(further, np.int64).reshape(-1, 2).T], axis=1)
    x = rng.normal(size=(num_nodes, 6)).astype(np.float32)
    return Graph.from_edges(edges, x)


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
    return hopline.package(model, graph, repository, name="m", fanouts=list(fanouts), task="regression")


@pytest.mark.sample(1)
@pytest.mark.parametrize("graph", [graph_of(), graph_of((5, 9))], ids=["both directions", "one way"])
@pytest.mark.parametrize("model", [Normed, lambda: pyg.ChebConv(6, 3, 2)], ids=["degree", "ChebConv"])
def test_out_degrees_need_the_lists_of_both_directions(model, graph, tmp_path):
    with pytest.raises(NotSplittable, match=r"both_directions=True"):
        package(model(), graph, tmp_path)


def test_an_artifact_of_an_earlier_release_that_needs_both_directions_is_refused(tmp_path):
    """Earlier releases served out-degrees as in-degrees on a graph without one-way edges."""
    graph = graph_of()
    report = package(OfDestinations(), graph, tmp_path, fanouts=(-1, -1))
    spec = msgspec.structs.replace(report.spec, edges_without={KEY: ("one-way edges",)})
    for later in (graph, live_view(graph)):
        with pytest.raises(ArtifactError, match=r"relies on .* having no one-way edges.*package it again"):
            load_model(report.path, spec, later)


class Read(nn.Module):
    """What a function reads of the edges, behind a layer."""

    def __init__(self, reads):
        super().__init__()
        self.lin, self.conv, self.reads = nn.Linear(6, 3), pyg.GraphConv(3, 3), reads

    def forward(self, x, edge_index):
        h = self.lin(x)
        return self.conv(h, edge_index) + self.reads(h, edge_index)


def summed(h, edge_index):
    return scatter(h[edge_index[0]], edge_index[1], 0, h.size(0))


def turned_over(edge_index):
    """Each edge against its direction, written in a way of its own."""
    first, second = edge_index.unbind(0)
    return torch.stack([second, first])


#: Equal to what enters a node where each edge has its reverse.
AGAINST = {
    "sources grouped by themselves": lambda h, e: scatter(h[e[0]], e[0], 0, h.size(0)),
    "destinations grouped by sources": lambda h, e: scatter(h[e[1]], e[0], 0, h.size(0)),
    "counted sources": lambda h, e: h * degree(e[0], h.size(0))[:, None],
    "scatter of ones": lambda h, e: h * scatter(torch.ones(e.size(1)), e[0], 0, h.size(0))[:, None],
    "counted as long": lambda h, e: h / degree(e[0], h.size(0), dtype=torch.long).clamp(min=1)[:, None],
    "bincount": lambda h, e: h * torch.bincount(e[0], minlength=h.size(0))[:, None],
    "index_add": lambda h, e: torch.zeros_like(h).index_add(0, e[0], h[e[1]]),
    "flip": lambda h, e: summed(h, e.flip(0)),
    "index": lambda h, e: summed(h, e[[1, 0]]),
    "roll": lambda h, e: summed(h, e.roll(1, 0)),
    "slice": lambda h, e: summed(h, torch.cat([e[1:], e[:1]])),
    "transposed": lambda h, e: summed(h, e.t().flip(1).t()),
    "stack": lambda h, e: summed(h, turned_over(e)),
    "both": lambda h, e: summed(h, torch.cat([e, e.flip(0)], 1)) / 2,
    "undirected": lambda h, e: summed(h, to_undirected(e, num_nodes=h.size(0))),
    "is undirected": lambda h, e: summed(h, e) * (1.0 if is_undirected(e) else 2.0),
    "softmax over sources": lambda h, e: scatter(
        softmax(h[e[1]], e[0], num_nodes=h.size(0)) * h[e[1]], e[0], 0, h.size(0)
    ),
    "norm of sources": lambda h, e: scatter(
        h[e[0]] * (degree(e[0], h.size(0)).clamp(min=1) ** -0.5)[e[0]][:, None], e[1], 0, h.size(0)
    ),
    "gcn against": pyg.GCNConv(3, 3, flow="target_to_source"),
    "sage against": pyg.SAGEConv(3, 3, flow="target_to_source"),
    "gat against": pyg.GATConv(3, 3, flow="target_to_source"),
    "norm against": lambda h, e: summed(h, gcn_norm(e, None, h.size(0), flow="target_to_source")[0]),
    "DirGNN": pyg.DirGNNConv(pyg.SAGEConv(3, 3)),
    "ChebConv": pyg.ChebConv(3, 3, 3),
    "HypergraphConv": pyg.HypergraphConv(3, 3),
}
#: These do not read against the edges.
ALONG = {
    "GCNConv": pyg.GCNConv(3, 3),
    "GCNConv without loops": pyg.GCNConv(3, 3, add_self_loops=False),
    "in-degrees of sources": lambda h, e: summed(h * degree(e[1], h.size(0))[:, None], e),
    "softmax of out-edges of none": lambda h, e: scatter(
        softmax(h[e[0]], e[1], num_nodes=h.size(0)) * h[e[0]], e[1], 0, h.size(0)
    ),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("reads", AGAINST.values(), ids=AGAINST)
def test_what_is_read_against_the_edges_is_refused_though_each_edge_has_its_reverse(reads, tmp_path):
    """The answers are wrong for a later edge without a reverse, which a live graph can get."""
    with pytest.raises((NotSplittable, NotServable)):
        package(Read(reads), graph_of(), tmp_path, fanouts=(-1, -1))


@pytest.mark.sample(1)
@pytest.mark.parametrize("reads", ALONG.values(), ids=ALONG)
def test_what_is_read_along_the_edges_is_right_for_later_ones_without_a_reverse(reads, tmp_path):
    torch.manual_seed(0)
    model = Read(reads).eval()
    fanouts = (-1,) * (2 if reads is ALONG["in-degrees of sources"] else 1)
    report = package(model, graph_of(), tmp_path, fanouts)
    assert report.spec.edges_without == {}
    later = graph_of((5, 9), (7, 7), (5, 9), (2, 31))
    found = Answerer(load_model(report.path, report.spec, later), ("logits",), 9)
    (answer,) = found.answer([ScoreRequest("m", nodes=list(range(60)))])
    edges = later.edges[KEY]
    into = np.repeat(np.arange(60), np.diff(edges.indptr))
    ends = torch.from_numpy(np.stack([edges.indices, into]).astype(np.int64))
    with torch.no_grad():
        expected = model(torch.from_numpy(np.array(later.nodes["node"].features)), ends)
    np.testing.assert_allclose(answer.outputs["logits"], expected, atol=1e-4)


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


@pytest.mark.sample(3)
@pytest.mark.parametrize("model", [Followed(25), Followed(25, of_neighbours=True), Followed(400)])
@pytest.mark.parametrize("graph", [graph_of(), graph_of((5, 9))], ids=["both directions", "one way"])
def test_out_degrees_beyond_those_of_the_sample_are_found(model, graph, tmp_path):
    with pytest.raises(NotSplittable, match="both_directions=True"):
        package(model, graph, tmp_path)


def test_in_degrees_rely_on_nothing(tmp_path):
    report = package(OfDestinations(), graph_of(), tmp_path, fanouts=(-1, -1))
    assert report.spec.edges_without == {}
    load_model(report.path, report.spec, graph_of((5, 9), (5, 9), (7, 7)))


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


@pytest.mark.release
def test_weights_of_the_whole_graph_are_served_where_none_is_negative(tmp_path):
    graph = weighted(both_directions=True)
    report = package(Weighted(pyg.ChebConv(6, 3, 2)), graph, tmp_path, fanouts=(-1, -1))
    assert read_spec(report.path).edges_without == {KEY: (NEGATIVE,)}
    assert any("having no negative weights" in note for note in report.notes)
    load_model(report.path, report.spec, weighted(low=0.9, both_directions=True))
    for later in (weighted(low=-0.5, both_directions=True), weighted(signed=True, both_directions=True)):
        with pytest.raises(SchemaMismatch, match=r"may be negative.*keep them >= 0"):
            load_model(report.path, report.spec, later)


@pytest.mark.sample(1)
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
