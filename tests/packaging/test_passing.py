"""Convolutions of any class, as stages, equal PyG; what only looks like message passing is refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric import utils
from torch_geometric.utils import (
    add_remaining_self_loops,
    add_self_loops,
    degree,
    remove_self_loops,
    scatter,
    softmax,
)

from hopline.errors import NotSplittable
from hopline.graph import Graph, Nodes
from hopline.packaging.dense.aggregate import EdgeAggregation
from tests.packaging import helpers_of_forward as helpers
from tests.packaging import random_passing
from tests.packaging.graphs import hetero, homogeneous, relational
from tests.packaging.in_torch import assert_equals_pyg, split
from tests.packaging.test_dense import mlp, trained, two_layers


class First(nn.Module):
    """A model whose conv also reads the first rows."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        return self.conv(self.conv(x, x, edge_index).relu(), x, edge_index)


PLAIN = {
    "AGNNConv": lambda d: pyg.AGNNConv(),
    "APPNP": lambda d: pyg.APPNP(2, 0.1),
    "ARMAConv": lambda d: pyg.ARMAConv(d, 6, num_stacks=2, num_layers=3),
    "ARMAConv shared": lambda d: pyg.ARMAConv(
        d, 6, num_layers=2, shared_weights=True, act=None, bias=False
    ),
    "ClusterGCNConv": lambda d: pyg.ClusterGCNConv(d, 6, diag_lambda=0.1),
    "CGConv": lambda d: pyg.CGConv(d),
    "CGConv max": lambda d: pyg.CGConv(d, aggr="max", batch_norm=True),
    "EdgeConv": lambda d: pyg.EdgeConv(mlp(2 * d, d)),
    "EGConv": lambda d: pyg.EGConv(d, 6, num_heads=2, aggregators=["symnorm", "mean", "std"]),
    "FeaStConv": lambda d: pyg.FeaStConv(d, 6, heads=2),
    "FiLMConv": lambda d: pyg.FiLMConv(d, 6),
    "GatedGraphConv": lambda d: pyg.GatedGraphConv(6, 2),
    "GeneralConv": lambda d: pyg.GeneralConv(d, 6, heads=2, attention=True),
    "LEConv": lambda d: pyg.LEConv(d, 6),
    "LGConv": lambda d: pyg.LGConv(),
    "MFConv": lambda d: pyg.MFConv(d, 6, max_degree=3),
    "MFConv mean": lambda d: pyg.MFConv(d, 6, aggr="mean"),
    "ResGatedGraphConv": lambda d: pyg.ResGatedGraphConv(d, 6),
    "SAGEConv median": lambda d: pyg.SAGEConv(d, 6, aggr=["mean", "median"]),
    "SGConv": lambda d: pyg.SGConv(d, 6, K=2),
    "SSGConv": lambda d: pyg.SSGConv(d, 6, 0.1, K=2),
    "SimpleConv": lambda d: pyg.SimpleConv("mean", "self_loop"),
    "SimpleConv softmax": lambda d: pyg.SimpleConv("softmax", "cat"),
    "SuperGATConv": lambda d: pyg.SuperGATConv(d, 3, heads=2),
    "TAGConv": lambda d: pyg.TAGConv(d, 6, K=2),
}


@pytest.mark.sample(6)
@pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN)
def test_a_conv_without_a_dense_form_equals_pyg(make):
    assert_equals_pyg(trained(two_layers(make(6), make(6))), homogeneous())


@pytest.mark.parametrize(
    "conv", [pyg.GCN2Conv(6, 0.1), pyg.GCN2Conv(6, 0.1, shared_weights=False)], ids=str
)
def test_a_conv_that_reads_the_first_rows_equals_pyg(conv):
    assert_equals_pyg(trained(First(conv)), homogeneous())


ATTRIBUTED = {
    "CGConv": lambda: pyg.CGConv(6, dim=4),
    "GMMConv": lambda: pyg.GMMConv(6, 6, 4, 2),
    "GeneralConv": lambda: pyg.GeneralConv(6, 6, in_edge_channels=4),
    "NNConv": lambda: pyg.NNConv(6, 6, nn.Linear(4, 36), aggr="mean"),
    "ResGatedGraphConv": lambda: pyg.ResGatedGraphConv(6, 6, edge_dim=4),
}


@pytest.mark.parametrize("make", ATTRIBUTED.values(), ids=ATTRIBUTED)
def test_a_conv_that_reads_attributes_of_edges_equals_pyg(make):
    assert_equals_pyg(trained(two_layers(make(), make(), "edge_attr")), homogeneous(attr_dim=4))


WEIGHTED = {
    "APPNP": lambda: pyg.APPNP(2, 0.1),
    "ARMAConv": lambda: pyg.ARMAConv(6, 6, num_stacks=2),
    "LEConv": lambda: pyg.LEConv(6, 6),
    "LGConv": lambda: pyg.LGConv(),
    "LGConv without": lambda: pyg.LGConv(normalize=False),
    "SimpleConv": lambda: pyg.SimpleConv("mean"),
    "TAGConv": lambda: pyg.TAGConv(6, 6, K=2),
    "TAGConv without": lambda: pyg.TAGConv(6, 6, K=2, normalize=False),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("make", WEIGHTED.values(), ids=WEIGHTED)
def test_a_conv_that_reads_weights_of_edges_equals_pyg(make):
    assert_equals_pyg(trained(two_layers(make(), make(), "edge_weight")), homogeneous(weight=True))


def test_a_median_is_the_lower_of_two_and_of_none_the_fill_value():
    graph = homogeneous()
    x = torch.from_numpy(graph.nodes["node"].features.copy()).round()  # many are equal
    found = assert_equals_pyg(
        pyg.SAGEConv(6, 3, aggr=pyg.MedianAggregation(fill_value=0.25)), with_features(graph, x)
    )
    assert {item.kind for plan in found for item in plan.inputs} >= {"sources", "owners"}
    rng = torch.Generator().manual_seed(0)
    mask = torch.rand(200, 9, generator=rng) < torch.rand(200, 1, generator=rng)
    rows = torch.randint(-3, 4, (200, 9, 4), generator=rng).float()
    rows[rows == 3], rows[rows == -3] = torch.nan, torch.inf
    for module in (pyg.MedianAggregation(), pyg.MedianAggregation(-1.5)):
        wanted = module(rows[mask], mask.nonzero()[:, 0], dim_size=200)
        found = EdgeAggregation(module, NotSplittable)(rows[mask], mask.nonzero()[:, 0], torch.arange(200))
        torch.testing.assert_close(found, wanted, equal_nan=True)


def with_features(graph, x):
    return Graph(graph.schema, {"node": Nodes(x.numpy(), graph.nodes["node"].ids)}, graph.edges)


def test_sums_that_the_engine_computes_read_no_rows_of_edges():
    for conv in (pyg.APPNP(2, 0.1), pyg.LGConv(), pyg.TAGConv(6, 6, K=2), pyg.SimpleConv("max")):
        plans = assert_equals_pyg(conv, homogeneous())
        assert {item.kind for plan in plans for item in plan.inputs} <= {"reduce", "self", "features"}


class Conv(pyg.MessagePassing):
    """A convolution of somebody's own; subclasses say what it sends."""

    def __init__(self, dim=6, **options):
        super().__init__(**{"aggr": "sum", **options})
        self.lin, self.gate = nn.Linear(dim, dim), nn.Linear(2 * dim, dim)

    def forward(self, x, edge_index):
        return self.propagate(edge_index, x=self.lin(x)) + x


class Gated(Conv):
    def message(self, x_i, x_j):
        return torch.sigmoid(self.gate(torch.cat([x_i, x_j], dim=-1))) * x_j


class Attending(Conv):
    def message(self, x_i, x_j, index, ptr, size_i):
        logits = F.leaky_relu((x_i * x_j).view(-1, 2, 3).sum(dim=-1), 0.2)
        return (softmax(logits, index, ptr, size_i).unsqueeze(-1) * x_j.view(-1, 2, 3)).flatten(1)


class Updating(Conv):
    """An update of edges, whose result is normalised by the sum over each node's edges."""

    def forward(self, x, edge_index):
        alpha = self.edge_updater(edge_index, x=x)
        total = scatter(alpha, edge_index[1], dim=0, dim_size=x.size(0))
        return self.propagate(edge_index, x=x, alpha=alpha / (total[edge_index[1]] + 1.0))

    def edge_update(self, x_j):
        return self.lin(x_j)[:, 0].exp()

    def message(self, x_j, alpha):
        return alpha.view(-1, 1) * x_j

    def update(self, inputs, x):
        return torch.cat([inputs, x], dim=-1) @ self.gate.weight.t()


class Aggregating(Conv):
    def aggregate(self, inputs, index, dim_size):
        mean = scatter(inputs, index, 0, dim_size, "mean")
        return (
            mean
            + scatter(inputs, index, 0, dim_size, reduce="min")
            - scatter(inputs, index, 0, dim_size, "max")
        )


class Counting(Conv):
    def forward(self, x, edge_index):
        count = degree(edge_index[1], x.size(0), dtype=x.dtype)
        return self.propagate(edge_index, x=x) / (count + 1.0).view(-1, 1)


class CountingOthers(Conv):
    """Degrees of the neighbours, which are one hop further."""

    def forward(self, x, edge_index):
        count = degree(edge_index[1], x.size(0)) + 1.0
        return self.propagate(edge_index, x=x, scale=count.pow(-0.5).view(-1, 1))

    def message(self, x_j, scale_i, scale_j):
        return scale_i * scale_j * x_j


class Sending(Conv):
    """Without `propagate`: rows are read at the ends of the edges."""

    def forward(self, x, edge_index):
        src, dst = edge_index
        sent = self.lin(x[src] - x.index_select(0, dst)).tanh()
        return scatter(sent, dst, dim=0, dim_size=x.size(0), reduce="sum") + x


class Halves(pyg.GCNConv):
    def message(self, x_j, edge_weight):
        return super().message(x_j, edge_weight) / 2


class Twice(pyg.SAGEConv):
    def message(self, x_j):
        return x_j * 2


class Shifted(pyg.GATConv):
    def update(self, inputs):
        return inputs + 1


OWN = {
    "gated": lambda: Gated(),
    "several aggregations": lambda: Updating(aggr=["mean"]),
    "attending": lambda: Attending(),
    "softmax of messages": lambda: Gated(aggr="softmax"),
    "updating": lambda: Updating(),
    "aggregating": lambda: Aggregating(),
    "counting": lambda: Counting(),
    "sending": lambda: Sending(),
    "a subclass of SAGEConv": lambda: Twice(6, 6),
    "a subclass of GCNConv": lambda: Halves(6, 6),
    "a subclass of GATConv": lambda: Shifted(6, 3, heads=2),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_a_conv_of_ones_own_equals_pyg(make):
    assert_equals_pyg(make(), homogeneous())


def test_degrees_of_neighbours_are_one_hop_more():
    plans = assert_equals_pyg(CountingOthers(), homogeneous())
    assert max(plan.level for plan in plans) == 2


class Looped(Conv):
    """Adds self-loops in one of PyG's ways."""

    def __init__(self, loops):
        super().__init__()
        self.loops = loops

    def forward(self, x, edge_index, edge_attr):
        edge_index, edge_attr = self.loops(edge_index, edge_attr, x.size(0))
        return self.propagate(edge_index, x=x, edge_attr=edge_attr)

    def message(self, x_i, x_j, edge_attr):
        return torch.cat([x_j * edge_attr[:, :1], x_i + edge_attr[:, 1:2]], dim=-1).relu()


def replaced(fill):
    def loops(edge_index, edge_attr, num_nodes):
        edge_index, edge_attr = remove_self_loops(edge_index, edge_attr)
        return add_self_loops(edge_index, edge_attr, fill_value=fill, num_nodes=num_nodes)

    return loops


LOOPS = {
    "removed": lambda edge_index, edge_attr, num_nodes: remove_self_loops(edge_index, edge_attr),
    "replaced by ones": replaced(None),
    "replaced by a number": replaced(0.5),
    "replaced by the mean": replaced("mean"),
    "beside": lambda edge_index, edge_attr, num_nodes: add_self_loops(
        edge_index, edge_attr, "add", num_nodes
    ),
}


@pytest.mark.parametrize("loops", LOOPS.values(), ids=LOOPS)
def test_attributes_of_self_loops_equal_pygs(loops):
    assert_equals_pyg(Looped(loops), homogeneous(attr_dim=2))


def test_attributes_of_self_loops_that_remain_equal_pygs():
    def loops(edge_index, edge_attr, num_nodes):
        return add_remaining_self_loops(edge_index, edge_attr, "mean", num_nodes)

    assert_equals_pyg(Looped(loops), homogeneous(attr_dim=2))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "make",
    [Gated, Aggregating, lambda: pyg.EdgeConv(mlp(12, 6)), lambda: pyg.MFConv((6, 6), 6, max_degree=2)],
)
def test_edges_of_several_types_equal_pyg(make):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            edges = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "by", "author")]
            self.convs = nn.ModuleList(pyg.HeteroConv({edge: make() for edge in edges}) for _ in range(2))

        def forward(self, x_dict, edge_index_dict):
            for conv in self.convs:
                x_dict = conv(x_dict, edge_index_dict)
            return x_dict["paper"]

    class Pairs(Gated):
        def forward(self, x, edge_index):
            x = x if isinstance(x, tuple) else (x, x)
            return self.propagate(edge_index, x=x, size=(x[0].size(0), x[1].size(0))) + x[1]

    if isinstance(make(), Conv):
        make = Pairs
    assert_equals_pyg(trained(Model()), hetero(author_dim=6), "paper")


class ComputedWeight(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index, edge_weight):
        return self.conv(x, edge_index, edge_weight.sigmoid())


#: Options and calls for which the dense form of the class has no place.
GENERAL = {
    "a weight that the model computes": (
        lambda: ComputedWeight(pyg.GraphConv(6, 3)), homogeneous(weight=True)
    ),
    "coefficients of a computed weight": (
        lambda: ComputedWeight(pyg.GCNConv(6, 3)), homogeneous(weight=True)
    ),
    "improved": (lambda: two_layers(pyg.GCNConv(6, 6, improved=True), pyg.GCNConv(6, 3)), homogeneous()),
    "improved and weighted": (
        lambda: two_layers(pyg.GCNConv(6, 6, improved=True), pyg.GCNConv(6, 3), "edge_weight"),
        homogeneous(weight=True),
    ),
    "a replaced layer": (lambda: replaced_layer(pyg.SAGEConv(6, 3)), homogeneous()),
    "hooked": (lambda: hooked(pyg.SAGEConv(6, 3)), homogeneous()),
    "FAConv": (lambda: First(pyg.FAConv(6)), homogeneous()),
    "PDNConv": (
        lambda: two_layers(pyg.PDNConv(6, 6, 4, 8), pyg.PDNConv(6, 3, 4, 8), "edge_attr"),
        homogeneous(attr_dim=4),
    ),
}  # fmt: skip


class Mapped(Conv):
    def message(self, x_i, x_j):
        return self.gate(torch.cat([x_i, x_j], dim=-1)).relu()


class MappedAlone(Conv):
    def message(self, x_j):
        return self.lin(x_j)


class MappedWide(Conv):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow = nn.Linear(12, 20), nn.Linear(20, 6)

    def message(self, x_i, x_j):
        return self.narrow(self.wide(torch.cat([x_j, x_i], dim=-1)).relu())


@pytest.mark.parametrize(
    ("make", "kind", "maps"),
    [
        (Mapped, "sources", ["maps.model_gate_0"]),
        (MappedAlone, "reduce", []),
        (MappedWide, "sources", ["maps.model_wide_0", "maps.model_wide_1", "model.narrow"]),
    ],
)
def test_a_linear_layer_in_a_message_runs_once_for_each_node(make, kind, maps):
    """Unless it makes the rows of neighbours much wider, which the state below would hold."""
    below, top = assert_equals_pyg(make(), homogeneous())
    (read,) = (item for item in top.inputs if item.kind in ("sources", "reduce"))
    assert read.kind == kind
    assert below.state_dim == 6
    targets = [str(node.target) for node in top.module.graph.nodes if node.op == "call_module"]
    assert [name for name in targets if "lin" not in name and not name.startswith("dense")] == maps


def replaced_layer(conv):
    conv.lin_l = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return conv


def hooked(conv):
    conv.lin_l.register_forward_hook(lambda module, inputs, output: output * 2)
    return conv


@pytest.mark.sample(2)
@pytest.mark.parametrize(("make", "graph"), GENERAL.values(), ids=GENERAL)
def test_a_conv_whose_dense_form_has_no_place_for_an_option_equals_pyg(make, graph):
    assert_equals_pyg(make(), graph)


def refused(model, reason, graph=None):
    with pytest.raises(NotSplittable, match=reason):
        split(model, graph or homogeneous())


def test_messages_to_the_sources_are_refused_where_the_graph_has_no_lists_of_them():
    class ToSources(Conv):
        def forward(self, x, edge_index):
            return scatter(self.lin(x[edge_index[1]]), edge_index[0], dim=0, dim_size=x.size(0))

    refused(ToSources(), "both_directions=True")
    refused(Gated(flow="target_to_source"), "both_directions=True")


def test_self_loops_of_some_nodes_are_refused():
    def loops(edge_index, edge_attr, num_nodes):
        return add_self_loops(edge_index, edge_attr)  # up to the largest number of an edge's end

    refused(Looped(loops), "num_nodes=x.size", homogeneous(attr_dim=2))


class OwnLoops(nn.Module):
    """Two layers over the edges, and self-loops that `of` lists for n nodes."""

    def __init__(self, of, join=lambda edges, loops: torch.cat([edges, loops], 1)):
        super().__init__()
        self.of, self.join = of, join
        self.first, self.second = pyg.GATv2Conv(6, 6, add_self_loops=False), pyg.SAGEConv(6, 3)

    def forward(self, x, edge_index):
        edges = self.join(edge_index, self.of(x.size(0)))
        return self.second(self.first(x, edges).relu(), edges)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "of",
    [
        lambda n: torch.arange(n).repeat(2, 1),
        lambda n: torch.stack([torch.arange(0, n)] * 2),
        lambda n: torch.arange(n).unsqueeze(0).expand(2, -1),
        lambda n: torch.arange(n, dtype=torch.long).view(1, -1).repeat(2, 1).to("cpu"),
    ],
)
@pytest.mark.parametrize(
    "join", [lambda edges, loops: torch.cat([edges, loops], 1), lambda *both: torch.cat(both[::-1], dim=-1)]
)
def test_self_loops_that_a_model_lists_itself_equal_pyg(of, join):
    assert_equals_pyg(OwnLoops(of, join), homogeneous())


@pytest.mark.parametrize(
    "of",
    [
        lambda n: torch.arange(n - 1).repeat(2, 1),
        lambda n: torch.arange(n // 50_000, n).repeat(2, 1),
        lambda n: torch.arange(n + n // 50_000).repeat(2, 1),
        lambda n: torch.stack([torch.arange(n), torch.arange(n).flip(0)]),
    ],
)
def test_other_edges_that_a_model_lists_are_refused(of):
    refused(OwnLoops(of), "rows|number of nodes")


@pytest.mark.parametrize("kind", [nn.Parameter, nn.Buffer])
def test_rows_that_are_read_by_numbers_of_nodes_are_refused(kind):
    class ByNumber(Conv):
        def __init__(self):
            super().__init__()
            self.table = kind(torch.randn(40, 6))

        def forward(self, x, edge_index):
            return self.propagate(edge_index, x=self.table) + x

    refused(ByNumber(), "numbers of nodes|a tensor's numbers")


def test_message_passing_of_ones_own_is_refused():
    class Own(Conv):
        def propagate(self, edge_index, size=None, **given):
            return super().propagate(edge_index, size, **given) * 2

    class Lifting(Conv):
        def _lift(self, src, edge_index, dim):
            return super()._lift(src, edge_index, dim) * 2

    refused(Own(), "its own propagate")
    refused(Lifting(), "its own _lift")
    refused(Gated(decomposed_layers=2), "its propagate was replaced")


def test_hooks_of_messages_equal_pyg():
    hooked = Gated()
    hooked.register_message_forward_hook(lambda module, inputs, output: output * 2)
    assert_equals_pyg(hooked, homogeneous())


def test_messages_that_depend_on_all_edges_are_refused():
    class Largest(Conv):
        def message(self, x_j):
            return x_j / x_j.amax()

    class Normalised(Conv):
        def message(self, x_j):
            return x_j - x_j.mean(dim=0, keepdim=True)

    refused(Largest(), "mixes rows")
    refused(Normalised(), "mixes rows")


def test_aggregations_that_need_an_order_are_refused_by_name():
    refused(Gated(aggr="lstm", aggr_kwargs={"in_channels": 6, "out_channels": 6}), "LSTMAggregation")
    refused(Gated(aggr=pyg.QuantileAggregation(0.3)), "QuantileAggregation")


def test_edges_of_all_relations_together_equal_pyg():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = Gated()

        def forward(self, x, edge_index, edge_type):
            return self.conv(x, edge_index)

    assert_equals_pyg(Model(), relational())


def test_functions_of_torch_and_pyg_are_as_before_once_a_model_was_traced():
    before = utils.softmax, softmax, torch.ones, pyg.conv.gcn_conv.gcn_norm
    split(Attending(), homogeneous())
    assert (utils.softmax, softmax, torch.ones, pyg.conv.gcn_conv.gcn_norm) == before


class ByHand(nn.Module):
    """A layer that is no `MessagePassing`."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 6)

    def forward(self, x, edge_index, edge_weight=None):
        if edge_weight is None:
            edge_weight = torch.ones(edge_index.size(1), device=x.device)
        row, col = edge_index.contiguous()
        sent = self.lin(x)[row] * edge_weight.view(-1, 1)
        return scatter(sent, col, dim=0, dim_size=x.size(0), reduce="mean") + x


class Helped(ByHand):
    """Its functions over edges are in another file, under other names."""

    def forward(self, x, edge_index):
        rows = self.lin(x)[edge_index[0]]
        return helpers.attended(rows, rows.sum(-1, keepdim=True), edge_index, x.size(0))


def test_helpers_in_another_file_are_read_as_those_of_the_model_s_own():
    before = dict(vars(helpers))
    assert_equals_pyg(trained(Helped()), homogeneous())
    assert vars(helpers) == before


def test_message_passing_by_hand_equals_its_own_answer():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = ByHand(), ByHand()

        def forward(self, x, edge_index):
            return self.second(self.first(x, edge_index).relu(), edge_index)

    assert_equals_pyg(Model(), homogeneous())


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", range(16))
def test_a_random_conv_is_split_and_equals_its_own_answer(seed):
    assert random_passing.judge(seed) == "split", random_passing.write(seed)
