"""Logits or probabilities: whichever the module answers, its probabilities are served."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg

import hopline
from hopline.artifact import read_spec
from hopline.engine.model import load_model
from hopline.errors import NotSplittable, PackagingError
from hopline.packaging.check_graph import CheckGraph
from tests.packaging.graphs import homogeneous


def package(model, graph, repository, **options):
    options = {"name": "m", "fanouts": [-1], "task": "multiclass", **options}
    return hopline.package(model, graph, repository, **options)


def expect_served(report, model, graph):
    """The served probabilities of all nodes are the module's answers."""
    check = CheckGraph.of(graph)
    with torch.no_grad():
        expected = (
            copy.deepcopy(model)
            .eval()(
                torch.from_numpy(check.features["node"]),
                torch.from_numpy(check.edges["node__to__node"].edge_index),
            )
            .numpy()
        )
    served = load_model(report.path, read_spec(report.path), graph)
    states = served.final_states({"node": np.arange(graph.num_nodes)})["node"]
    found = served.outputs(("probabilities",), states)["probabilities"]
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-4)


class Ends(nn.Module):
    def __init__(self, columns, end):
        super().__init__()
        self.conv, self.lin, self.end = pyg.SAGEConv(6, 8), nn.Linear(8, columns), end
        nn.init.constant_(self.lin.bias, -1.0)

    def forward(self, x, edge_index):
        return self.end(self.lin(self.conv(x, edge_index).relu()))


ENDS = {
    "sigmoid": (1, "binary", torch.sigmoid),
    "squeezed": (1, "binary", lambda out: torch.sigmoid(out).squeeze(-1)),
    "clamped": (1, "binary", lambda out: torch.sigmoid(out).clamp(0.01, 0.99)),
    "complement": (1, "binary", lambda out: 1 - torch.sigmoid(out)),
    "second column": (2, "binary", lambda out: torch.softmax(out, 1)[:, 1]),
    "softmax": (3, "multiclass", lambda out: torch.softmax(out, -1)),
    "exp of log": (3, "multiclass", lambda out: torch.log_softmax(out, -1).exp()),
    "several sigmoids": (3, "multilabel", torch.sigmoid),
    "double": (1, "binary", lambda out: torch.sigmoid(out).double()),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ENDS)
def test_probabilities_are_served_as_the_module_answers_them(name, tmp_path):
    columns, task, end = ENDS[name]
    graph, model = homogeneous(), Ends(columns, end)
    report = package(model, graph, tmp_path, task=task)
    expect_served(report, model, graph)


@pytest.mark.parametrize(
    ("columns", "task", "end", "message"),
    [
        (3, "multiclass", torch.sigmoid, "multilabel"),
        (3, "multilabel", lambda out: torch.softmax(out, 1), "multiclass"),
        (1, "binary", F.logsigmoid, "log-probabilities"),
        (3, "multilabel", F.logsigmoid, "log-probabilities"),
        (3, "multiclass", lambda out: torch.softmax(out, 0), "softmax over all nodes"),
    ],
    ids=["sigmoids", "softmax", "logsigmoid", "logsigmoids", "dim 0"],
)
def test_an_activation_of_another_task_is_refused(columns, task, end, message, tmp_path):
    with pytest.raises(PackagingError, match=message):
        package(Ends(columns, end), homogeneous(), tmp_path, task=task)


def test_logits_that_happen_to_lie_between_0_and_1_are_logits(tmp_path):
    model = Ends(1, lambda out: out * 0.01 + 0.5)
    report = package(model, homogeneous(), tmp_path, task="binary")
    assert "logits" in report.spec.parity["served"]


class Pair(nn.Module):
    """Logits of pairs, from 0 to 1 for features of ordinary size."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(16, 1)

    def forward(self, h_src, h_dst):
        return self.lin(torch.cat([h_src, h_dst], -1)) * 0.01 + 0.5


def test_logits_of_pairs_that_happen_to_lie_between_0_and_1_are_logits(tmp_path):
    torch.manual_seed(0)
    report = package(pyg.SAGEConv(6, 8), homogeneous(), tmp_path, task="binary", head=Pair())
    assert "logits" in report.spec.parity["served"]


def test_what_the_user_says_of_the_output_holds(tmp_path):
    model = Ends(1, torch.sigmoid)
    said = package(model, homogeneous(), tmp_path, task="binary", output="logits")
    assert "logits" in said.spec.parity["served"]
    with pytest.raises(PackagingError, match=r"output='probabilities', but the model answers from"):
        package(
            Ends(1, lambda out: out * 9), homogeneous(), tmp_path, version="2", task="binary",
            output="probabilities",
        )  # fmt: skip


def test_a_model_whose_weights_do_not_decide_is_refused_with_a_question(tmp_path):
    class Share(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SimpleConv(aggr="mean")

        def forward(self, x, edge_index):
            return self.conv(x.abs() / (1 + x.abs()), edge_index)[:, :1]

    with pytest.raises(PackagingError, match="set output='logits' or output='probabilities'"):
        package(Share(), homogeneous(), tmp_path, task="binary")
    report = package(Share(), homogeneous(), tmp_path, task="binary", output="probabilities")
    assert report.spec.parity["served"].keys() == {"probabilities", "label"}


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.lin = pyg.SAGEConv(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x, edge_index):
        return self.after(self.lin(self.norm(self.conv(x, edge_index)).relu()))

    def after(self, out):
        return out


def test_a_function_that_holds_the_module_sees_it_in_eval_mode(tmp_path):
    model, graph = Normed(), homogeneous()
    before = copy.deepcopy(model.state_dict())
    model.after = lambda out: out if model.training else out * 3
    report = package(model, graph, tmp_path)
    assert model.training
    assert model.norm.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    check = CheckGraph.of(graph)
    with torch.no_grad():
        x, edges = check.features["node"], check.edges["node__to__node"].edge_index
        expected = model.eval()(torch.from_numpy(x), torch.from_numpy(edges)).numpy()
    served = load_model(report.path, read_spec(report.path), graph)
    states = served.final_states({"node": np.arange(graph.num_nodes)})["node"]
    np.testing.assert_allclose(served.outputs(("logits",), states)["logits"], expected, atol=1e-4)


def test_a_function_in_place_of_forward_that_holds_the_module_is_refused(tmp_path):
    model = Normed()
    own = model.forward
    model.forward = lambda x, edge_index: own(x, edge_index) * 3
    with pytest.raises(NotSplittable, match=r"test_activation\.py:.*change forward in a subclass"):
        package(model, homogeneous(), tmp_path)
    assert model.training
    assert model.norm.training


def test_a_function_in_place_of_forward_hides_the_weights(tmp_path):
    model = Normed()
    own = model.forward
    model.forward = lambda x, edge_index: own(x, edge_index).softmax(1)
    with pytest.raises(PackagingError, match="its weights do not show which: set output="):
        package(model, homogeneous(), tmp_path)


class Mixed(nn.Module):
    """Probabilities whose range depends on the sign, order or sum of weights."""

    def __init__(self, columns, weights, end):
        super().__init__()
        self.conv, self.lin, self.end = pyg.SAGEConv(6, 8), nn.Linear(8, columns), end
        self.weights = nn.Parameter(torch.tensor(weights))

    def forward(self, x, edge_index):
        return self.end(self.lin(self.conv(x, edge_index).relu()), self.weights)


def _ordinal(out, thresholds):
    below = F.pad(torch.sigmoid(thresholds - out), (1, 0))
    return F.pad(below, (0, 1), value=1.0).diff(dim=1)


MIXED = {
    "share of two experts": (
        2, "binary", [0.4], lambda z, w: w * z[:, :1].sigmoid() + (1 - w) * z[:, 1:].sigmoid(),
    ),
    "share of two softmaxes": (
        6, "multiclass", [0.4], lambda z, w: w * z[:, :3].softmax(1) + (1 - w) * z[:, 3:].softmax(1),
    ),
    "least probability": (1, "binary", [0.1], lambda z, w: w + (1 - w) * z.sigmoid()),
    "ordinal": (1, "multiclass", [-1.0, 0.2, 1.3], _ordinal),
    "priors": (
        3, "multiclass", [0.5, 0.3, 0.2], lambda z, w: F.normalize(z.softmax(1) * w, p=1.0, dim=1),
    ),
    "any of several": (
        4, "binary", [0.1, 0.5, 0.3, 0.2], lambda z, w: 1 - (1 - w * z.sigmoid()).prod(1, keepdim=True),
    ),
}  # fmt: skip


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MIXED)
def test_probabilities_that_other_weights_take_out_of_the_range_are_questioned(name, tmp_path):
    columns, task, weights, end = MIXED[name]
    graph, model = homogeneous(), Mixed(columns, weights, end)
    with pytest.raises(PackagingError, match="set output='probabilities' or output='logits'"):
        package(model, graph, tmp_path, task=task)
    report = package(model, graph, tmp_path, task=task, output="probabilities")
    expect_served(report, model, graph)


@pytest.mark.sample(1)
@pytest.mark.parametrize("task", ["multiclass", "multilabel"])
def test_answers_that_overflow_are_logits_and_not_a_mixture(task, tmp_path):
    """Rows without infinity may lie between 0 and 1; the others show that these are no probabilities."""

    def explodes(out):
        return torch.where(out > -1.0, torch.tensor(float("inf")), out.clamp(0, 1))

    graph = homogeneous(6)
    report = package(Ends(3, explodes), graph, tmp_path, task=task)
    assert any("infinity" in note for note in report.notes)
