"""Models that read no edges, over precomputed columns of nodes: the oracle is the module on all rows."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import MLP, SAGEConv, kge

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import PackagingError
from hopline.graph import Graph, NodeTable
from hopline.jobs.batch.npy import NpyFolder
from hopline.jobs.batch.run import BatchOptions, BatchRun
from hopline.types import InlineNode, ScoreRequest

N = 50


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x):
        return self.b(self.a(x).relu())


class Sign(nn.Module):
    """SIGN of PyG's example: a layer for the columns of each hop, which were computed before training."""

    def __init__(self):
        super().__init__()
        self.lins, self.out = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), nn.Linear(24, 3)

    def forward(self, x, x1, x2):
        hops = zip(self.lins, (x, x1, x2), strict=True)
        return self.out(torch.cat([lin(each).relu() for lin, each in hops], dim=-1))


def data():
    rng = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(N, 8, generator=rng) for name in ("x", "x1", "x2")}
    return Data(**tensors, edge_index=torch.randint(0, N, (2, 200), generator=rng))


def package(module, graph, repository, **options):
    options = {"fanouts": [], "task": "multiclass", **options}
    return hopline.package(module.eval(), graph, repository, name="m", **options)


def answers(report, graph, **request):
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 9)
    (found,) = answerer.answer([ScoreRequest("m", **request)])
    return found.outputs["logits"]


def assert_served(report, graph, rows, columns, folder):
    """Known nodes, a node of a request and a batch run."""
    found = answers(report, graph, nodes=list(range(N)))
    np.testing.assert_allclose(found, rows, atol=1e-5)
    described = [InlineNode(columns[3].tolist(), {})]
    np.testing.assert_array_equal(answers(report, graph, inline=described)[0], found[3])
    run = BatchRun(report.path, graph.path, folder / "run", BatchOptions(outputs=("logits",)))
    run.run(lambda: NpyFolder(folder / "out"))
    np.testing.assert_array_equal(np.load(folder / "out" / "logits.npy"), found)


@pytest.mark.parametrize("make", [Net, lambda: MLP([8, 16, 3], norm=None)], ids=["own", "PyG's MLP"])
def test_a_model_of_a_matrix_of_columns(tmp_path, make):
    module, given = make(), data()
    graph = Graph.from_pyg(Data(x=given.x, edge_index=given.edge_index)).save(tmp_path / "graph")
    report = package(module, graph, tmp_path / "models")
    assert report.spec.num_layers == 0
    with torch.no_grad():
        assert_served(report, graph, module(given.x), given.x, tmp_path)


def test_a_model_of_the_columns_of_several_hops(tmp_path):
    module, given = Sign(), data()
    graph = Graph.from_pyg(given, columns=["x1", "x2"]).save(tmp_path / "graph")
    report = package(module, graph, tmp_path / "models")
    columns = torch.cat([given.x, given.x1, given.x2], 1)
    with torch.no_grad():
        assert_served(report, graph, module(given.x, given.x1, given.x2), columns, tmp_path)


def test_a_graph_without_edges_and_an_argument_of_another_name(tmp_path):
    module, given = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)), data()
    graph = Graph.from_tables({"node": NodeTable(given.x.numpy())}, {}).save(tmp_path / "graph")
    report = package(module, graph, tmp_path / "models", arguments={"input": "features"})
    with torch.no_grad():
        assert_served(report, graph, module(given.x), given.x, tmp_path)


class Transductive(nn.Module):
    """Keeps the edges of training."""

    def __init__(self, edge_index, layer):
        super().__init__()
        self.register_buffer("edges", edge_index)
        self.layer = layer

    def forward(self, x):
        if isinstance(self.layer, SAGEConv):
            return self.layer(x, self.edges)
        return self.layer(torch.zeros_like(x).index_add(0, self.edges[1], x[self.edges[0]]))


@pytest.mark.parametrize("layer", [SAGEConv(8, 3), nn.Linear(8, 3)], ids=["a convolution", "its own sum"])
def test_edges_in_a_buffer_are_no_model_without_edges(tmp_path, layer):
    given = data()
    graph = Graph.from_pyg(Data(x=given.x, edge_index=given.edge_index))
    with pytest.raises(PackagingError, match=r"edge_index|node by node|not from a buffer"):
        package(Transductive(given.edge_index, layer), graph, tmp_path)


@pytest.mark.parametrize("kind", [kge.TransE, kge.DistMult, kge.ComplEx, kge.RotatE])
def test_a_model_of_triples_is_refused_with_what_to_do(tmp_path, kind):
    graph = Graph.from_pyg(Data(x=torch.randn(N, 8), edge_index=data().edge_index))
    with pytest.raises(PackagingError, match=r"scores pairs of nodes.*head=.*task='embedding'"):
        package(kind(N, 3, 16), graph, tmp_path, task="regression")
