"""What a sample of a graph may not show: far features, degrees, node numbers, code added to a conv."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.utils import degree, scatter

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import NotServable, NotSplittable, PackagingError
from hopline.graph import Graph
from hopline.types import ScoreRequest
from tests.packaging.graphs import homogeneous


class Two(nn.Module):
    def __init__(self, before=None, first=None, after=None):
        super().__init__()
        self.first, self.last = first or pyg.SAGEConv(6, 8), pyg.SAGEConv(8, 3)
        self.before, self.after = before, after

    def forward(self, x, edge_index):
        if self.before is not None:
            x = self.before(x, edge_index)
        out = self.last(self.first(x, edge_index).relu(), edge_index)
        return out if self.after is None else out + self.after(x, edge_index)


def package(model, repository, graph=None, fanouts=2, **options):
    graph = graph or homogeneous()
    return hopline.package(
        model, graph, repository, name="m", fanouts=[-1] * fanouts, task="multiclass", **options
    )


@pytest.mark.parametrize(
    "before",
    [
        lambda x, _: torch.where((x > 50).any(), x * 0.5, x),
        lambda x, _: x * (1 + x.abs().max().clamp(min=50) / 50),
        lambda x, e: x * (1 + degree(e[1], x.size(0)).max().clamp(min=100) / 100),
        lambda x, _: x + (torch.arange(x.size(0)) > 5000).float()[:, None],
    ],
    ids=["any beyond", "maximum beyond", "largest degree", "numbers beyond"],
)
def test_what_far_nodes_decide_is_refused(before, tmp_path):
    with pytest.raises((NotServable, NotSplittable)):
        package(Two(before), tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (lambda x, e: x * (degree(e[1], x.size(0)) < 20)[:, None], None),
        (lambda x, e: x * (1 + 1e-6 * degree(e[1], x.size(0)))[:, None], None),
        (None, lambda x, e: further(x, e, 3, 20.0)),
        (None, lambda x, e: -further(-x, e, 3, 20.0)),
        (None, lambda x, e: further(F.relu(degree(e[1], x.size(0))[:, None] - 600), e, 2, 0.0)),
    ],
    ids=["degree of hubs", "hardly", "large", "small", "large degree"],
)
def test_a_hop_that_the_sample_hardly_shows_needs_a_fanout(before, after, tmp_path):
    """On another graph, with far features or degrees of thousands, it counts more."""
    model = Two(before, after=after)
    with pytest.raises(PackagingError, match=r"2 fanouts.*the model has 3 message-passing layers"):
        package(model, tmp_path)
    assert package(model, tmp_path, fanouts=3).spec.num_layers == 3


def further(x, e, hops, beyond):
    """What `beyond` leaves of the first column, averaged over some hops."""
    found = x[:, :1]
    for _ in range(hops):
        found = scatter(found[e[0]], e[1], 0, dim_size=x.size(0), reduce="mean")
    return F.relu(found - beyond)


def hooked(kind):
    conv = pyg.SAGEConv(6, 8)
    clamp = lambda *given: given[-1].clamp(max=1e4) if torch.is_tensor(given[-1]) else None  # noqa: E731
    match kind:
        case "forward":
            conv.register_forward_hook(clamp)
        case "message":
            conv.register_message_forward_hook(clamp)
        case "inner":
            conv.lin_l.register_forward_hook(clamp)
        case "replaced":
            conv.message = lambda x_j: x_j.clamp(max=1e4)
        case "patched layer":
            true = conv.lin_l.forward
            conv.lin_l.forward = lambda x: true(x).clamp(max=1e4)
        case "another layer":
            conv.lin_l = nn.Sequential(nn.Linear(6, 8), nn.Hardtanh(-1e4, 1e4))
    return conv


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "kind", ["forward", "message", "inner", "replaced", "patched layer", "another layer"]
)
def test_what_was_added_to_a_conv_is_never_lost(kind, tmp_path):
    """It acts on values that no check reaches, so only its being there can tell."""
    model = Two(first=hooked(kind))
    try:
        report = package(model, tmp_path)
    except PackagingError:
        return
    assert_served_on_large_features(report, model)


def assert_served_on_large_features(report, model):
    graph = homogeneous(offset=1e6)
    features, edges = graph.nodes["node"].features, graph.edges["node__to__node"]
    edge_index = torch.from_numpy(np.stack([edges.indices.astype(np.int64), _targets(graph)]))
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 99)
    (found,) = answerer.answer([ScoreRequest("m", nodes=list(range(len(features))))])
    with torch.no_grad():
        expected = model.eval()(torch.from_numpy(np.array(features)), edge_index)
    np.testing.assert_allclose(found.outputs["logits"], expected, rtol=1e-4)


def test_weight_norm_is_part_of_the_weights(tmp_path):
    conv = pyg.SAGEConv(6, 8)
    nn.utils.parametrizations.weight_norm(conv.lin_l)
    report = package(Two(first=conv), tmp_path)
    assert report.spec.parity["max_abs_diff"] < 1e-4


def test_functions_are_compared_on_both_sides_of_zero(tmp_path):
    """All real features are positive; a served graph may have others."""
    graph = homogeneous()
    positive = hopline.Graph.from_edges(
        [graph.edges["node__to__node"].indices, _targets(graph)], abs(graph.nodes["node"].features) + 0.5
    )
    model = Two(lambda x, _: torch.atan2(x, x - 0.1))
    report = package(model, tmp_path, positive)
    assert report.spec.parity["max_abs_diff"] < 1e-4


def _targets(graph):
    indptr = graph.edges["node__to__node"].indptr
    return torch.repeat_interleave(
        torch.arange(len(indptr) - 1), torch.diff(torch.from_numpy(indptr.copy()))
    ).numpy()


def test_a_class_that_was_patched_is_not_what_it_was(tmp_path, monkeypatch):
    model = Two()
    monkeypatch.setattr(pyg.SAGEConv, "message", lambda self, x_j: x_j.clamp(max=1e4))
    assert_served_on_large_features(package(model, tmp_path), model)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "before",
    [
        lambda x, _: torch.pow(x, 2),
        lambda x, _: torch.where(x > 0.5, x, 0.0),
        lambda x, _: torch.remainder(x, 3.0),
        lambda x, _: x * torch.isin(x.round(), 1.0),
        lambda x, _: x * 2 if torch.is_tensor(x) and isinstance(x, torch.Tensor) else x,
    ],
    ids=["pow", "where", "remainder", "isin", "isinstance"],
)
def test_calls_that_torch_reads_in_c_are_traced(before, tmp_path):
    """A traced value that calls itself a tensor ends the process in these."""
    package(Two(before), tmp_path)


def test_a_slice_by_a_fixed_number_of_rows_is_refused(tmp_path):
    with pytest.raises(PackagingError, match="works only on all nodes together"):
        package(Two(lambda x, _: torch.cat([part * 2 for part in x.split(512)])), tmp_path)


class Coded(nn.Module):
    """A lookup by edge codes that do not begin at 0."""

    def __init__(self, conv, first):
        super().__init__()
        self.table, self.conv, self.first = nn.Embedding(4, 5), conv, first

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, self.table(edge_attr[:, 0].long() - self.first))


@pytest.mark.sample(2)
@pytest.mark.parametrize("first", [1, 5])
@pytest.mark.parametrize(
    "conv",
    [
        lambda: pyg.GINEConv(nn.Linear(6, 3), edge_dim=5),
        lambda: pyg.GATConv(6, 3, edge_dim=5, add_self_loops=False),
        lambda: pyg.GATv2Conv(6, 3, edge_dim=5),
        lambda: pyg.PNAConv(6, 3, ["mean", "max"], ["identity"], torch.tensor([1, 2]), edge_dim=5),
    ],
    ids=["GINE", "GAT", "GATv2 with self-loops", "PNA"],
)
def test_codes_of_edges_need_not_begin_at_0(conv, first, tmp_path):
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 36, (2, 150))  # the last nodes have no edge
    graph = Graph.from_edges(
        edges,
        rng.normal(size=(40, 6)).astype(np.float32),
        edge_attr=rng.integers(first, first + 4, (150, 1)).astype(np.float32),
    )
    package(Coded(conv(), first), tmp_path, graph, fanouts=1)


def test_a_model_that_refuses_far_features_is_served(tmp_path):
    class Amounts(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.conv = nn.Embedding(10, 6), pyg.SAGEConv(6, 3)

        def forward(self, x, edge_index):
            # the logarithm of a negative amount is NaN, which is no code
            return self.conv(self.table(x[:, 0].log().clamp(0, 9).long()), edge_index)

    rng = np.random.default_rng(0)
    rows = rng.uniform(1, 5000, (40, 2)).astype(np.float32)
    graph = Graph.from_edges(rng.integers(0, 36, (2, 150)), rows)
    package(Amounts(), tmp_path, graph, fanouts=1)
