"""Modules that score pairs themselves, as in PyG's link prediction, are packaged unchanged or refused."""

import random
import time

import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import PackagingError
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import ScoredEdge, ScoreRequest
from tests.engine import zoo
from tests.engine.test_scored_edges import PAID_BY, PAYS, SHOPS, USERS, Encoder
from tests.packaged import package
from tests.packaging.graphs import homogeneous


class Dot(nn.Module):
    """As in PyG's examples/link_pred.py, with the decoder in forward."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = pyg.GCNConv(6, 8), pyg.GCNConv(8, 4)

    def encode(self, x, edge_index):
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    def forward(self, x, edge_index, edge_label_index):
        z = self.encode(x, edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(dim=-1)


class Unpacked(Dot):
    def __init__(self):
        super().__init__()
        self.mlp = pyg.MLP([8, 5, 1], norm=None)

    def forward(self, x, edge_index, edge_label_index):
        z = self.encode(x, edge_index)
        src, dst = edge_label_index
        return self.mlp(torch.cat([z[src], z.index_select(0, dst)], dim=-1)).view(-1)


class EdgeDecoder(nn.Module):
    """As in PyG's examples/hetero/hetero_link_pred.py."""

    def __init__(self, width=0):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(16 + width, 8), nn.Linear(8, 1)

    def forward(self, z_dict, edge_label_index, *rows):
        row, col = edge_label_index
        z = torch.cat([z_dict["user"][row], z_dict["shop"][col], *rows], dim=-1)
        return self.lin2(self.lin1(z).relu()).view(-1)


class Hetero(nn.Module):
    def __init__(self, width=0):
        super().__init__()
        self.encoder, self.decoder = Encoder(), EdgeDecoder(width)

    def forward(self, x_dict, edge_index_dict, edge_label_index):
        return self.decoder(self.encoder(x_dict, edge_index_dict), edge_label_index)


class WithRows(Hetero):
    def __init__(self):
        super().__init__(2)

    def forward(self, x_dict, edge_index_dict, edge_label_index, edge_label_attr):
        return self.decoder(self.encoder(x_dict, edge_index_dict), edge_label_index, edge_label_attr)


@pytest.fixture(scope="module")
def shops():
    rng = np.random.default_rng(1)
    ends = np.stack([rng.integers(0, USERS, 90), rng.integers(0, SHOPS, 90)])
    nodes = {
        name: NodeTable(rng.normal(size=(n, 4)).astype("f4"))
        for name, n in (("user", USERS), ("shop", SHOPS))
    }
    attr = rng.normal(size=(90, 2)).astype("f4")
    edges = {PAYS: EdgeTable(ends, attr=attr), PAID_BY: EdgeTable(ends[::-1])}
    return Graph.from_tables(nodes, edges), torch.tensor(ends)


def scores(report, graph, sources, targets, rows=None):
    answerer = Answerer(load_model(report.path, read_spec(report.path), graph), ("logits",), 99)
    given = {"pairs": (sources, targets)}
    if rows is not None:
        given = {
            "edges": tuple(
                ScoredEdge(a, b, attr=row)
                for a, b, row in zip(sources, targets, rows.tolist(), strict=True)
            )
        }
    (outcome,) = answerer.answer([ScoreRequest("m", **given)])
    return outcome.outputs["logits"][:, 0]


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [Dot, Unpacked])
def test_a_model_of_pairs_of_one_type_is_packaged_unchanged(tmp_path, kind):
    torch.manual_seed(2)
    module, graph = kind().train(), homogeneous()
    report = package(module, graph, tmp_path, name="m", fanouts=[-1, -1], task="binary")
    assert all(each.training for each in module.modules())
    module.eval()
    at = np.random.default_rng(0).integers(0, graph.num_nodes, (2, 40))
    with torch.no_grad():
        wanted = module(*zoo.tensors(graph, "homogeneous")[:2], torch.tensor(at)).numpy()
    ids = (graph.node().ids.external(side) for side in at)
    np.testing.assert_allclose(scores(report, graph, *map(list, ids)), wanted, atol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [Hetero, WithRows])
def test_a_model_of_two_types_and_of_rows_of_edges(tmp_path, shops, kind):
    torch.manual_seed(2)
    (graph, ends), module = shops, kind().eval()
    report = package(
        module, graph, tmp_path, name="m", fanouts=[-1, -1], task="binary", target=("user", "shop")
    )
    rng = np.random.default_rng(0)
    at = rng.integers(0, USERS, 40), rng.integers(0, SHOPS, 40)
    rows = torch.tensor(rng.normal(size=(40, 2)).astype("f4"))
    x = {name: torch.tensor(graph.nodes[name].features) for name in ("user", "shop")}
    pairs = torch.tensor(np.stack(at))
    with torch.no_grad():
        given = (rows,) if kind is WithRows else ()
        wanted = module(x, {PAYS: ends, PAID_BY: ends.flip(0)}, pairs, *given).numpy()
    found = scores(report, graph, at[0].tolist(), at[1].tolist(), rows if given else None)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert report.spec.head.edge_type == ("user__pays__shop" if given else "")


class ByCount(Dot):
    def forward(self, x, edge_index, edge_label_index):
        return super().forward(x, edge_index, edge_label_index) / edge_label_index.size(1)


class ByMean(Dot):
    def forward(self, x, edge_index, edge_label_index):
        z = self.encode(x, edge_index)
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1) - z.mean()


class Branches(Dot):
    def forward(self, x, edge_index, edge_label_index):
        if edge_label_index[0, 0] == edge_label_index[1, 0]:
            x = x * 2
        return super().forward(x, edge_index, edge_label_index)


class EncodesPairs(Dot):
    def forward(self, x, edge_index, edge_label_index):
        z = self.encode(x, torch.cat([edge_index, edge_label_index], dim=1))
        return (z[edge_label_index[0]] * z[edge_label_index[1]]).sum(-1)


@pytest.mark.parametrize("kind", [ByCount, ByMean, Branches, EncodesPairs])
def test_code_that_cannot_be_separated_is_refused_with_what_to_write(tmp_path, kind):
    with pytest.raises(PackagingError, match="cannot be separated") as raised:
        package(kind().eval(), homogeneous(), tmp_path, name="m", fanouts=[-1, -1], task="binary")
    for line in ("class Head(torch.nn.Module)", "def forward(self, h_src, h_dst)", "head=Head()"):
        assert line in str(raised.value)


class Rolls(Dot):
    def forward(self, x, edge_index, edge_label_index):
        return super().forward(x, edge_index, edge_label_index) * (1 + random.random())


class Ticks(Dot):
    def forward(self, x, edge_index, edge_label_index):
        return super().forward(x, edge_index, edge_label_index) * (1 + 1e-9 * time.time())


class Counts(Dot):
    calls = 0

    def forward(self, x, edge_index, edge_label_index):
        self.calls += 1
        return super().forward(x, edge_index, edge_label_index) * self.calls


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", [Rolls, Ticks, Counts])
def test_what_would_be_a_constant_of_the_trace_is_refused(tmp_path, kind):
    with pytest.raises(PackagingError):
        package(kind().eval(), homogeneous(), tmp_path, name="m", fanouts=[-1, -1], task="binary")
