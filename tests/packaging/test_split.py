"""Whole models are cut into stages that equal PyG: skips, jumping knowledge, encoders, several types."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn import models

from tests.packaging.graphs import hetero, homogeneous
from tests.packaging.in_torch import assert_equals_pyg, split
from tests.packaging.test_dense import trained


@pytest.mark.sample(5)
@pytest.mark.parametrize("jk", [None, "last", "cat", "max", "lstm"])
@pytest.mark.parametrize("norm", [None, "BatchNorm", "LayerNorm"])
def test_basic_gnn_equals_pyg(jk, norm):
    options = {"mode": "node"} if norm == "LayerNorm" else {}
    model = models.GraphSAGE(6, 8, 3, 4, jk=jk, norm=norm, norm_kwargs=options, dropout=0.5)
    assert_equals_pyg(trained(model), homogeneous())


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "model", [models.GCN, models.GIN, models.GAT, models.GraphSAGE], ids=lambda m: m.__name__
)
@pytest.mark.parametrize("act_first", [False, True])
def test_basic_gnn_families_equal_pyg(model, act_first):
    assert_equals_pyg(trained(model(6, 8, 2, 4, norm="batch_norm", act_first=act_first)), homogeneous())


def test_basic_gcn_reads_edge_weights():
    plans = assert_equals_pyg(
        models.GCN(6, 8, 2, 4), homogeneous(weight=True), arguments={"edge_weight": "edge_weight"}
    )
    assert all(item.weighted for plan in plans for item in plan.inputs if item.kind == "reduce")


def test_basic_gat_reads_edge_attributes():
    assert_equals_pyg(models.GAT(6, 8, 2, 4, edge_dim=2), homogeneous(attr_dim=2))


def test_residual_states_carry_what_is_added_later():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Linear(6, 8)
            self.convs = nn.ModuleList([pyg.GCNConv(8, 8) for _ in range(3)])
            self.norms = nn.ModuleList([pyg.LayerNorm(8, mode="node") for _ in range(3)])
            self.decode = nn.Linear(8, 2)

        def forward(self, x, edge_index):
            h = first = self.encode(x)
            for conv, norm in zip(self.convs, self.norms, strict=True):
                h = h + F.dropout(norm(conv(h, edge_index)).relu(), 0.5, self.training)
            return self.decode(h + 0.1 * first + x[:, :1])

    plans = assert_equals_pyg(Model(), homogeneous())
    assert [plan.level for plan in plans] == [0, 1, 2, 3]
    kinds = {item.kind for item in plans[3].inputs}
    assert kinds == {"self", "reduce", "features"}  # level-0 values are made again, not carried


def test_views_splits_and_stacks_are_row_wise():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = pyg.SAGEConv(6, 8), pyg.SAGEConv(4, 4)
            self.norm = nn.BatchNorm1d(8)
            self.scale = nn.Parameter(torch.randn(4))

        def forward(self, x, edge_index):
            h = self.norm(self.first(x, edge_index))
            left, right = h.chunk(2, dim=-1)
            heads = h.view(h.size(0), 2, 4)
            mixed = torch.stack([left, right]).mean(dim=0) * torch.softmax(heads, dim=1).sum(1)
            best = torch.stack([left, right], dim=0).max(dim=0)[0]
            h2 = self.second(mixed + best, edge_index) * self.scale.exp()
            return (h2 + heads[:, 0]).norm(dim=-1)

    assert_equals_pyg(trained(Model()), homogeneous())


def test_edge_level_code_runs_inside_the_stage():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 6))
            self.conv = pyg.GINEConv(nn.Linear(6, 3))

        def forward(self, x, edge_index, edge_attr):
            return self.conv(x, edge_index, self.encode(edge_attr))

    assert_equals_pyg(Model(), homogeneous(attr_dim=2))


def test_one_conv_used_twice_and_two_convs_of_one_layer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.shared, self.other = pyg.SAGEConv(6, 6), pyg.GATConv(6, 6)

        def forward(self, x, edge_index):
            x = self.shared(x, edge_index) + self.other(x, edge_index)
            return torch.cat([self.shared(x, edge_index), self.other(x, edge_index)], dim=1)

    assert_equals_pyg(Model(), homogeneous())


def test_a_narrow_last_layer_is_lifted_below():
    model = models.GraphSAGE(6, 64, 2, 3)
    plans = assert_equals_pyg(model, homogeneous())
    assert [plan.state_dim for plan in plans] == [6, 6, 3]  # 3 for the neighbours, 3 for self, not 64


def test_a_state_holds_no_multiple_of_what_it_holds():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = pyg.GINConv(pyg.MLP([6, 8, 8], norm=None), train_eps=True)
            self.second = pyg.GINConv(pyg.MLP([8, 8, 4], norm=None), eps=-0.4)

        def forward(self, x, edge_index):
            h = self.first(x, edge_index).relu()
            return self.second(h, edge_index) - (2 * h + 1)[:, :4]

    model = Model()
    with torch.no_grad():
        model.first.eps.fill_(0.3), model.second.eps.fill_(-0.4)
    plans = assert_equals_pyg(model, homogeneous())
    assert [plan.state_dim for plan in plans] == [6, 8, 4]


class Hetero(nn.Module):
    def __init__(self, aggr="sum", attr=None):
        super().__init__()
        self.encode = nn.ModuleDict({"paper": nn.Linear(6, 8), "author": pyg.Linear(5, 8)})
        self.convs = nn.ModuleList()
        for _ in range(2):
            self.convs.append(
                pyg.HeteroConv(
                    {
                        ("paper", "cites", "paper"): pyg.GCNConv(8, 8),
                        ("author", "writes", "paper"): pyg.SAGEConv((8, 8), 8),
                        ("paper", "by", "author"): pyg.GATConv((8, 8), 8, add_self_loops=False),
                    },
                    aggr=aggr,
                )
            )
        self.decode = nn.Linear(16 if aggr == "cat" else 8, 3)
        self.shrink = nn.Linear(16, 8)
        self.aggr = aggr

    def forward(self, x_dict, edge_index_dict):
        x_dict = {key: self.encode[key](x).relu() for key, x in x_dict.items()}
        x_dict = self.convs[0](x_dict, edge_index_dict)
        x_dict = {key: F.leaky_relu(x) for key, x in x_dict.items()}
        if self.aggr == "cat":
            x_dict["paper"] = self.shrink(x_dict["paper"])
        x_dict = self.convs[1](x_dict, edge_index_dict)
        return self.decode(x_dict["paper"])


@pytest.mark.sample(2)
@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "min", "cat"])
def test_hetero_conv_equals_pyg(aggr):
    plans = assert_equals_pyg(Hetero(aggr), hetero(), "paper")
    # The authors' last state is not needed for papers.
    assert [(plan.level, plan.node_type) for plan in plans] == [
        (0, "author"), (0, "paper"), (1, "author"), (1, "paper"), (2, "paper")
    ]  # fmt: skip


@pytest.mark.sample(3)
@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
@pytest.mark.parametrize("target", ["paper", "author"])
def test_to_hetero_equals_pyg(aggr, target):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = pyg.SAGEConv((8, 8), 8), pyg.GATConv((8, 8), 4, add_self_loops=False)
            self.encode, self.decode = pyg.Linear(-1, 8), pyg.Linear(4, 3)

        def forward(self, x, edge_index):
            x = self.encode(x)
            x = self.first(x, edge_index).relu()
            return self.decode(self.second(x, edge_index))

    graph = hetero()
    metadata = (list(graph.schema.node_types), [tuple(key.split("__")) for key in graph.schema.edge_types])
    model = pyg.to_hetero(Model(), metadata, aggr=aggr)
    with torch.no_grad():
        from hopline.packaging.check_graph import CheckGraph
        from hopline.packaging.signature import bind

        binding = bind(model, graph.schema)
        binding.call(model, binding.slots(CheckGraph.of(graph)))  # initialises the lazy Linears
    assert_equals_pyg(model, graph, target)


def test_hetero_dict_linear_and_basic_gnn_with_edge_attributes_equal_pyg():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = pyg.HeteroDictLinear({"paper": 6, "author": 5}, 8)
            keys = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")]
            self.conv = pyg.HeteroConv({key: pyg.TransformerConv(8, 4, edge_dim=2) for key in keys})

        def forward(self, x_dict, edge_index_dict, edge_attr_dict):
            return self.conv(self.encode(x_dict), edge_index_dict, edge_attr_dict=edge_attr_dict)

    assert_equals_pyg(Model(), hetero(attr_dim=2), "author")


def test_layers_that_read_a_type_without_messages_are_one_level():
    """Its rows are the same for both, and neither reads beyond them."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = pyg.SAGEConv((5, 6), 6), pyg.SAGEConv((5, 6), 6)

        def forward(self, x_dict, edge_index_dict):
            key = ("author", "writes", "paper")
            paper = self.first((x_dict["author"], x_dict["paper"]), edge_index_dict[key]).relu()
            paper = self.second((x_dict["author"], paper), edge_index_dict[key])
            return {"paper": paper}

    plans = assert_equals_pyg(Model(), hetero(), "paper")
    assert {(plan.level, plan.node_type) for plan in plans} == {(0, "author"), (1, "paper")}


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
@pytest.mark.parametrize("width", [1, 16])
def test_the_last_layer_reads_a_reduction(aggr, width):
    """It may not move below it: its input is the embedding, which is answered too."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.sum = pyg.GINConv(nn.Linear(6, 16)), pyg.SimpleConv(aggr)
            self.last = nn.Linear(16, width)

        def forward(self, x, edge_index):
            return self.last(self.sum(self.first(x, edge_index).relu(), edge_index))

    assert_equals_pyg(Model(), homogeneous())


def test_a_model_that_is_one_conv():
    assert_equals_pyg(pyg.SAGEConv(6, 3), homogeneous())


def test_the_callers_module_is_left_as_it_was():
    model = models.GraphSAGE(6, 8, 2, 3, dropout=0.5).double()
    model.train()
    split(model, homogeneous())
    assert model.training
    assert next(model.parameters()).dtype == torch.float64
