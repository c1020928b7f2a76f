"""Models that answer one row for a graph: a node's answer is that of its whole component, or a refusal."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

import hopline
from hopline.artifact import ONE_WAY
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import BadRequest, NotServable, SchemaMismatch
from hopline.graph import Graph
from hopline.types import ScoreRequest
from tests.packaging.graphs import MOLECULE_HOPS, homogeneous, molecules
from tests.packaging.live_graph import live_view


class Pooled(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = pyg.GINConv(nn.Linear(6, 8)), nn.Linear(8, 3)

    def forward(self, x, edge_index, batch):
        h = self.first(x, edge_index).relu()
        return self.last(pyg.global_add_pool(h, batch, size=1))


def package(graph, repository, fanouts, **options):
    torch.manual_seed(0)
    options = {"name": "m", "task": "multiclass", **options}
    return hopline.package(Pooled(), graph, repository, fanouts=fanouts, **options)


def by_component(model, graph):
    """The module's answers for each component alone, found by walking over edges in both directions."""
    edges = graph.edges["node__to__node"]
    into = np.repeat(np.arange(graph.num_nodes), np.diff(edges.indptr))
    pairs = list(zip(edges.indices.tolist(), into.tolist(), strict=True))
    x = torch.from_numpy(np.array(graph.nodes["node"].features))
    rows = []
    for seed in range(graph.num_nodes):
        found = {seed}
        while more := {b for a, b in pairs + [(b, a) for a, b in pairs] if a in found} - found:
            found |= more
        place = {node: i for i, node in enumerate(sorted(found))}
        own = [(place[a], place[b]) for a, b in pairs if a in found]
        with torch.no_grad():
            index = torch.tensor(own).reshape(-1, 2).T
            rows.append(model(x[sorted(found)], index, torch.zeros(len(found), dtype=torch.long))[0])
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("given", [1, 2, MOLECULE_HOPS - 1])
def test_too_few_fanouts_are_refused_with_the_number_that_is_served(given, tmp_path):
    graph = molecules()
    with pytest.raises(
        NotServable,
        match=rf"{given} fanouts were given: .*a part of the graph.*Give {MOLECULE_HOPS} fanouts",
    ):
        package(graph, tmp_path, [-1] * given)
    report = package(graph, tmp_path, [-1] * MOLECULE_HOPS)
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 99)
    (found,) = answerer.answer([ScoreRequest("m", nodes=list(range(graph.num_nodes)))])
    torch.manual_seed(0)
    np.testing.assert_allclose(found.outputs["logits"], by_component(Pooled(), graph), atol=1e-4)


def test_a_sample_of_neighbours_is_a_part_of_the_graph(tmp_path):
    for options in ({"fanouts": [3] * MOLECULE_HOPS}, {"fanouts": [-1] * MOLECULE_HOPS, "max_degree": 2}):
        with pytest.raises(NotServable, match="fanouts of -1, and no max_degree"):
            package(molecules(), tmp_path, **options)


def test_edges_of_one_direction_do_not_reach_the_whole_graph(tmp_path):
    with pytest.raises(NotServable, match=r"reach .* of the .* nodes.*in both directions"):
        package(homogeneous(num_edges=60), tmp_path, [-1] * 9)


def test_a_later_graph_that_is_deeper_or_goes_one_way_is_refused(tmp_path):
    report = package(molecules(), tmp_path, [-1] * MOLECULE_HOPS)
    assert ONE_WAY in report.spec.edges_without["node__to__node"]
    chain = np.stack([np.arange(9), np.arange(1, 10)])
    x = np.ones((10, 6), np.float32)
    deep = Graph.from_edges(np.concatenate([chain, chain[::-1]], axis=1), x)
    answerer = Answerer(load_model(report.path, report.spec, deep), ("logits",), 99)
    with pytest.raises(BadRequest, match=f"{MOLECULE_HOPS} hops reach only a part of the graph of node 0"):
        answerer.answer([ScoreRequest("m", nodes=[0])])
    for graph in (Graph.from_edges(chain, x), live_view(molecules())):
        with pytest.raises(SchemaMismatch, match="one-way edges"):
            load_model(report.path, report.spec, graph)
