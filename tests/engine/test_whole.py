"""Models that cannot be split, through the same requests: ego-graphs and the torch runtime."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.ego import EgoModel, _Rows
from hopline.engine.model import load_model
from hopline.errors import BadRequest
from hopline.packaging import package
from hopline.types import InlineNode, ScoreRequest
from tests.engine import zoo


class Odd(nn.Module):
    """Computed edge weights cannot be fed to a stage, so the model is served whole."""

    def __init__(self):
        super().__init__()
        self.a = zoo.GCNConv(6, 8, normalize=False)
        self.b = zoo.GCNConv(8, 3, normalize=False)

    def forward(self, x, edge_index, edge_weight):
        weight = edge_weight.sqrt()
        return self.b(self.a(x, edge_index, weight).relu(), edge_index, weight)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    torch.manual_seed(3)
    graph = zoo.homogeneous(1)
    module = Odd().eval()
    repository = tmp_path_factory.mktemp("whole")
    report = package(
        module, graph, repository, name="odd", fanouts=[-1, -1], task="multiclass", check_nodes=60,
        runtime="torch",
    )  # fmt: skip
    model = load_model(report.path, read_spec(report.path), graph)
    return Answerer(model, ("probabilities", "label"), 1000), module, graph, report


def test_a_model_that_is_not_to_be_split_is_packaged_whole_and_says_why(whole):
    _, _, _, report = whole
    assert report.spec.runtime == "torch"
    assert "runtime='torch' was requested" in report.spec.why_whole


def test_whole_model_on_ego_graphs_equals_pyg_on_the_full_graph(whole):
    answerer, module, graph, _ = whole
    assert isinstance(answerer.model, EgoModel)
    with torch.no_grad():
        truth = module(*zoo.tensors(graph, "gcn")).numpy()
    ids = [f"n{i}" for i in range(0, zoo.N, 5)]
    (result,) = answerer.answer([ScoreRequest("odd", nodes=ids, outputs=("logits", "label"))])
    np.testing.assert_allclose(result.outputs["logits"], truth[::5], atol=1e-4)
    assert (result.outputs["label"] == truth[::5].argmax(1)).all()


def test_whole_model_answers_do_not_depend_on_batch_mates(whole):
    answerer, _, _, _ = whole
    ids = ["n3", "n70", "n11"]
    together = answerer.answer([ScoreRequest("odd", nodes=ids)])[0].outputs["probabilities"]
    alone = [answerer.answer([ScoreRequest("odd", nodes=[i])])[0].outputs["probabilities"] for i in ids]
    assert (together == np.concatenate(alone)).all()


def test_whole_model_refuses_inline_nodes_with_the_reason(whole):
    answerer, _, _, _ = whole
    inline = ScoreRequest("odd", inline=[InlineNode([0.0] * 6)])
    bad, good = answerer.answer([inline, ScoreRequest("odd", nodes=["n1"])])
    assert isinstance(bad, BadRequest)
    assert "served whole" in str(bad)
    assert not isinstance(good, Exception)


@given(st.lists(st.lists(st.integers(0, 400), max_size=300), max_size=12))
@settings(max_examples=40, deadline=None)
def test_rows_of_an_ego_graph_are_numbered_in_order_of_first_sight_however_many_there_are(parts):
    rows = _Rows()
    for _ in range(2):  # what is forgotten does not come back
        rows.start()
        known: dict[int, int] = {}
        for part in parts:
            expected = [known.setdefault(i, len(known)) for i in part]
            assert rows.add(np.array(part, np.int64)).tolist() == expected
            assert (rows.count, rows.ids.tolist()) == (len(known), list(known))
