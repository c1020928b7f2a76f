"""Edges of several types in one softmax or one sum, as stages, equal PyG."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.utils import scatter, softmax

import hopline
from hopline.engine.model import load_model
from hopline.errors import NotSplittable
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.packaging.check_graph import CheckGraph
from tests.packaging.graphs import hetero, relational
from tests.packaging.in_torch import assert_equals_pyg, split
from tests.packaging.test_dense import trained

#: Not in the order of their names: HGTConv needs that of its metadata.
EDGES = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")]
METADATA = (["paper", "author"], EDGES)


class Heterogeneous(nn.Module):
    def __init__(self, *convs):
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x_dict, edge_index_dict):
        for conv in self.convs:
            x_dict = {name: rows.tanh() for name, rows in conv(x_dict, edge_index_dict).items()}
        return x_dict


def hgt(*widths, heads=2, metadata=METADATA):
    model = Heterogeneous(*(pyg.HGTConv(*pair, metadata, heads) for pair in pairwise(widths)))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "skip" in name or "p_rel" in name:
                parameter.copy_(torch.rand(parameter.shape) + 0.5)
    return trained(model)


@pytest.mark.sample(1)
@pytest.mark.parametrize("target", ["paper", "author"])
@pytest.mark.parametrize("widths", [(6, 6, 6), (6, 8, 4)], ids=str)
def test_hgt_equals_pyg(widths, target):
    assert_equals_pyg(hgt(*widths), hetero(author_dim=6), target)


@pytest.mark.release
def test_hgt_over_rows_of_several_widths_equals_pyg():
    assert_equals_pyg(hgt({"paper": 6, "author": 5}, 4, 4, heads=4), hetero(), "paper")


def test_a_type_to_which_no_edges_lead_equals_pyg():
    metadata = (["paper", "author"], EDGES[:2])
    rng = np.random.default_rng(0)
    nodes = {name: NodeTable(rng.normal(size=(20, 6)).astype(np.float32)) for name in ("paper", "author")}
    graph = Graph.from_tables(
        nodes, {edge: EdgeTable(rng.integers(0, 18, (2, 60))) for edge in metadata[1]}
    )

    class Once(Heterogeneous):
        def forward(self, x_dict, edge_index_dict):
            first = self.convs[0](x_dict, edge_index_dict)
            return self.convs[1]({**x_dict, **first}, edge_index_dict)["paper"]

    model = Once(*hgt(6, 6, 6, metadata=metadata).convs)
    assert_equals_pyg(trained(model), graph, "paper")


@pytest.mark.release
def test_hgt_is_served_as_stages(tmp_path):
    """Isolated nodes too; the answers of a batch are those of single nodes, to the bit."""
    graph, model = hetero(author_dim=6), hgt(6, 6, 6)
    options = {"name": "m", "task": "embedding", "target": "paper", "fanouts": [-1, -1]}
    report = hopline.package(model, graph, tmp_path, **options)
    served, ids = load_model(report.path, report.spec, graph), np.arange(40)
    rows = served.final_states({"paper": ids})["paper"].copy()
    for node in ids[::3]:
        assert (served.final_states({"paper": ids[node : node + 1]})["paper"][0] == rows[node]).all()
    check = CheckGraph.of(graph)
    features = {name: torch.from_numpy(check.features[name]) for name in METADATA[0]}
    edges = {edge: torch.from_numpy(check.edges["__".join(edge)].edge_index) for edge in EDGES}
    with torch.no_grad():
        expected = model(features, edges)["paper"].numpy()
    np.testing.assert_allclose(rows, expected, atol=1e-5)


class Normed(nn.Module):
    """Layers for each type of node, by dictionary and by number."""

    def __init__(self):
        super().__init__()
        self.lin, self.norm = (
            pyg.HeteroDictLinear(dict.fromkeys(METADATA[0], 6), 6),
            pyg.HeteroBatchNorm(6, 3),
        )
        self.last = pyg.HeteroLinear(6, 4, 3)
        self.conv = pyg.HeteroConv({edge: pyg.SAGEConv((6, 6), 6) for edge in EDGES})

    def forward(self, x_dict, edge_index_dict):
        x = self.conv(self.lin(x_dict), edge_index_dict)["paper"]
        kinds = (x_dict["paper"][:, 0] > 0).long() + (x_dict["paper"][:, 1] > 0).long()
        return self.last(self.norm(x, kinds), kinds)


def test_layers_for_each_type_of_node_equal_pyg():
    model = trained(Normed())
    model.norm.running_var.uniform_(0.5, 2.0)
    model.norm.running_mean.normal_()
    assert_equals_pyg(model, hetero(author_dim=6), "paper")


class Relations(nn.Module):
    def __init__(self, *convs):
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x, edge_index, edge_type):
        for conv in self.convs:
            x = conv(x, edge_index, edge_type).tanh()
        return x


class Embedded(pyg.MessagePassing):
    """As CompGCN: rows of relations are subtracted from those of neighbours."""

    def __init__(self, combine="sub"):
        super().__init__(aggr="add")
        self.relations = nn.Embedding(3, 6)
        self.lin, self.combine = nn.Linear(6, 6), combine

    def forward(self, x, edge_index, edge_type):
        return self.lin(self.propagate(edge_index, x=x, edge_type=edge_type)) + x

    def message(self, x_j, edge_type):
        if self.combine == "sub":
            return x_j - self.relations(edge_type)
        return x_j * self.relations.weight[edge_type]


class Joint(pyg.MessagePassing):
    """A softmax over edges of all relations, in which each has its own weight."""

    def __init__(self):
        super().__init__(aggr="add")
        self.scores = nn.Parameter(torch.randn(3))

    def forward(self, x, edge_index, edge_type):
        return self.propagate(edge_index, x=x, edge_type=edge_type)

    def message(self, x_i, x_j, edge_type, index, size_i):
        logits = (x_i * x_j).sum(-1, keepdim=True) * self.scores[edge_type].unsqueeze(1)
        return softmax(logits, index, num_nodes=size_i) * x_j


def rgat(**options):
    return lambda: pyg.RGATConv(6, 6, 3, **options)


RELATIONAL = {
    "CompGCN sub": lambda: Embedded("sub"),
    "CompGCN mult": lambda: Embedded("mult"),
    "FiLMConv": lambda: pyg.FiLMConv(6, 6, num_relations=3),
    "GCNConv": lambda: Ignoring(pyg.GCNConv(6, 6)),
    "SAGEConv": lambda: Ignoring(pyg.SAGEConv(6, 6, aggr="max")),
    "RGATConv": rgat(),
    "RGATConv bases": rgat(num_bases=2, heads=2, concat=False),
    "RGATConv blocks": rgat(num_blocks=2),
    "RGATConv multiplicative": rgat(attention_mode="multiplicative-self-attention", dim=1),
    "RGATConv additive": rgat(mod="additive"),
    "RGATConv scaled": rgat(mod="scaled"),
    "RGATConv f-scaled": rgat(mod="f-scaled"),
    "softmax": lambda: Joint(),
}


class Ignoring(nn.Module):
    """A convolution over the edges of all relations alike."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index, edge_type):
        return self.conv(x, edge_index)


@pytest.mark.sample(4)
@pytest.mark.parametrize("make", RELATIONAL.values(), ids=RELATIONAL)
def test_edges_of_all_relations_in_one_list_equal_pyg(make):
    assert_equals_pyg(trained(Relations(make(), make())), relational())


class Lists(nn.Module):
    """Message passing by hand over lists of edges of several types."""

    def __init__(self, lists):
        super().__init__()
        self.lists, self.lin = lists, nn.Linear(6, 6)

    def forward(self, x_dict, edge_index_dict):
        papers = x_dict["paper"]
        cites, writes, by = (edge_index_dict[edge] for edge in EDGES)
        given = {"cites": cites, "writes": writes, "by": by, "reverse": cites.flip(0)}
        edges = torch.cat([given[name] for name in self.lists], dim=1)
        ends = {"cites": papers, "writes": self.lin(x_dict["author"]), "by": papers, "reverse": papers}
        rows = torch.cat([ends[name][given[name][0]] for name in self.lists])
        weights = softmax(rows.sum(1, keepdim=True), edges[1], num_nodes=papers.size(0))
        return scatter(weights * rows, edges[1], dim=0, dim_size=papers.size(0), reduce="sum") + papers


@pytest.mark.parametrize(
    "lists",
    [
        ["cites", "writes"],
        ["writes", "cites"],
        ["writes"],
        ["cites", "cites"],
        ["reverse", "writes", "cites"],
    ],
    ids=str,
)
def test_lists_of_edges_one_after_another_equal_their_own_answer(lists):
    assert_equals_pyg(trained(Lists(lists)), hetero(author_dim=6, both="reverse" in lists), "paper")


@pytest.mark.parametrize(
    ("lists", "reason"),
    [(["cites", "reverse"], "both_directions=True"), (["cites", "by"], "several node types")],
    ids=str,
)
def test_lists_of_edges_to_other_nodes_are_refused(lists, reason):
    with pytest.raises(NotSplittable, match=reason):
        split(trained(Lists(lists)), hetero(author_dim=6), "paper")
