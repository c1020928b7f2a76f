"""Copies of nodes, as the gate has requests describe them."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.probe import chosen, copied
from hopline.types import InlineNode, ScoreRequest
from tests.packaging.graphs import hetero, homogeneous

EDGE = "node__to__node"


class Gcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = pyg.GCNConv(6, 8), pyg.GCNConv(8, 3)

    def forward(self, x, edge_index):
        return self.last(self.first(x, edge_index).relu(), edge_index)


def answers(model, check):
    with torch.no_grad():
        x = torch.from_numpy(check.features["node"])
        return model(x, torch.from_numpy(check.edges[EDGE].edge_index)).numpy()


@pytest.mark.parametrize("linked", [False, True])
def test_a_copy_has_the_answer_of_its_original_and_changes_no_other(linked):
    torch.manual_seed(0)
    model, check = Gcn().eval(), CheckGraph.of(homogeneous())
    of = chosen(check, "node", np.arange(40))
    unseen = copied(check, "node", of, linked=linked)
    before, after = answers(model, check), answers(model, unseen.check)
    np.testing.assert_allclose(after[:40], before, atol=1e-6)
    np.testing.assert_allclose(after[40:], before[of], atol=1e-5)


@pytest.mark.parametrize("linked", [False, True])
def test_a_description_says_what_the_graph_has(linked):
    check = CheckGraph.of(homogeneous(attr_dim=2, weight=True))
    of = chosen(check, "node", np.arange(40))
    unseen = copied(check, "node", of, linked=linked)
    edges = unseen.check.edges[EDGE]
    refer = 0
    for i, node in enumerate(unseen.nodes):
        at = slice(edges.indptr[40 + i], edges.indptr[41 + i])
        named = [f"copy {row - 40}" if row >= 40 else row for row in edges.indices[at].tolist()]
        assert sorted(map(str, named)) == sorted(map(str, node.neighbors[EDGE]))
        assert node.id == f"copy {i}"
        np.testing.assert_array_equal(edges.attr[at], node.edge_attr[EDGE])
        np.testing.assert_array_equal(edges.weight[at], node.edge_weight[EDGE])
        refer += sum(isinstance(name, str) and name != node.id for name in node.neighbors[EDGE])
    assert (refer > 0) == linked


def test_neighbours_of_another_type_are_never_copies():
    check = CheckGraph.of(hetero())
    unseen = copied(check, "paper", np.array([2, 7]), linked=True)
    written = unseen.check.edges["author__writes__paper"]
    assert written.indices.max() < 30
    assert len(written.indptr) == 43
    assert len(unseen.check.edges["paper__by__author"].indptr) == 31
    assert all(
        isinstance(name, int) for node in unseen.nodes for name in node.neighbors["author__writes__paper"]
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("given", [False, True])
def test_weights_of_an_unseen_node_are_read_only_by_models_that_read_weights(given, tmp_path):
    graph = homogeneous(weight=True)
    report = hopline.package(Gcn(), graph, tmp_path, name="m", fanouts=[-1, -1], task="regression")
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 99)
    edges = graph.edges[EDGE]
    at = slice(edges.indptr[2], edges.indptr[3])
    node = InlineNode(
        np.asarray(graph.nodes["node"].features[2]),
        {EDGE: edges.indices[at].tolist()},
        edge_weight={EDGE: edges.weight[at]} if given else {},
    )
    unseen, known = answerer.answer([ScoreRequest("m", inline=[node]), ScoreRequest("m", nodes=[2])])
    np.testing.assert_allclose(unseen.outputs["logits"], known.outputs["logits"], atol=1e-5)


class Readers(nn.Module):
    """Authors read papers; the rows of authors themselves are read unchanged."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv((6, 5), 4)

    def forward(self, x_dict, edge_index_dict):
        return self.conv((x_dict["paper"], x_dict["author"]), edge_index_dict["paper", "by", "author"])


def test_a_type_whose_raw_features_are_all_that_is_read_has_unseen_nodes(tmp_path):
    torch.manual_seed(0)
    options = {"target": "author", "fanouts": [-1], "task": "embedding"}
    report = hopline.package(Readers(), hetero(), tmp_path, name="m", **options)
    assert "author" not in report.spec.levels[0]
    assert report.spec.parity["max_abs_diff"] < 1e-5
