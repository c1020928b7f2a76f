"""Arguments of forward: usual and unusual calls, wrappers, and what is not a model of nodes."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch_geometric.transforms as T
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data

import hopline
from hopline.errors import PackagingError
from hopline.graph import Graph
from tests.packaging.graphs import hetero, homogeneous


def package(model, graph, repository, **options):
    options = {"name": "m", "fanouts": [-1, -1], "task": "multiclass", **options}
    return hopline.package(model, graph, repository, **options)


class Two(nn.Module):
    def __init__(self, conv=pyg.SAGEConv, **options):
        super().__init__()
        self.first, self.last = conv(6, 8, **options), conv(8, 3, **options)

    def run(self, x, *edges):
        return self.last(self.first(x, *edges).relu(), *edges)


class TakesData(Two):
    def forward(self, data):
        return self.run(data.x, data.edge_index)


class TakesGraph(Two):
    def forward(self, graph):
        return self.run(graph.x, graph.edge_index)


class NeedsBatch(Two):
    def forward(self, x, edge_index, batch):
        return self.run(x, edge_index)


class OtherNames(Two):
    def forward(self, X, A):
        return self.run(X, A)


class NoNames(Two):
    def forward(self, *args):
        return self.run(*args)


@pytest.mark.parametrize("model", [TakesData, TakesGraph, NeedsBatch, OtherNames, NoNames])
def test_usual_signatures_are_split(model, tmp_path):
    assert package(model(), homogeneous(), tmp_path).spec.runtime == "onnx"


def test_a_model_of_hetero_data_gets_it(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            keys = {("paper", "cites", "paper"): 6, ("author", "writes", "paper"): 5}
            with pytest.warns(UserWarning, match="author"):
                self.conv = pyg.HeteroConv({key: pyg.SAGEConv((dim, 6), 3) for key, dim in keys.items()})

        def forward(self, data):
            return self.conv(data.x_dict, data.edge_index_dict)["paper"]

    report = package(Model(), hetero(), tmp_path, fanouts=[-1], target="paper", runtime="auto")
    assert report.spec.parity["max_abs_diff"] < 1e-4


def weighted(transform=None):
    """A graph with edge weights, as `Data` gives it."""
    graph = homogeneous(weight=True, loops=False)
    edges = graph.edges["node__to__node"]
    targets = np.repeat(np.arange(40), np.diff(edges.indptr))
    _, first = np.unique(np.stack([edges.indices, targets]), axis=1, return_index=True)
    data = Data(
        x=torch.from_numpy(graph.nodes["node"].features.copy()),
        edge_index=torch.from_numpy(np.stack([edges.indices, targets]).astype(np.int64)[:, first]),
        edge_weight=torch.from_numpy(edges.weight[first]),
    )
    return Graph.from_pyg(transform(data) if transform else data)


class Sparse(Two):
    def forward(self, x, adj_t):
        return self.run(x, adj_t)


@pytest.mark.filterwarnings("ignore:.*[Ss]parse:UserWarning")
@pytest.mark.parametrize(("conv", "options"), [(pyg.GCNConv, {"normalize": False}), (pyg.GraphConv, {})])
def test_an_adj_t_brings_its_weights(conv, options, tmp_path):
    graph = weighted(T.ToSparseTensor(attr="edge_weight"))
    report = package(Sparse(conv, **options), graph, tmp_path)
    assert report.spec.runtime == "onnx"
    assert all(item.weighted for item in report.spec.levels[1]["node"].inputs if item.kind == "reduce")


class MayWeigh(Two):
    def forward(self, x, edge_index, edge_weight=None):
        return self.run(x, edge_index, edge_weight)


def test_weights_that_may_or_may_not_be_meant_are_questioned(tmp_path):
    model, graph = MayWeigh(pyg.GraphConv), weighted()
    with pytest.raises(PackagingError) as caught:
        package(model, graph, tmp_path)
    assert "arguments={'edge_weight': 'edge_weight'}" in str(caught.value)
    assert "arguments={'edge_weight': None}" in str(caught.value)
    for version, given in (("1", "edge_weight"), ("2", None)):
        report = package(model, graph, tmp_path, version=version, arguments={"edge_weight": given})
        reductions = [item for item in report.spec.levels[1]["node"].inputs if item.kind == "reduce"]
        assert [item.weighted for item in reductions] == [given is not None]


def test_a_single_attribute_may_be_the_weight_and_is_questioned(tmp_path):
    model, graph = MayWeigh(pyg.GraphConv), homogeneous(attr_dim=1)
    with pytest.raises(PackagingError, match=r"arguments=\{'edge_weight': 'edge_attr'\}"):
        package(model, graph, tmp_path)
    report = package(model, graph, tmp_path, arguments={"edge_weight": "edge_attr"})
    assert report.spec.parity["max_abs_diff"] < 1e-4
    with pytest.raises(PackagingError, match="2 attributes for each edge"):
        package(model, homogeneous(attr_dim=2), tmp_path, arguments={"edge_weight": "edge_attr"})


class Encoder(Two):
    def forward(self, x, edge_index):
        return self.run(x, edge_index)


class NoForward(Two):
    def encode(self, x, edge_index):
        return self.run(x, edge_index)


class Pairs(Two):
    def forward(self, x, edge_index, edge_label_index):
        return self.run(x, edge_index)


class Several(Two):
    def forward(self, x, edge_index):
        return x, self.run(x, edge_index)


class Named(Two):
    def forward(self, x, edge_index):
        return {"logits": self.run(x, edge_index)}


class Edges(Two):
    def forward(self, edge_index):
        return self.run(torch.zeros(40, 6), edge_index)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (pyg.GAE(Encoder()), r"pass model\.encoder"),
        (pyg.VGAE(Encoder()), r"returns model\.encode"),
        (NoForward(), "forward = NoForward.encode"),
        (Pairs(), "head="),
        (Several(), r"returns self\.model\(x, edge_index\)\[0\]"),
        (Named(), r"returns self\.model\(x, edge_index\)\['logits'\]"),
        (Edges(), r"embeddings=\{'emb': node type\}"),
        (torch.jit.ScriptModule(), "TorchScript"),
        (Encoder, "pass an instance"),
        (Encoder().state_dict(), "load_state_dict"),
        ({"state_dict": {}}, "checkpoint"),
        ("model.pt", "got str"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_what_is_no_model_of_nodes_is_refused_with_the_call_to_write(model, message, tmp_path):
    with pytest.raises(PackagingError, match=message):
        package(model, homogeneous(), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, torch.optim.swa_utils.AveragedModel])
def test_wrappers_are_taken_off(wrap, tmp_path):
    assert package(wrap(Encoder()), homogeneous(), tmp_path).spec.runtime == "onnx"


def test_a_model_that_kept_results_of_training_is_packaged(tmp_path):
    model = Encoder()
    model.last_loss = model.first.lin_l.weight.sum() * 2
    for version, each in (("1", model), ("2", Cached())):
        assert package(each, homogeneous(), tmp_path, version=version).spec.runtime == "onnx"


class Cached(Encoder):
    """As examples/gcn.py trains it: the normalisation of another graph is kept."""

    def __init__(self):
        super().__init__(pyg.GCNConv, cached=True)
        self(torch.zeros(3, 6), torch.tensor([[0, 1], [1, 2]]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "classification"}, "multiclass"),
        ({"output": "scores"}, "logits"),
        ({"runtime": "trt"}, "torch"),
        ({"classes": "abc"}, "list of names"),
        ({"head": "cosine"}, "'dot'"),
        ({"arguments": {"x": "rows"}}, "features"),
    ],
    ids=str,
)
def test_a_choice_that_does_not_exist_lists_those_that_do(options, message, tmp_path):
    with pytest.raises(PackagingError, match=message):
        package(Encoder(), homogeneous(), tmp_path, **options)


class Output(NamedTuple):
    logits: torch.Tensor


class OneNamed(Two):
    def forward(self, x, edge_index):
        return Output(self.run(x, edge_index))


def test_a_named_tuple_of_one_tensor_is_served(tmp_path):
    assert package(OneNamed(), homogeneous(), tmp_path).spec.runtime == "torch"
