"""Models that cannot be split, through the same requests: ego-graphs and the torch runtime."""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch_geometric.nn import GATConv

from hopline.artifact import read_spec, write_spec
from hopline.engine.answer import Answerer
from hopline.engine.ego import EgoModel, _Rows
from hopline.engine.model import load_model
from hopline.errors import BadRequest, ConfigError
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.packaging import package
from hopline.runtimes.placement import place_models, placed
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


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_a_whole_model_on_a_gpu_that_is_not_there_is_refused(whole):
    _, _, graph, report = whole
    before = placed()
    place_models("cuda")
    try:
        with pytest.raises(ConfigError, match=r"compute.device: 'cuda'.*torch .* finds no device"):
            load_model(report.path, report.spec, graph)
    finally:
        place_models(before)


def test_machine_code_that_an_earlier_release_compiled_is_not_loaded(whole, tmp_path):
    _, module, graph, report = whole
    folder = tmp_path / "1"
    shutil.copytree(report.path, folder)
    (folder / "compiled.pt2").write_bytes(b"machine code")
    spec = write_spec(folder, report.spec)
    answerer = Answerer(load_model(folder, read_spec(folder), graph), ("logits",), 1000)
    (result,) = answerer.answer([ScoreRequest("odd", nodes=["n3"])])
    with torch.no_grad():
        truth = module(*zoo.tensors(graph, "gcn")).numpy()
    assert "compiled.pt2" in spec.files
    np.testing.assert_allclose(result.outputs["logits"], truth[3:4], atol=1e-4)


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


class Coded(nn.Module):
    """A table of 12 entries, by the second column of nodes or the only one of edges."""

    def __init__(self, look_up, of_edges):
        super().__init__()
        self.conv, self.look_up, self.of_edges = GATConv(3, 3, edge_dim=4), look_up, of_edges
        self.kind = nn.Embedding(12, 4 if of_edges else 3)
        self.register_buffer("table", torch.arange(48.0).reshape(12, 4)[:, : 4 if of_edges else 3])

    def forward(self, x, edge_index, edge_attr):
        if self.of_edges:
            return self.conv(x, edge_index, self.look_up(self, edge_attr[:, 0].long()))
        attr = edge_attr.expand(-1, 4)
        return self.conv(self.look_up(self, x[:, 1].long()), edge_index, attr)


def coded_graph(node_code=0, edge_code=0):
    edges = np.array([[0, 1, 2, 3], [1, 2, 3, 0]])
    x, attr = np.ones((6, 3), np.float32), np.ones((4, 1), np.float32)
    x[2, 1], attr[1] = node_code, edge_code
    return Graph.from_tables(
        {"node": NodeTable(x, ids=[f"n{i}" for i in range(6)], feature_names=["age", "country", "sum"])},
        {("node", "to", "node"): EdgeTable(edges, attr=attr, by_row=True)},
    )


@pytest.mark.parametrize(
    "look_up",
    [
        lambda model, codes: model.kind(codes),
        lambda model, codes: model.table[codes],
        lambda model, codes: model.table.index_select(0, codes),
        lambda model, codes: nn.functional.one_hot(codes, 12).float() @ model.table,
    ],
    ids=["embedding", "index", "index_select", "one_hot"],
)
@pytest.mark.parametrize("of_edges", [False, True], ids=["of nodes", "of edges"])
def test_a_code_without_an_entry_refuses_only_requests_that_reach_it(look_up, of_edges, tmp_path):
    report = package(
        Coded(look_up, of_edges).eval(), coded_graph(), tmp_path, name="m", fanouts=[-1], task="multiclass",
        runtime="torch",
    )  # fmt: skip
    graph = coded_graph(edge_code=99) if of_edges else coded_graph(node_code=99)
    answerer = Answerer(load_model(report.path, read_spec(report.path), graph), ("logits",), 1000)
    where = "attribute 0 of an edge of node__to__node" if of_edges else "column country of node n2"
    with pytest.raises(BadRequest, match=rf"code 99 has no entry .* 0 to 11 \(in {where}"):
        answerer.answer([ScoreRequest("m", nodes=["n2"])])
    (good,) = answerer.answer([ScoreRequest("m", nodes=["n0"])])
    assert np.isfinite(good.outputs["logits"]).all()
