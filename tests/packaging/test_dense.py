"""Every conv family and option equals PyG at full neighbourhoods."""

import copy

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg

from hopline.packaging.dense.aggregate import EdgeAggregation
from hopline.packaging.dense.attend import BUILDERS
from tests.packaging.graphs import homogeneous, relational
from tests.packaging.in_torch import assert_equals_pyg


def two_layers(first, second, extra=""):
    """A model whose convs get `extra`: "", "edge_weight" or "edge_attr"."""

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = first, second

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu(), edge_index)

    class Weighted(Plain):
        def forward(self, x, edge_index, edge_weight):
            return self.second(self.first(x, edge_index, edge_weight).relu(), edge_index, edge_weight)

    class Attributed(Plain):
        def forward(self, x, edge_index, edge_attr):
            x = self.first(x, edge_index, edge_attr=edge_attr).relu()
            return self.second(x, edge_index, edge_attr=edge_attr)

    return {"": Plain, "edge_weight": Weighted, "edge_attr": Attributed}[extra]()


def mlp(d_in, d_out):
    return nn.Sequential(nn.Linear(d_in, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, d_out))


def trained(model):
    """Give norms and zero-initialised parameters values as training would."""
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.1, 0.5)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
    return model


@pytest.mark.parametrize("kind", [*BUILDERS, pyg.GINEConv], ids=lambda kind: kind.__name__)
def test_a_conv_needs_edge_attributes_if_pyg_cannot_run_it_without(kind):
    first = nn.Linear(4, 4) if kind in (pyg.GINConv, pyg.GINEConv) else 4
    relational = kind in (pyg.RGCNConv, pyg.FastRGCNConv)
    further = [2] if relational else []
    conv = kind(first, *([] if first != 4 else [4]), *further)
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    arguments = [torch.tensor([0, 1, 0])] if relational else []
    if kind is pyg.GINEConv:
        with pytest.raises((AttributeError, TypeError, AssertionError)):
            conv(torch.ones(3, 4), edges, *arguments)
    else:
        conv(torch.ones(3, 4), edges, *arguments)


@pytest.mark.sample(8)
@pytest.mark.parametrize("aggr", ["mean", "sum", "add", "max"])
@pytest.mark.parametrize(
    "options",
    [{}, {"project": True}, {"normalize": True}, {"root_weight": False}, {"bias": False}],
    ids=str,
)
@pytest.mark.parametrize("hidden", [8, 64])
def test_sage_equals_pyg(aggr, options, hidden):
    make = lambda a, b: pyg.SAGEConv(a, b, aggr=aggr, **options)  # noqa: E731
    assert_equals_pyg(trained(two_layers(make(6, hidden), make(hidden, 3))), homogeneous())


AGGREGATIONS = [
    "min",
    "var",
    "std",
    "softmax",
    pyg.SoftmaxAggregation(t=0.5, learn=True),
    pyg.SoftmaxAggregation(learn=True, channels=6),
    pyg.PowerMeanAggregation(learn=True, p=2.0),
    ["mean", "max"],
    ["sum", "min", "std", "softmax"],
    ["mean", "powermean"],
    pyg.MultiAggregation(["mean", "max"], mode="sum"),
    pyg.DegreeScalerAggregation(
        ["mean", "std"], ["identity", "attenuation", "linear"], torch.tensor([1, 4, 9, 3])
    ),
]


@pytest.mark.sample(12)
@pytest.mark.parametrize("aggr", AGGREGATIONS, ids=str)
@pytest.mark.parametrize("options", [{}, {"project": True}, {"root_weight": False}], ids=str)
def test_sage_over_other_aggregations_equals_pyg(aggr, options):
    if isinstance(aggr, pyg.DegreeScalerAggregation):  # SAGEConv does not know its width
        first = pyg.SAGEConv(6, 6, **options)
        first.aggr_module, first.lin_l = copy.deepcopy(aggr), nn.Linear(36, 6)
    else:
        first = pyg.SAGEConv(6, 6, aggr=copy.deepcopy(aggr), **options)
    assert_equals_pyg(trained(two_layers(first, pyg.SAGEConv(6, 3))), homogeneous())


@pytest.mark.sample(1)
@pytest.mark.parametrize("aggr", ["min", "std", "softmax"])
def test_gin_and_graph_conv_over_other_aggregations_equal_pyg(aggr):
    for make in (
        lambda a, b: pyg.GINConv(mlp(a, b), train_eps=True, aggr=aggr),
        lambda a, b: pyg.GraphConv(a, b, aggr=aggr),
    ):
        assert_equals_pyg(trained(two_layers(make(6, 8), make(8, 3))), homogeneous())


@pytest.mark.sample(5)
@pytest.mark.parametrize("options", [{}, {"towers": 2}, {"towers": 2, "divide_input": True},
    {"pre_layers": 2, "post_layers": 2}, {"train_norm": True, "act": "elu"}], ids=str)  # fmt: skip
@pytest.mark.parametrize("edges", [False, True])
def test_pna_equals_pyg(options, edges):
    aggregators, scalers = (
        ["mean", "min", "max", "std", "sum"],
        ["identity", "amplification", "attenuation"],
    )
    degrees = torch.tensor([2, 3, 8, 5, 1])
    if edges:
        options = {**options, "edge_dim": 4}
    model = two_layers(
        pyg.PNAConv(6, 8, aggregators, scalers, degrees, **options),
        pyg.PNAConv(8, 4, aggregators[:2], [*scalers, "linear", "inverse_linear"], degrees, **options),
        "edge_attr" if edges else "",
    )
    assert_equals_pyg(trained(model), homogeneous(attr_dim=4 if edges else 0))


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "options",
    [{}, {"t": 0.3, "learn_t": True}, {"aggr": "powermean", "p": 3.0, "learn_p": True}, {"aggr": "max"},
     {"aggr": ["mean", "std"]}, {"msg_norm": True, "learn_msg_scale": True},
     {"norm": "layer", "bias": True}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("edges", [False, True])
def test_gen_equals_pyg(options, edges):
    if edges:
        options = {**options, "edge_dim": 4}
    model = two_layers(
        pyg.GENConv(6, 8, **options), pyg.GENConv(8, 4, **options), "edge_attr" if edges else ""
    )
    assert_equals_pyg(trained(model), homogeneous(attr_dim=4 if edges else 0))


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "options",
    [{}, {"add_self_loops": False}, {"normalize": False}, {"bias": False},
     {"normalize": False, "aggr": "mean"}, {"normalize": False, "aggr": "max"}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("hidden", [4, 64])
def test_gcn_equals_pyg(options, weight, hidden):
    if weight and options.get("aggr") == "max":
        options = {}
    model = two_layers(
        pyg.GCNConv(6, hidden, **options),
        pyg.GCNConv(hidden, 3, **options),
        "edge_weight" if weight else "",
    )
    assert_equals_pyg(trained(model), homogeneous(weight=weight))


@pytest.mark.sample(7)
@pytest.mark.parametrize("conv", [pyg.GATConv, pyg.GATv2Conv])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heads": 3},
        {"heads": 3, "concat": False},
        {"add_self_loops": False},
        {"residual": True, "heads": 2},
        {"bias": False, "negative_slope": 0.05},
        {"share_weights": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("hidden", [4, 1])
def test_gat_equals_pyg(conv, options, hidden):
    if "share_weights" in options and conv is pyg.GATConv:
        options = {"heads": 4}
    width = hidden * (options.get("heads", 1) if options.get("concat", True) else 1)
    model = two_layers(conv(6, hidden, **options), conv(width, 3, **options))
    assert_equals_pyg(trained(model), homogeneous())


@pytest.mark.sample(5)
@pytest.mark.parametrize("conv", [pyg.GATConv, pyg.GATv2Conv])
@pytest.mark.parametrize(
    "options",
    [{}, {"add_self_loops": False}, {"fill_value": 0.5}, {"fill_value": "add"}, {"heads": 2}],
    ids=str,
)
def test_gat_with_edge_attributes_equals_pyg(conv, options):
    options = {"edge_dim": 2, **options}
    model = two_layers(conv(6, 4, **options), conv(4 * options.get("heads", 1), 3, **options), "edge_attr")
    assert_equals_pyg(trained(model), homogeneous(attr_dim=2))


@pytest.mark.sample(2)
@pytest.mark.parametrize("train_eps", [False, True])
@pytest.mark.parametrize("aggr", ["add", "mean", "max"])
def test_gin_equals_pyg(train_eps, aggr):
    model = two_layers(
        pyg.GINConv(mlp(6, 5), eps=0.3, train_eps=train_eps, aggr=aggr), pyg.GINConv(mlp(5, 3), aggr=aggr)
    )
    assert_equals_pyg(trained(model), homogeneous())


@pytest.mark.sample(3)
@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("aggr", ["add", "mean", "max"])
def test_gine_equals_pyg(edge_dim, aggr):
    first = pyg.GINEConv(mlp(6, 6), eps=0.2, edge_dim=edge_dim, aggr=aggr)
    second = pyg.GINEConv(mlp(6, 3), edge_dim=edge_dim, aggr=aggr)
    assert_equals_pyg(trained(two_layers(first, second, "edge_attr")), homogeneous(attr_dim=edge_dim or 6))


@pytest.mark.sample(3)
@pytest.mark.parametrize("aggr", ["add", "mean", "max"])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("hidden", [4, 64])
def test_graph_conv_equals_pyg(aggr, weight, hidden):
    weight = weight and aggr != "max"
    make = lambda a, b: pyg.GraphConv(a, b, aggr=aggr)  # noqa: E731
    model = two_layers(make(6, hidden), make(hidden, 3), "edge_weight" if weight else "")
    assert_equals_pyg(trained(model), homogeneous(weight=weight))


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    "options",
    [{}, {"heads": 2}, {"heads": 2, "concat": False}, {"beta": True}, {"root_weight": False},
     {"bias": False}, {"heads": 2, "concat": False, "beta": True}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("edge_dim", [None, 2])
@pytest.mark.parametrize("hidden", [4, 1])
def test_transformer_equals_pyg(options, edge_dim, hidden):
    width = hidden * (options.get("heads", 1) if options.get("concat", True) else 1)
    make = lambda a, b: pyg.TransformerConv(a, b, edge_dim=edge_dim, **options)  # noqa: E731
    model = two_layers(make(6, hidden), make(width, 3), "edge_attr" if edge_dim else "")
    assert_equals_pyg(trained(model), homogeneous(attr_dim=edge_dim or 0))


@pytest.mark.sample(6)
@pytest.mark.parametrize("conv", [pyg.RGCNConv, pyg.FastRGCNConv])
@pytest.mark.parametrize(
    "options",
    [{}, {"num_bases": 2}, {"num_blocks": 2}, {"root_weight": False}, {"bias": False}, {"aggr": "add"}],
    ids=str,
)  # fmt: skip
def test_rgcn_equals_pyg(conv, options):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = conv(6, 8, 12, **options)
            self.second = conv(8, 4, 12, **options)

        def forward(self, x, edge_index, edge_type):
            return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)

    assert_equals_pyg(trained(Model()), relational(12))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "conv",
    [
        pyg.SAGEConv((6, 6), 3),
        pyg.GATConv((6, 6), 3, add_self_loops=True),
        pyg.GATv2Conv((6, 6), 3),
        pyg.GraphConv((6, 6), 3),
        pyg.TransformerConv((6, 6), 3),
        pyg.GINConv(mlp(6, 3)),
    ],
    ids=lambda conv: type(conv).__name__,
)
def test_a_pair_of_values_equals_pyg(conv):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.left, self.right, self.conv = nn.Linear(6, 6), nn.Linear(6, 6), conv
            self.before = pyg.SAGEConv(6, 6)

        def forward(self, x, edge_index):
            x = self.before(x, edge_index)
            return self.conv((self.left(x), self.right(x)), edge_index)

    assert_equals_pyg(trained(Model()), homogeneous())


def test_no_destination_equals_pyg():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv((6, 6), 3)

        def forward(self, x, edge_index):
            return self.conv((x, None), edge_index, size=None)

    class WithoutSize(Model):
        def forward(self, x, edge_index):
            return torch.relu(self.conv((x, None), edge_index))

    graph = homogeneous()
    for model in (Model(), WithoutSize()):
        assert_equals_pyg(model, graph)


def test_graph_without_any_edge_equals_pyg():
    graph = homogeneous(num_edges=60)
    from hopline.graph import Graph

    empty = Graph.from_edges([[], []], graph.nodes["node"].features)
    for conv in (pyg.SAGEConv, pyg.GATConv, pyg.TransformerConv, pyg.GCNConv):
        assert_equals_pyg(two_layers(conv(6, 4), conv(4, 3)), empty)


def test_a_deviation_of_near_messages_is_that_in_float64():
    """Differences of squares would be off by 1e-3, and 0 where the deviation is near the least one."""
    torch.manual_seed(0)
    messages, mask = 10 + 0.01 * torch.randn(30, 9, 4), torch.rand(30, 9) < 0.7
    rows, owner = messages[mask], mask.nonzero()[:, 0]
    found = EdgeAggregation(pyg.StdAggregation(), AssertionError)(rows, owner, torch.arange(30))
    expected = pyg.StdAggregation()(rows.double(), owner, dim_size=30)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-4)
