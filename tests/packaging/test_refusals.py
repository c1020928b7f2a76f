"""What cannot be split says which value, why, and where in the user's source."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn import models

import hopline
from hopline.errors import NotSplittable, PackagingError
from hopline.graph import EdgeTable, Graph, NodeTable
from tests.packaging.graphs import hetero, homogeneous, relational
from tests.packaging.in_torch import assert_equals_pyg


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.last = pyg.SAGEConv(6, 6), pyg.SAGEConv(6, 3)

    def forward(self, x, edge_index):
        return self.last(self.middle(self.conv(x, edge_index)), edge_index)


class MeanOverNodes(Base):
    def middle(self, h):
        return h - h.mean(dim=0)


class SoftmaxOverNodes(Base):
    def middle(self, h):
        return torch.softmax(h, dim=0)


class FirstRow(Base):
    def middle(self, h):
        return h + h[0]


class Shuffled(Base):
    def middle(self, h):
        return h.flip(0)


class Gram(Base):
    def middle(self, h):
        return (h @ h.t())[:, :6]


class PerNode(Base):
    def middle(self, h):
        return h / h.size(0)


class PooledContext(Base):
    def middle(self, h):
        return h + pyg.global_mean_pool(h, None)


class Embedded(Base):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 6)

    def middle(self, h):
        return h + self.table.weight


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("model", "named"),
    [
        (MeanOverNodes, "h - h.mean(dim=0)"),
        (SoftmaxOverNodes, "torch.softmax(h, dim=0)"),
        (FirstRow, "h + h[0]"),
        (Shuffled, "h.flip(0)"),
        (Gram, "h @ h.t()"),
        (PerNode, "h / h.size(0)"),
        (PooledContext, "mixes rows"),
        (Embedded, "self.table.weight"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_code_that_mixes_rows_is_refused_with_its_source_line(model, named):
    with pytest.raises(NotSplittable) as caught:
        assert_equals_pyg(model(), homogeneous())
    assert named in str(caught.value)
    if named != "mixes rows":
        assert "test_refusals.py" in str(caught.value)


@pytest.mark.parametrize("norm", ["GraphNorm", "InstanceNorm", "PairNorm", "LayerNorm"])
def test_norms_over_the_graph_are_refused_by_name(norm):
    with pytest.raises(NotSplittable, match=norm):
        assert_equals_pyg(models.GraphSAGE(6, 8, 2, 3, norm=norm), homogeneous())


@pytest.mark.parametrize(
    ("conv", "reason"),
    [
        (pyg.SAGEConv(6, 3, aggr="lstm"), "LSTMAggregation"),
        (
            pyg.PNAConv(6, 3, ["mean", "powermean"], ["identity"], torch.ones(3)),
            "PowerMeanAggregation has no form",
        ),
        (pyg.SAGEConv(6, 3, aggr=pyg.QuantileAggregation(0.3)), "QuantileAggregation"),
        (pyg.SAGEConv(6, 3, aggr=["mean", pyg.QuantileAggregation(0.3)]), "QuantileAggregation"),
        (pyg.GENConv(6, 3, aggr="lstm", aggr_kwargs={"in_channels": 3, "out_channels": 3}), "LSTMAggr"),
        (pyg.ChebConv(6, 3, K=2), "both_directions=True"),
        (pyg.SAGEConv(6, 3, flow="target_to_source"), "both_directions=True"),
    ],
    ids=str,
)
def test_convs_without_a_dense_form_are_refused(conv, reason):
    with pytest.raises(NotSplittable, match=reason):
        assert_equals_pyg(conv, homogeneous())


def test_turned_edges_are_refused_where_the_graph_has_no_lists_of_them():
    class Model(Base):
        def forward(self, x, edge_index):
            return self.conv(x, edge_index.flip(0))

    with pytest.raises(NotSplittable, match="both_directions=True"):
        assert_equals_pyg(Model(), homogeneous())


def test_gathering_by_edges_is_refused():
    class Model(Base):
        def forward(self, x, edge_index):
            return self.conv(x, edge_index) + x[edge_index[0]].sum()

    with pytest.raises(NotSplittable, match="mixes rows"):
        assert_equals_pyg(Model(), homogeneous())


def test_control_flow_on_values_is_refused():
    class Model(Base):
        def forward(self, x, edge_index):
            return self.conv(x, edge_index) if x.sum() > 0 else x

    with pytest.raises(NotSplittable, match="cannot be traced"):
        assert_equals_pyg(Model(), homogeneous())


def test_a_model_without_convs_is_split(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(6, 3)

        def forward(self, x, edge_index):
            return self.lin(x)

    report = hopline.package(Model(), homogeneous(), tmp_path, name="m", fanouts=[], task="multiclass")
    assert report.spec.num_layers == 0


def test_an_unknown_required_argument_is_named():
    class Model(Base):
        def forward(self, x, edge_index, mystery):
            return self.conv(x, edge_index)

    with pytest.raises(PackagingError, match="mystery"):
        assert_equals_pyg(Model(), homogeneous())


def test_argument_names_can_be_mapped():
    class Model(Base):
        def forward(self, a, b, c=None):
            return self.conv(a, b)

    assert_equals_pyg(Model(), homogeneous(), arguments={"a": "features", "b": "edge_index"})


def test_edge_data_that_the_graph_lacks_is_named():
    with pytest.raises(PackagingError, match="no edge attributes"):
        assert_equals_pyg(pyg_model_with_required_attributes(), homogeneous())


def pyg_model_with_required_attributes():
    class Model(Base):
        def forward(self, x, edge_index, edge_attr):
            return self.conv(x, edge_index)

    return Model()


def test_wrong_feature_width_is_explained():
    with pytest.raises(PackagingError, match=r"(?s)conv.*'node' float32 \[n, 7\]"):
        assert_equals_pyg(MeanOverNodes(), homogeneous(dim=7))


def test_a_homogeneous_model_on_several_relations_is_explained():
    with pytest.raises(PackagingError, match="relations="):
        assert_equals_pyg(Base(), relational(2))


class Relations(nn.Module):
    def __init__(self, num_relations):
        super().__init__()
        self.conv = pyg.RGCNConv(6, 3, num_relations)

    def forward(self, x, edge_index, edge_type):
        return self.conv(x, edge_index, edge_type)


def test_fewer_relations_than_the_graph_has_are_explained():
    with pytest.raises(PackagingError, match="it has 2 relations and the graph has 3 edge types"):
        assert_equals_pyg(Relations(2), relational(3))


def test_relations_beyond_those_of_numbered_data_have_no_edges():
    assert_equals_pyg(Relations(5), relational(3))


def test_named_relations_of_another_number_are_explained():
    graph = relational(2)
    key = "node__r0__node"
    named = graph.edges[key]
    edges = {("node", name, "node"): EdgeTable((named.indices, _targets(named))) for name in ("a", "b")}
    with pytest.raises(NotSplittable, match="5 relations"):
        assert_equals_pyg(
            Relations(5),
            Graph.from_tables({"node": NodeTable(graph.nodes["node"].features)}, edges),
            relations=("node__a__node", "node__b__node"),
        )


@pytest.mark.parametrize("names", [("r0", "r2"), ("r1", "r2"), ("r1",)])
def test_numbers_of_relations_with_gaps_are_questioned(names):
    graph = relational(3)
    edges = {
        ("node", name, "node"): EdgeTable((each.indices, _targets(each)))
        for name, each in zip(names, graph.edges.values(), strict=False)
    }
    few = Graph.from_tables({"node": NodeTable(graph.nodes["node"].features)}, edges)
    with pytest.raises(PackagingError, match="do not contain all numbers from 0: pass relations="):
        assert_equals_pyg(Relations(3), few)
    given = tuple(f"node__{name}__node" for name in names)
    assert_equals_pyg(Relations(len(given)), few, relations=given)


def _targets(adjacency):
    return np.repeat(np.arange(len(adjacency.indptr) - 1), np.diff(adjacency.indptr))


def test_a_missing_target_type_is_named():
    from tests.packaging.test_split import Hetero

    with pytest.raises(NotSplittable, match="rows of"):
        assert_equals_pyg(Hetero(), hetero(), "author")


def test_numbers_of_nodes_that_a_loader_adds_are_explained(tmp_path):
    class Numbered(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.conv = nn.Embedding(40, 6), pyg.SAGEConv(6, 3)

        def forward(self, data):
            x = self.embedding(data["paper"].node_id)
            return self.conv(x, data["paper", "cites", "paper"].edge_index)

    with pytest.raises(PackagingError, match=r"declared, embeddings=\{'emb': node type\}"):
        hopline.package(
            Numbered(), hetero(), tmp_path, name="m", target="paper", fanouts=[-1], task="embedding"
        )


class ByType(Base):
    def middle(self, h):
        return h * 2.0 if type(h) is torch.Tensor else h


class Tried(Base):
    def middle(self, h):
        try:
            return h.view(-1, 7) * 2.0
        except RuntimeError:
            return h


@pytest.mark.parametrize("model", [ByType, Tried])
def test_code_that_branches_on_how_it_runs_is_refused_with_the_way_out(model, tmp_path):
    with pytest.raises(PackagingError, match=r"how it runs \(type\(x\) is Tensor.*isinstance\(x, Tensor\)"):
        hopline.package(model(), homogeneous(), tmp_path, name="m", fanouts=[-1, -1], task="regression")


def test_rows_of_all_node_types_are_explained(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = pyg.SAGEConv(6, 3)

        def forward(self, data):
            data = data.to_homogeneous()
            return self.conv(data.x, data.edge_index)

    with pytest.raises(
        PackagingError,
        match=r"70 rows for 40 nodes .* of all types: build the graph of data.to_homogeneous",
    ):
        hopline.package(
            Model(),
            hetero(author_dim=6),
            tmp_path,
            name="m",
            target="paper",
            fanouts=[-1],
            task="regression",
        )


def test_uninitialised_parameters_are_named():
    with pytest.raises(PackagingError, match="uninitialised"):
        assert_equals_pyg(pyg.SAGEConv(-1, 3), homogeneous())


def test_a_node_type_without_nodes_is_refused():
    """There is no row of it to compare the package on."""
    nodes = {"user": NodeTable(np.ones((5, 6), np.float32)), "item": NodeTable(np.ones((0, 3), np.float32))}
    edges = {
        ("user", "knows", "user"): EdgeTable([[0, 1], [1, 2]]),
        ("item", "of", "user"): EdgeTable([[], []]),
    }
    with pytest.raises(PackagingError, match="node type 'item' has no nodes"):
        hopline.package(
            Base(),
            Graph.from_tables(nodes, edges),
            "unused",
            name="m",
            fanouts=[-1, -1],
            task="multiclass",
            target="user",
        )
