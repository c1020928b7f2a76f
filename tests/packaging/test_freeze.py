"""Statistics of all rows as constants: the oracle is the user's module on the whole graph of packaging."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.nn import models

import hopline
from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import NotServable, NotSplittable, PackagingError
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.reference import Reference
from hopline.packaging.signature import bind
from hopline.types import InlineNode, ScoreRequest
from tests.packaging.graphs import hetero, homogeneous, molecules


class Two(nn.Module):
    """Two layers, and `middle` of a subclass between them."""

    def __init__(self, norm=None):
        super().__init__()
        self.conv, self.last = pyg.SAGEConv(6, 8), pyg.SAGEConv(8, 3)
        self.norm = norm

    def middle(self, h):
        return self.norm(h)

    def forward(self, x, edge_index):
        return self.last(self.middle(self.conv(x, edge_index)).relu(), edge_index)


class Centred(Two):
    def middle(self, h):
        return h - h.mean(dim=0)


class ByFunction(Two):
    def middle(self, h):
        return (h - torch.mean(h, 0)) / torch.std(h, dim=0, keepdim=True)


class Scaled(Two):
    """Two statistics of one function, one of which is of the other's result; and one of each row."""

    def middle(self, h):
        h = h / h.abs().amax()
        return h.amax(dim=0) - h.clamp(max=h.amax(dim=1, keepdim=True))


class InPairs(Two):
    """Functions that answer two statistics at once."""

    def middle(self, h):
        variance, mean = torch.var_mean(h, dim=0)
        return (h - mean) / variance.sqrt() + h / h.max(0).values - torch.max(h, dim=1, keepdim=True)[0]


class Normalised(Two):
    def middle(self, h):
        return F.normalize(h, dim=0) + F.normalize(h, p=1.0)


class Counted(Two):
    """Divides by a number of rows, which is another for another graph."""

    def middle(self, h):
        return h - h.sum(0) / len(h)


class Branches(Two):
    """A number of Python that is a statistic decides."""

    def middle(self, h):
        return h * 2.0 if h.mean().item() < 100.0 else h


class OfEdges(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GINEConv(nn.Linear(6, 3), edge_dim=2)

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, edge_attr / edge_attr.max())


class Attending(Two):
    """Attention to all nodes, also with the mean of all rows."""

    def middle(self, h):
        return torch.softmax(h @ h.t(), dim=1) @ h - h.mean(0)


class Linear(Two):
    """Attention to all nodes in linear time, as of SGFormer: a norm, and a product over all rows."""

    def middle(self, h):
        q = h / h.norm(p=2)
        return q @ (q.t() @ h) + h


class Sharing(Two):
    """One norm, twice in a forward."""

    def middle(self, h):
        return self.norm(self.norm(h) * 3.0 + 1.0)


class Inside(pyg.MessagePassing):
    """A convolution of one's own that centres its rows."""

    def __init__(self):
        super().__init__(aggr="mean")
        self.lin = nn.Linear(6, 6)

    def forward(self, x, edge_index):
        h = self.lin(x)
        return self.propagate(edge_index, x=h - h.mean(0))

    def message(self, x_j, x_i):
        return (2.0 * x_j - x_i).relu()


class Around(Two):
    def __init__(self):
        super().__init__()
        self.own, self.last = Inside(), pyg.SAGEConv(6, 3)

    def forward(self, x, edge_index):
        return self.last(self.own(x, edge_index), edge_index)


MODELS = {
    "LayerNorm": lambda: Two(pyg.LayerNorm(8)),
    "GraphNorm": lambda: Two(pyg.GraphNorm(8)),
    "PairNorm": lambda: Two(pyg.PairNorm()),
    "PairNorm individually": lambda: Two(pyg.PairNorm(scale_individually=True)),
    "MeanSubtractionNorm": lambda: Two(pyg.MeanSubtractionNorm()),
    "own code": Centred,
    "functions": ByFunction,
    "of another statistic": Scaled,
    "two at once": InPairs,
    "normalize": Normalised,
    "a condition": Branches,
    "a norm twice": lambda: Sharing(pyg.LayerNorm(8)),
    "in a convolution": Around,
    "in a block": lambda: Two(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), pyg.LayerNorm(8))),
    "BasicGNN": lambda: models.GraphSAGE(6, 8, 2, 3, norm="LayerNorm", act="elu"),
    "BasicGNN GraphNorm": lambda: models.GIN(6, 8, 2, 3, norm="GraphNorm"),
}


def drawn(model, seed=0):
    """Weights of norms too, which begin as ones and zeros."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() < 2:
            parameter.data = torch.randn(parameter.shape) * 0.5 + 0.3
    return model.eval()


def package(model, graph, repository, **options):
    options = {"fanouts": [-1, -1], "task": "regression", "freeze": True} | options
    return hopline.package(model, graph, repository, name="m", overwrite=True, **options)


def answer(report, graph, **request):
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 999)
    (found,) = answerer.answer([ScoreRequest("m", **request)])
    return found if isinstance(found, Exception) else found.outputs["logits"]


def expected(model, graph, target="node"):
    """The module's own answers on the whole graph."""
    reference = Reference(model, bind(model, graph.schema), (target,), None, False)
    return reference.answers(CheckGraph.of(graph))


@pytest.mark.sample(4)
@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_a_model_with_statistics_of_all_rows_is_split_and_equals_pyg(make, tmp_path):
    graph, model = homogeneous(num_nodes=60, num_edges=240, offset=1.0), drawn(make())
    report = package(model, graph, tmp_path)
    found = answer(report, graph, nodes=list(range(60)))
    np.testing.assert_allclose(found, expected(model, graph), atol=1e-4, rtol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("ids", [[f"u{row}" for row in range(50)], list(range(49, -1, -1))])
def test_nodes_have_the_ids_of_the_caller(ids, tmp_path):
    torch.manual_seed(0)
    data = Data(x=torch.randn(50, 6), edge_index=torch.randint(0, 50, (2, 200)))
    model = drawn(Centred())
    graph = hopline.Graph.from_pyg(data, ids=ids)
    found = answer(package(model, graph, tmp_path), graph, nodes=ids)
    with torch.no_grad():
        np.testing.assert_allclose(found, model(data.x, data.edge_index), atol=1e-4, rtol=1e-4)


@pytest.mark.sample(4)
@pytest.mark.parametrize("name", [name for name in MODELS if name != "a condition"])
def test_without_freeze_the_refusal_names_it_and_what_it_means(name, tmp_path):
    graph, model = homogeneous(offset=1.0), drawn(MODELS[name]())
    with pytest.raises(NotServable, match=r"(?s)freeze=True.*once.*a later graph is answered with those"):
        package(model, graph, tmp_path, freeze=False)
    assert not list(tmp_path.iterdir())


def test_statistics_are_those_of_the_whole_graph_not_of_the_sample_of_the_check(tmp_path):
    graph, model = homogeneous(num_nodes=900, num_edges=3000, seed=3), drawn(Two(pyg.LayerNorm(8)))
    report = package(model, graph, tmp_path, check_nodes=64)
    h = model.conv(*parts(graph)).detach()
    spec = read_spec(report.path)
    assert list(spec.frozen) == ["norm.mean", "norm.std"]
    assert spec.frozen["norm.mean"] == pytest.approx(h.mean().item(), rel=1e-5)
    assert spec.frozen["norm.std"] == pytest.approx(h.std(unbiased=False).item(), rel=1e-5)
    found = answer(report, graph, nodes=list(range(900)))
    np.testing.assert_allclose(found, expected(model, graph), atol=1e-4, rtol=1e-4)


def parts(graph):
    """x and edge_index."""
    found = CheckGraph.of(graph)
    return torch.from_numpy(found.features["node"]), torch.from_numpy(
        found.edges["node__to__node"].edge_index
    )


def test_the_report_names_each_statistic_with_its_numbers(tmp_path):
    report = package(drawn(Scaled()), homogeneous(), tmp_path)
    frozen = [note for note in report.notes if note.startswith("frozen: ")]
    assert [note.split(" ")[1] for note in frozen] == ["amax", "amax.1"]
    assert f"amax is {report.spec.frozen['amax']:.4f}" in frozen[0]
    assert "a later graph is answered with this" in frozen[0]
    assert len(report.spec.frozen["amax.1"]) == 8


def test_a_later_graph_is_answered_with_the_statistics_of_the_first_one(tmp_path):
    graph, model = homogeneous(), drawn(Centred())
    later = homogeneous(seed=5, offset=2.0)
    report = package(model, graph, tmp_path)
    mean = model.conv(*parts(graph)).mean(0).detach()
    model.middle = lambda rows: rows - mean
    found = answer(report, later, nodes=list(range(40)))
    np.testing.assert_allclose(found, expected(model, later), atol=1e-4, rtol=1e-4)


def test_a_node_that_a_request_describes_has_these_statistics(tmp_path):
    graph, model = homogeneous(), drawn(Two(pyg.LayerNorm(8)))
    report = package(model, graph, tmp_path)
    x = np.asarray(graph.nodes["node"].features)
    part = CheckGraph.of(graph).edges["node__to__node"]
    node = InlineNode(x[7].tolist(), {"node__to__node": part.indices[part.destinations == 7].tolist()})
    np.testing.assert_allclose(
        answer(report, graph, inline=[node]), expected(model, graph)[[7]], atol=1e-4, rtol=1e-4
    )


class Semantic(nn.Module):
    def __init__(self, graph):
        super().__init__()
        kinds = [tuple(key.split("__")) for key in graph.edges]
        sizes = {name: nodes.features.shape[1] for name, nodes in graph.nodes.items()}
        self.convs = nn.ModuleList(
            pyg.HANConv(width, 8, (list(sizes), kinds), heads=2) for width in (sizes, 8)
        )
        self.last = nn.Linear(8, 3)

    def forward(self, x_dict, edge_index_dict):
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.last(x_dict["paper"])


@pytest.mark.release
def test_the_weights_of_edge_types_of_a_hanconv_are_statistics(tmp_path):
    graph = hetero()
    model = drawn(Semantic(graph))
    with pytest.raises(NotServable, match="freeze=True"):
        package(model, graph, tmp_path, target="paper", freeze=False)
    report = package(model, graph, tmp_path, target="paper")
    found = answer(report, graph, nodes=list(range(40)))
    np.testing.assert_allclose(found, expected(model, graph, "paper"), atol=1e-4, rtol=1e-4)


@pytest.mark.release
def test_statistics_of_edges_are_constants_too(tmp_path):
    graph, model = homogeneous(attr_dim=2), drawn(OfEdges())
    with pytest.raises(NotServable, match=r"over the attributes or weights of all edges.*freeze=True"):
        package(model, graph, tmp_path, fanouts=[-1], freeze=False)
    report = package(model, graph, tmp_path, fanouts=[-1])
    found = answer(report, graph, nodes=list(range(40)))
    np.testing.assert_allclose(found, expected(model, graph), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("make", [Attending, Linear], ids=["softmax", "linear"])
@pytest.mark.parametrize("freeze", [True, False])
def test_attention_to_all_nodes_is_refused(make, freeze, tmp_path):
    with pytest.raises(NotServable, match=r"attends to|sum or softmax over all nodes"):
        package(drawn(make()), homogeneous(), tmp_path, freeze=freeze)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("attention", ["multihead", "performer"])
def test_gps_is_refused(attention, tmp_path):
    conv = pyg.GPSConv(6, pyg.GINConv(nn.Linear(6, 6)), heads=2, attn_type=attention)
    with pytest.raises(NotServable, match="all nodes"):
        package(drawn(conv), homogeneous(), tmp_path, fanouts=[-1])


def test_a_model_that_answers_for_a_graph_is_refused_as_it_would_be_a_constant(tmp_path):
    class Pooled(Two):
        def forward(self, x, edge_index):
            return self.conv(x, edge_index).mean(0, keepdim=True)

    with pytest.raises(PackagingError, match="one row for a graph"):
        package(Pooled(), molecules(), tmp_path)


def test_without_statistics_freeze_is_noted_and_changes_nothing(tmp_path):
    report = package(Two(nn.LayerNorm(8)), homogeneous(), tmp_path)
    assert "freeze: the model computes no statistics of all rows" in report.notes
    assert report.spec.frozen == {}


@pytest.mark.release
def test_statistics_of_several_outputs_and_of_pairs(tmp_path):
    class Named(Two):
        def forward(self, x, edge_index):
            h = super().forward(x, edge_index)
            return {"a": h[:, :1], "b": h[:, 1:]}

    graph, model = homogeneous(), drawn(Two(pyg.LayerNorm(8)))
    report = package(
        drawn(Named(pyg.LayerNorm(8))), graph, tmp_path, task={"a": "binary", "b": "regression"}
    )
    assert list(report.spec.frozen) == ["norm.mean", "norm.std"]
    report = package(model, graph, tmp_path, head="dot", task="binary")
    states = expected(model, graph)
    pairs = (list(range(20)), list(range(20, 40)))
    np.testing.assert_allclose(
        answer(report, graph, pairs=pairs)[:, 0], (states[:20] * states[20:40]).sum(1), atol=1e-4, rtol=1e-4
    )


def test_a_pair_of_statistics_of_all_rows_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(PackagingError, match="freeze=True"):
        package(
            drawn(Two(pyg.LayerNorm(8))), homogeneous(), tmp_path, head="dot", task="binary", freeze=False
        )


def test_a_statistic_by_a_number_of_rows_is_refused_with_the_way_out(tmp_path):
    with pytest.raises(NotServable, match=r"write x.mean\(0\), not x.sum\(0\) / len\(x\)") as refused:
        package(drawn(Counted()), homogeneous(), tmp_path)
    assert "pass freeze=True" not in str(refused.value)


def test_a_frozen_model_that_cannot_be_split_is_refused(tmp_path):
    class Stepwise(Centred):
        def forward(self, x, edge_index):
            h = super().forward(x, edge_index)
            return torch.stack([row.softmax(0) for row in h])

    with pytest.raises(NotSplittable):
        package(drawn(Stepwise()), homogeneous(), tmp_path)
    assert not list(tmp_path.iterdir())


class Settling(Two):
    """Steps until values settle: their number depends on the graph."""

    def middle(self, h):
        while h.pow(2).mean() > 0.01:
            h = h / 2
        return h


def test_a_loop_until_a_statistic_settles_takes_the_steps_of_the_graph_of_packaging(tmp_path):
    graph, model = homogeneous(), drawn(Settling())
    report = package(model, graph, tmp_path)
    found = answer(report, graph, nodes=list(range(40)))
    np.testing.assert_allclose(found, expected(model, graph), atol=1e-4, rtol=1e-4)


@pytest.mark.release
def test_the_served_answers_are_compared_with_the_module_as_it_was_passed(tmp_path, monkeypatch):
    """A copy with wrong constants agrees with the package: only the module itself shows them."""
    from hopline.packaging import locality

    class Wrong(locality.Frozen):
        def __init__(self, values, *others):
            super().__init__({place: value + 0.01 for place, value in values.items()}, *others)

    monkeypatch.setattr(locality, "Frozen", Wrong)
    with pytest.raises(PackagingError, match="differ"):
        package(drawn(Two(pyg.LayerNorm(8))), homogeneous(), tmp_path)
    assert not list(tmp_path.iterdir())
