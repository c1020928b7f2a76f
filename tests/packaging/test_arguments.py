"""Arguments of forward: usual and unusual calls, wrappers, and what is not a model of nodes."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch_geometric.transforms as T
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import scatter

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import PackagingError
from hopline.graph import Graph
from hopline.packaging.signature import bind
from hopline.types import ScoreRequest
from tests.packaging.graphs import hetero, homogeneous, relational


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


@pytest.mark.sample(2)
@pytest.mark.parametrize("model", [TakesData, TakesGraph, NeedsBatch, OtherNames, NoNames])
def test_usual_signatures_are_split(model, tmp_path):
    package(model(), homogeneous(), tmp_path)


def test_a_model_of_hetero_data_gets_it(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            keys = {("paper", "cites", "paper"): 6, ("author", "writes", "paper"): 5}
            with pytest.warns(UserWarning, match="author"):
                self.conv = pyg.HeteroConv({key: pyg.SAGEConv((dim, 6), 3) for key, dim in keys.items()})

        def forward(self, data):
            return self.conv(data.x_dict, data.edge_index_dict)["paper"]

    report = package(Model(), hetero(), tmp_path, fanouts=[-1], target="paper")
    assert report.spec.parity["max_abs_diff"] < 1e-4


class OneType(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(6, 3)

    def forward(self, data):
        return self.conv(data["user"].x, data["user", "knows", "user"].edge_index)


class OneAnnotated(OneType):
    def forward(self, data: HeteroData):
        return self.conv(*data.x_dict.values(), *data.edge_index_dict.values())


@pytest.mark.parametrize("model", [OneType, OneAnnotated])
def test_hetero_data_of_one_type_is_hetero_data(model, tmp_path):
    data = HeteroData()
    data["user"].x = torch.randn(40, 6)
    data["user", "knows", "user"].edge_index = torch.randint(0, 40, (2, 200))
    report = package(model(), Graph.from_pyg(data), tmp_path, fanouts=[-1])
    assert "forward(data=HeteroData(x[6], edge_index))" in report.spec.called


READS = {
    "batch": lambda data: data.batch is None,
    "its name": lambda data: "batch" not in data,
    "number of names": lambda data: len(data.keys()) == 2,
    "pairs": lambda data: sorted(name for name, _ in data) == ["edge_index", "x"],
    "its type": lambda data: type(data) is Data,
}


class LooksAtData(Two):
    def __init__(self, read):
        super().__init__()
        self.read = read

    def forward(self, data):
        h = self.run(data.x, data.edge_index)
        return h if self.read(data) else -h


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", READS)
def test_data_has_what_that_of_pyg_has(name, tmp_path):
    data = Data(x=torch.randn(40, 6), edge_index=torch.randint(0, 40, (2, 200)))
    model, graph = LooksAtData(READS[name]).eval(), Graph.from_pyg(data)
    report = package(model, graph, tmp_path)
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 0)
    (got,) = answerer.answer([ScoreRequest("m", nodes=np.arange(40))])
    with torch.no_grad():
        np.testing.assert_allclose(got.outputs["logits"], model(data), atol=1e-5)


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
    assert all(item.weighted for item in report.spec.levels[1]["node"].inputs if item.kind == "reduce")


class MayWeigh(Two):
    def forward(self, x, edge_index, edge_weight=None):
        return self.run(x, edge_index, edge_weight)


@pytest.mark.release
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
        (Several(), r"returns 2 values: name the task.*task=\{'output_0': 'binary'\}"),
        (Named(), r"name the task.*task=\{'logits': 'binary'\}"),
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


@pytest.mark.sample(1)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, torch.optim.swa_utils.AveragedModel])
def test_wrappers_are_taken_off(wrap, tmp_path):
    package(wrap(Encoder()), homogeneous(), tmp_path)


@pytest.mark.release
def test_a_model_that_kept_results_of_training_is_packaged(tmp_path):
    model = Encoder()
    model.last_loss = model.first.lin_l.weight.sum() * 2
    for version, each in (("1", model), ("2", Cached())):
        package(each, homogeneous(), tmp_path, version=version)


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
    assert package(OneNamed(), homogeneous(), tmp_path).spec.parity["max_abs_diff"] < 1e-4


class Keywords(Two):
    """The attributes of edges are added to their targets, if the call has them."""

    def __init__(self, conv=pyg.SAGEConv, **options):
        super().__init__(conv, **options)
        self.edge = nn.Linear(2, 3)

    def forward(self, x, edge_index, **kw):
        rows = self.run(x, edge_index)
        if kw.get("edge_attr") is not None:
            rows = rows + scatter(self.edge(kw["edge_attr"]), edge_index[1], 0, dim_size=x.size(0))
        return rows


class Positions(Keywords):
    def forward(self, x, edge_index, *rest):
        return super().forward(x, edge_index, **({"edge_attr": rest[0]} if rest else {}))


class Unread(Two):
    def forward(self, x, edge_index, *args, **kwargs):
        return self.run(x, edge_index)


@pytest.mark.sample(1)
@pytest.mark.parametrize("model", [Keywords, Positions])
def test_data_that_forward_may_read_from_its_open_arguments_are_questioned(model, tmp_path):
    model, graph = model(), homogeneous(attr_dim=2)
    with pytest.raises(PackagingError) as caught:
        package(model, graph, tmp_path)
    for given in ("{'edge_attr': 'edge_attr'}", "{'edge_attr': None}"):
        assert f"arguments={given}" in str(caught.value)
    edges = graph.edges["node__to__node"]
    x, attr = (torch.from_numpy(np.array(part)) for part in (graph.nodes["node"].features, edges.attr))
    ends = np.stack([edges.indices, np.repeat(np.arange(40), np.diff(edges.indptr))]).astype(np.int64)
    for version, name in (("1", "edge_attr"), ("2", None)):
        given = {"arguments": {"edge_attr": name}, "version": version, "task": "embedding"}
        report = package(model, graph, tmp_path, **given)
        answerer = Answerer(load_model(report.path, report.spec, graph), ("embedding",), 0)
        (found,) = answerer.answer([ScoreRequest("m", nodes=np.arange(40))])
        rest = ([attr] if model.forward.__code__ is Positions.forward.__code__ else []) if name else []
        named = {"edge_attr": attr} if name and not rest else {}
        with torch.no_grad():
            expected = model.eval()(x, torch.from_numpy(ends), *rest, **named)
        np.testing.assert_allclose(found.outputs["embedding"], expected, atol=1e-4, rtol=1e-4)


def questions(model, graph, **options):
    with pytest.raises(PackagingError) as caught:
        bind(model, graph.schema, left_out=graph.left_out, **options)
    return str(caught.value)


def test_each_kind_of_data_that_an_open_argument_may_hold_is_questioned():
    edge_index = torch.randint(0, 9, (2, 30), generator=torch.Generator().manual_seed(0))
    data = Data(
        torch.zeros(9, 6), edge_index, torch.zeros(30, 2), edge_weight=torch.ones(30),
        edge_time=torch.arange(30), pe=torch.zeros(9, 3), pos=torch.zeros(9, 2), y=torch.zeros(9),
    )  # fmt: skip
    graph = Graph.from_pyg(data, columns=["pe"])
    text = questions(Keywords(), graph)
    assert "Keywords.forward(**kw)" in text
    call = "{'edge_attr': 'edge_attr', 'edge_weight': 'edge_weight', 'pe': 'pe'}"
    assert f"arguments={call}" in text
    given = dict.fromkeys(("edge_attr", "edge_weight", "pe", "pos", "edge_time"))
    assert f"arguments={given}" in text
    assert "data.pos" in text
    assert "times order edges" in text
    assert bind(Keywords(), graph.schema, left_out=graph.left_out, arguments=given).roles == {
        "x": "features", "edge_index": "edge_index"
    }  # fmt: skip
    text = questions(Keywords(), relational(2))
    assert "arguments={'edge_type': 'edge_type'}" in text


def test_arguments_by_type_are_questioned_under_their_names():
    class Model(nn.Module):
        def forward(self, x_dict, edge_index_dict, **kwargs):
            return kwargs

    assert "arguments={'edge_attr_dict': 'edge_attr'}" in questions(Model(), hetero(attr_dim=2))
    conv = pyg.HeteroConv({("paper", "cites", "paper"): pyg.GATConv(6, 3, edge_dim=2)})
    assert "arguments={'edge_attr_dict': 'edge_attr'}" in questions(conv, hetero(attr_dim=2))
    shown = bind(conv, hetero(attr_dim=2).schema, arguments={"edge_attr_dict": "edge_attr"}).called
    assert "edge_attr_dict=edge_attr{" in shown


@pytest.mark.parametrize(
    "model",
    [
        Unread(),
        pyg.Sequential("x, edge_index", [(pyg.SAGEConv(6, 3), "x, edge_index -> x")]),
        pyg.AntiSymmetricConv(6, phi=pyg.SAGEConv(6, 6)),
        type("Net", (pyg.GraphSAGE,), {"forward": lambda self, *args, **kw: self(*args, **kw)})(6, 8, 2),
    ],
    ids=["unread", "Sequential", "AntiSymmetricConv", "GraphSAGE"],
)
def test_open_arguments_that_cannot_bring_data_to_a_layer_are_no_question(model):
    graph = homogeneous(attr_dim=2, weight=True)
    assert list(bind(model, graph.schema).roles) == ["x", "edge_index"]


@pytest.mark.parametrize("name", ["edge_time", "time"])
def test_times_of_edges_that_an_optional_argument_would_read_are_questioned(name):
    def forward(self, x, edge_index, edge_time=None, time=None):
        return x

    data = Data(torch.zeros(9, 6), torch.zeros(2, 30, dtype=torch.long), edge_time=torch.arange(30))
    model, graph = type("Net", (nn.Module,), {"forward": forward})(), Graph.from_pyg(data)
    other = {"edge_time", "time"} - {name}
    assert "times order edges" in questions(model, graph, arguments=dict.fromkeys(other))
    assert len(bind(model, graph.schema, arguments=dict.fromkeys(["edge_time", "time"])).roles) == 2


def test_a_name_that_no_open_argument_can_receive_is_refused():
    def forward(self, x, edge_index, scale=1.0, *rest):
        return rest

    model, given = type("Net", (nn.Module,), {"forward": forward})(), {"edge_attr": "edge_attr"}
    assert "by position" in questions(model, homogeneous(attr_dim=2), arguments=given)
    assert "has no argument 'size'" in questions(Encoder(), homogeneous(), arguments={"size": None})
