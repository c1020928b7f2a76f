"""The gate: what would be served is the user's module's answer, or packaging says why it cannot be."""

from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn import models

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import NotServable, NotSplittable, PackagingError, ParityError
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.locality import renumbered, repeated
from hopline.packaging.probe import Probe, strangers
from hopline.types import ScoreRequest
from tests.packaging.graphs import hetero, homogeneous


def package(model, graph, repository, **options):
    options = {"name": "m", "fanouts": [-1, -1], "task": "multiclass", **options}
    return hopline.package(model, graph, repository, **options)


class Two(nn.Module):
    """Two layers with a place between them."""

    def __init__(self, first=None, last=None):
        super().__init__()
        self.first, self.last = first or pyg.SAGEConv(6, 8), last or pyg.SAGEConv(8, 3)

    def middle(self, h):
        return h.relu()

    def forward(self, x, edge_index):
        return self.last(self.middle(self.first(x, edge_index)), edge_index)


class Centred(Two):
    def middle(self, h):
        return (h - h.mean(0)).relu()


class PerNode(Two):
    def middle(self, h):
        return h.relu() / h.size(0)


class Numbered(Two):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(1000, 8)

    def middle(self, h):
        return h.relu() + self.emb(torch.arange(h.size(0)))


class OfAllNodes(Two):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(40, 8)

    def middle(self, h):
        return h.relu() + self.emb.weight


class Reversed(Two):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index.flip(0))


class Dropped(Two):
    def middle(self, h):
        return F.dropout(h.relu(), 0.5)


class OneHot(Two):
    """It has as many columns as the largest code of the graph, 37, needs."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(38, 6)

    def forward(self, x, edge_index):
        codes = (x.abs() * 10).long().clamp(max=40).max(dim=1).values
        return super().forward(self.lin(F.one_hot(codes).float()), edge_index)


class BySize(Two):
    def middle(self, h):
        return h.relu() if h.size(0) < 5000 else h.tanh()


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("model", "fanouts", "reason"),
    [
        (Centred(), 2, "normalises over all nodes.*BatchNorm"),
        (models.GraphSAGE(6, 8, 2, 3, norm="GraphNorm"), 2, "normalises over all nodes"),
        (PerNode(), 2, "depend on how many nodes"),
        (Numbered(), 2, r"(one number of nodes only|depend on how many).*embeddings=\{'emb': node type\}"),
        (OfAllNodes(), 2, "one number of nodes only"),
        (Dropped(), 2, r"random.*dropout at test_gate\.py.*training=self\.training"),
        (
            Two(last=pyg.SAGEConv(8, 3, aggr="lstm")),
            2,
            r"order in which.*\(mean, sum, max, attention\)",
        ),
        (BySize(), 2, "how many nodes or edges there are"),
        (OneHot(), 2, "one_hot.*give the number"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_what_no_neighbourhood_shows_is_refused_with_the_way_out(model, fanouts, reason, tmp_path):
    with pytest.raises(NotServable, match=f"(?s){reason}"):
        package(model, homogeneous(), tmp_path, fanouts=[-1] * fanouts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("model", [Reversed(), Two(pyg.SAGEConv(6, 8, flow="target_to_source"))])
def test_edges_that_leave_a_node_are_refused_with_the_way_out(model, tmp_path):
    with pytest.raises(
        NotSplittable, match=r"edges that leave a node.*node__rev_to__node.*both_directions=True\)"
    ):
        package(model, homogeneous(), tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "model", [Two(last=pyg.TAGConv(8, 3, K=2)), Two(pyg.GCNConv(6, 8, improved=True))], ids=["TAG", "GCN"]
)
def test_a_split_model_has_a_fanout_for_each_hop(model, tmp_path):
    with pytest.raises(PackagingError, match=r"2 fanouts.*the model has 3 message-passing layers"):
        package(model, homogeneous(), tmp_path)
    assert package(model, homogeneous(), tmp_path, fanouts=[-1] * 3).spec.num_layers == 3


def test_a_wrong_stage_is_refused(tmp_path, monkeypatch):
    from hopline.packaging.regions import Reduced

    monkeypatch.setattr(Reduced, "forward", lambda self, rows: rows + 1.0)
    with pytest.raises(ParityError, match="differ from the module's"):
        package(Two(), homogeneous(), tmp_path)
    assert not list(tmp_path.iterdir())


class Statement(Two):
    def middle(self, h):
        F.relu_(h)
        return h


class Flag(Two):
    def middle(self, h):
        F.relu(h, inplace=True)
        return h


class Masked(Two):
    def middle(self, h):
        h[h < 0] = 0
        return h


class Aliased(Two):
    def middle(self, h):
        before = h
        h += 1
        return before * 2


class Column(Two):
    def middle(self, h):
        h[:, 0].zero_()
        return h


class Input(Two):
    def forward(self, x, edge_index):
        x.div_(x.norm(dim=1, keepdim=True))
        return super().forward(x, edge_index)


class Typed(Two):
    def middle(self, h):
        return h.relu() if isinstance(h, torch.Tensor) and not hasattr(h, "x_dict") else h


@pytest.mark.sample(2)
@pytest.mark.parametrize("model", [Statement, Flag, Masked, Aliased, Input, Typed])
def test_changes_in_place_and_questions_of_type_are_split_as_they_run(model, tmp_path):
    package(model(), homogeneous(), tmp_path)


def test_a_change_through_a_view_is_refused_with_its_place(tmp_path):
    with pytest.raises(NotSplittable, match="in place"):
        package(Column(), homogeneous(), tmp_path)


def test_a_branch_on_whether_there_are_edges_is_in_the_report(tmp_path):
    class Empty(Two):
        def forward(self, x, edge_index):
            return x[:, :3] if edge_index.numel() == 0 else super().forward(x, edge_index)

    report = package(Empty(), homogeneous(), tmp_path)
    assert "without any edge of node__to__node, the model takes another branch" in report.notes[1]


class Spread(nn.Module):
    """A neighbour's value is passed on, and counted."""

    def __init__(self):
        super().__init__()
        self.conv = pyg.SimpleConv(aggr="sum")

    def forward(self, x, edge_index):
        return self.conv(self.conv(x, edge_index), edge_index)


def neighborhood(graph, target, seed, hops):
    """Edges that a message to the seed crosses within some hops, and nodes: by type, bool."""
    reached = {name: np.zeros(len(rows), np.bool_) for name, rows in graph.features.items()}
    reached[target][seed] = True
    crossed = {key: np.zeros(len(edges.indices), np.bool_) for key, edges in graph.edges.items()}
    for _ in range(hops):
        before = {name: rows.copy() for name, rows in reached.items()}
        for key, edges in graph.edges.items():
            into = before[edges.dst][edges.destinations]
            crossed[key] |= into
            reached[edges.src][edges.indices[into]] = True
    return crossed, reached


def test_a_probe_has_chains_longer_than_the_hops_isolated_nodes_and_a_hub():
    check = CheckGraph.of(homogeneous())
    drawn = strangers(check, 2, np.random.default_rng(0)).edges["node__to__node"]
    degree = np.diff(drawn.indptr)
    assert degree.max() >= 20
    assert (degree == 0).sum() >= 2
    graph = strangers(check, 2, np.random.default_rng(0))
    last = 3 * 7  # the first node of the last step
    found = [neighborhood(graph, "node", last, hops) for hops in range(1, 7)]
    for part, key in ((0, "node__to__node"), (1, "node")):
        reached = [each[part][key].sum() for each in found]
        assert all(before < after for before, after in pairwise(reached))


def test_no_edge_joins_strangers_to_real_nodes():
    real = CheckGraph.of(hetero(attr_dim=2))
    probe = Probe.of(real, 2)
    for key, edges in probe.check.edges.items():
        of_real = edges.indices < real.num_nodes(edges.src)
        np.testing.assert_array_equal(of_real, edges.destinations < real.num_nodes(edges.dst))
        assert edges.attr.shape == (len(edges.indices), 2), key


def test_changed_graphs_are_the_same_graph_to_a_local_module():
    check = CheckGraph.of(homogeneous())
    order = {"node": np.random.default_rng(0).permutation(40)}

    def answer(graph):
        edges = torch.from_numpy(graph.edges["node__to__node"].edge_index)
        return Spread()(torch.from_numpy(graph.features["node"]), edges).numpy()

    before = answer(check)
    np.testing.assert_allclose(answer(renumbered(check, order)), before[order["node"]], rtol=1e-5)
    np.testing.assert_allclose(answer(repeated(check, 3)), np.tile(before, (3, 1)), rtol=1e-5)


def test_the_embedding_is_what_the_modules_last_linear_reads(tmp_path):
    class Headed(Two):
        def __init__(self):
            super().__init__(last=pyg.SAGEConv(8, 5))
            self.clf = nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Dropout(0.3), nn.Linear(7, 3))

        def forward(self, x, edge_index):
            return self.clf(super().forward(x, edge_index))

    report = package(Headed(), homogeneous(), tmp_path)
    assert "embedding" in report.spec.parity["served"]
    assert report.spec.levels[2]["node"].state_dim == 7


def test_an_embedding_model_answers_the_modules_own_rows(tmp_path):
    class Unit(Two):
        def forward(self, x, edge_index):
            return F.normalize(super().forward(x, edge_index), dim=-1)

    report = package(Unit(), homogeneous(), tmp_path, task="embedding")
    assert report.spec.parity["served"].keys() == {"embedding"}
    states = load_model(report.path, report.spec, homogeneous()).final_states({"node": np.arange(9)})[
        "node"
    ]
    np.testing.assert_allclose(np.linalg.norm(states, axis=1), 1.0, atol=1e-5)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("offset", "is_noted"), [(0.0, False), (300.0, True)])
def test_answers_that_float32_does_not_settle_are_noted(offset, is_noted, tmp_path):
    graph = homogeneous(offset=offset)
    report = package(pyg.SAGEConv(6, 3, aggr="std"), graph, tmp_path, fanouts=[-1])
    assert any("depend on the order of sums" in note for note in report.notes) == is_noted


class Deviation(nn.Module):
    """A standard deviation, whose rounding the last layer makes small."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = pyg.SAGEConv(6, 4, aggr="std", root_weight=False), nn.Linear(4, 3)
        self.last.weight.data *= 1e-3

    def forward(self, x, edge_index):
        return self.last(self.conv(x, edge_index))


@pytest.mark.release
def test_inner_values_are_measured_by_their_own_rounding_not_by_that_of_the_answers(tmp_path):
    options = {"fanouts": [-1], "task": "regression"}
    report = package(Deviation(), homogeneous(offset=30.0), tmp_path, **options)
    assert report.spec.parity["served"]["embedding"] > 1e-4 > report.spec.parity["served"]["logits"]
    assert any("own embeddings in float32" in note for note in report.notes)
    plain = package(Deviation(), homogeneous(), tmp_path / "plain", **options)
    assert plain.spec.parity["served"]["embedding"] < 1e-4
    assert not any("in float32" in note for note in plain.notes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_are_noted(dtype, tmp_path):
    report = package(pyg.SAGEConv(6, 3).to(dtype), homogeneous(), tmp_path, fanouts=[-1])
    assert any(f"lin_l.weight ({dtype})" in note and "float32" in note for note in report.notes)


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.conv = nn.Linear(6, 6), pyg.SAGEConv(6, 3)

    def forward(self, x, edge_index):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.linear(x)
        return self.conv(h.float(), edge_index)


def test_autocast_is_noted_or_refused(tmp_path):
    try:
        report = package(Autocast(), homogeneous(), tmp_path, fanouts=[-1])
    except PackagingError:
        return
    assert any("torch.autocast" in note for note in report.notes)


def change_edges(conv):
    conv.edge_encoder = nn.Sequential(nn.Linear(2, 6), nn.Tanh())


def change_first(conv):
    conv.pre_nns[0] = nn.Sequential(nn.LayerNorm(18), nn.Linear(18, 6))


def change_to_layer(conv):
    conv.pre_nns[0] = nn.Linear(18, 6)


def change_bias(conv):
    conv.pre_nns[0][0] = nn.Linear(18, 6, bias=False)


class OfPna(nn.Module):
    def __init__(self, change):
        super().__init__()
        self.conv = pyg.PNAConv(6, 6, ["mean"], ["identity"], torch.tensor([3, 5, 20]), edge_dim=2)
        change(self.conv)

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, edge_attr)


@pytest.mark.sample(1)
@pytest.mark.parametrize("change", [change_edges, change_first, change_to_layer, change_bias])
def test_a_conv_with_replaced_parts_is_split_by_its_code(change, tmp_path):
    package(OfPna(change), homogeneous(attr_dim=2), tmp_path, fanouts=[-1])


class Stacked(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = pyg.SAGEConv(6, 3), pyg.SAGEConv(6, 3)

    def forward(self, x, edge_index):
        found = torch.stack([self.a(x, edge_index), self.b(x, edge_index)], dim=1)
        return found.mean(1, keepdim=True).squeeze(1)


def test_a_reduction_that_keeps_its_dimension_is_served(tmp_path):
    report = package(Stacked(), homogeneous(), tmp_path, fanouts=[-1])
    assert report.spec.parity["max_abs_diff"] < 1e-5


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(6, 6)

    def forward(self, x, edge_index):
        return torch.view_as_complex(self.conv(x, edge_index).reshape(-1, 3, 2))


def test_complex_answers_are_refused(tmp_path):
    with pytest.raises(PackagingError, match=r"complex numbers.*view_as_real"):
        package(Complex(), homogeneous(), tmp_path, fanouts=[-1])


def test_an_order_of_edges_that_matters_by_rounding_is_refused_as_such(tmp_path):
    with pytest.raises(NotServable, match=r"float32 is not enough.*standardise"):
        package(
            pyg.SAGEConv(6, 3, aggr="std", root_weight=False),
            homogeneous(offset=3e4),
            tmp_path,
            fanouts=[-1],
        )


class Root(nn.Module):
    """NaN where its layer is below some bound."""

    def __init__(self, bound):
        super().__init__()
        self.conv, self.bound = pyg.SAGEConv(6, 3), bound

    def forward(self, x, edge_index):
        return torch.sqrt(self.conv(x, edge_index) - self.bound)


def test_rows_of_nan_are_noted_and_have_no_label(tmp_path):
    graph = homogeneous()
    report = package(Root(-1.0), graph, tmp_path, fanouts=[-1])
    assert any("answers NaN for" in note and "label of such a row is -1" in note for note in report.notes)
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits", "label"), 0)
    (served,) = answerer.answer([ScoreRequest("m", nodes=list(range(40)))])
    is_nan = np.isnan(served.outputs["logits"]).any(axis=1)
    assert 0 < is_nan.sum() < 40
    np.testing.assert_array_equal(served.outputs["label"] == -1, is_nan)


class Log(Root):
    """Minus infinity where its layer is below some bound."""

    def forward(self, x, edge_index):
        return torch.log(torch.relu(self.conv(x, edge_index) - self.bound))


@pytest.mark.release
def test_rows_of_infinity_are_noted(tmp_path):
    graph = homogeneous()
    report = package(Log(-1.0), graph, tmp_path, fanouts=[-1], task="regression")
    notes = [note for note in report.notes if "answers infinity for" in note and "JSON has null" in note]
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 0)
    (served,) = answerer.answer([ScoreRequest("m", nodes=list(range(40)))])
    assert 0 < np.isneginf(served.outputs["logits"]).any(axis=1).sum() < 40
    assert len(notes) == 1
    assert not any("answers NaN" in note for note in report.notes)
    assert not any("infinity" in note for note in package(Two(), graph, tmp_path / "finite").notes)


def test_a_model_that_answers_nothing_but_nan_is_refused(tmp_path):
    with pytest.raises(PackagingError, match="answers NaN, whatever the node"):
        package(Root(1e9), homogeneous(), tmp_path, fanouts=[-1])
    model = Two()
    model.last.lin_l.weight.data[0, 0] = torch.nan
    with pytest.raises(PackagingError, match=r"its weights last\.lin_l\.weight hold NaN"):
        package(model, homogeneous(), tmp_path)
