"""Models that read edges against their direction: served answers are PyG's, also for one-way edges."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, degree, remove_self_loops, scatter, softmax

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import BadRequest, NotSplittable, PackagingError, SchemaMismatch
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.live.changes import Changes, EdgeChanges
from hopline.packaging import trace
from hopline.types import InlineNode, ScoreRequest
from tests.graph.live.test_writer import live
from tests.packaging.graphs import hetero, homogeneous
from tests.packaging.in_torch import assert_equals_pyg, split
from tests.packaging.test_dense import mlp, trained, two_layers

AGAINST = {"flow": "target_to_source"}
REVERSE = "node__rev_to__node"


def kinds_read(plans):
    return {(item.kind, item.edge_type) for plan in plans for item in plan.inputs if item.edge_type}


class Both(nn.Module):
    """One layer along the edges and one against them, as `turn` writes it."""

    def __init__(self, turn, conv=pyg.SAGEConv):
        super().__init__()
        self.turn, self.along, self.against = turn, conv(6, 5), conv(6, 5)
        self.last = conv(5, 3)

    def forward(self, x, edge_index):
        h = self.along(x, edge_index) - self.against(x, self.turn(edge_index))
        return self.last(h.relu(), edge_index)


TURNS = {
    "flip(0)": lambda e: e.flip(0),
    "flip([0])": lambda e: e.flip([0]),
    "flip(dims=)": lambda e: torch.flip(e, dims=(0,)),
    "flip(-2)": lambda e: e.flip(-2),
    "[[1, 0]]": lambda e: e[[1, 0]],
    "stack": lambda e: torch.stack([e[1], e[0]]),
    "stack of a tuple": lambda e: torch.stack((e[1], e[0]), dim=0),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("turn", TURNS.values(), ids=TURNS)
def test_a_turned_edge_index_reads_the_reverse_lists(turn):
    plans = assert_equals_pyg(Both(turn), homogeneous(both=True))
    assert ("reduce", REVERSE) in kinds_read(plans)


COPIES = {
    "turned twice": lambda e: e.flip(0).flip(0),
    "device": lambda e: e.to(e.device),
    "device and type": lambda e: e.to("cpu", torch.long),
    "type": lambda e: e.to(dtype=torch.int64),
    "cpu": lambda e: e.cpu().contiguous(),
    "stack": lambda e: torch.stack([e[0], e[1]], dim=0),
}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_a_copy_of_an_edge_index_is_the_same_edges(copied):
    plans = assert_equals_pyg(Both(copied), homogeneous(both=True))
    assert {key for _, key in kinds_read(plans)} == {"node__to__node"}


CONVS = {
    "SAGEConv": lambda: pyg.SAGEConv(6, 6, **AGAINST),
    "SAGEConv max": lambda: pyg.SAGEConv(6, 6, aggr="max", **AGAINST),
    "GCNConv": lambda: pyg.GCNConv(6, 6, **AGAINST),
    "GATConv": lambda: pyg.GATConv(6, 3, heads=2, **AGAINST),
    "EdgeConv": lambda: pyg.EdgeConv(mlp(12, 6), **AGAINST),
    "APPNP": lambda: pyg.APPNP(2, 0.1, **AGAINST),
    "DirGNNConv": lambda: pyg.DirGNNConv(pyg.SAGEConv(6, 6)),
    "DirGNNConv GCNConv": lambda: pyg.DirGNNConv(pyg.GCNConv(6, 6)),
    "DirGNNConv GATConv": lambda: pyg.DirGNNConv(pyg.GATConv(6, 3, heads=2), root_weight=False),
    "ChebConv": lambda: pyg.ChebConv(6, 6, 3),
    "ChebConv rw": lambda: pyg.ChebConv(6, 6, 2, normalization="rw", bias=False),
    "HypergraphConv": lambda: pyg.HypergraphConv(6, 6),
}


@pytest.mark.sample(4)
@pytest.mark.parametrize("make", CONVS.values(), ids=CONVS)
def test_a_conv_that_reads_against_the_edges_equals_pyg(make):
    plans = assert_equals_pyg(trained(two_layers(make(), make())), homogeneous(both=True))
    assert REVERSE in {key for _, key in kinds_read(plans)}


def test_a_turned_gcn_is_a_reduction_of_the_engine():
    plans = assert_equals_pyg(Both(lambda e: e.flip(0), pyg.GCNConv), homogeneous(both=True))
    assert {kind for kind, _ in kinds_read(plans)} == {"reduce"}


ATTRIBUTED = {
    "GINEConv": lambda: pyg.GINEConv(mlp(6, 6), edge_dim=4, **AGAINST),
    "NNConv": lambda: pyg.NNConv(6, 6, nn.Linear(4, 36), aggr="mean", **AGAINST),
    "GATv2Conv": lambda: pyg.GATv2Conv(6, 3, heads=2, edge_dim=4, add_self_loops=False, **AGAINST),
    "TransformerConv": lambda: pyg.TransformerConv(6, 6, edge_dim=4, **AGAINST),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("make", ATTRIBUTED.values(), ids=ATTRIBUTED)
def test_attributes_of_reverse_edges_equal_pygs(make):
    assert_equals_pyg(trained(two_layers(make(), make(), "edge_attr")), homogeneous(attr_dim=4, both=True))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "make",
    [
        lambda: pyg.GraphConv(6, 6, **AGAINST),
        lambda: pyg.GCNConv(6, 6, **AGAINST),
        lambda: pyg.ChebConv(6, 6, 3),
        lambda: pyg.ChebConv(6, 6, 2, normalization="rw"),
    ],
    ids=["sum", "gcn", "cheb", "cheb rw"],
)
def test_weights_of_reverse_edges_equal_pygs(make):
    assert_equals_pyg(
        trained(two_layers(make(), make(), "edge_weight")), homogeneous(weight=True, both=True)
    )


class Encoded(nn.Module):
    """Attributes of edges become rows that both directions read."""

    def __init__(self):
        super().__init__()
        self.encode = mlp(4, 6)
        self.along, self.against = (pyg.GINEConv(nn.Linear(6, 6)) for _ in range(2))

    def forward(self, x, edge_index, edge_attr):
        rows = self.encode(edge_attr).relu()
        h = self.along(x, edge_index, rows).relu()
        return self.against(h, edge_index.flip(0), rows)


class Sending(nn.Module):
    """Without convs: degrees, a softmax and sums at the sources of the edges."""

    def forward(self, x, edge_index):
        src, dst = edge_index
        out_degree = degree(edge_index[0], x.size(0)).view(-1, 1)
        weight = softmax((x[src] * x[dst]).sum(1), src, num_nodes=x.size(0))
        back = scatter(weight.view(-1, 1) * x[dst].tanh(), src, dim=0, dim_size=x.size(0))
        return back / (out_degree + 1.0) + scatter(x[src], dst, dim=0, dim_size=x.size(0), reduce="mean")


class Looped(nn.Module):
    """Self-loops are replaced, and the sum is at the sources."""

    def forward(self, x, edge_index, edge_attr):
        edges, rows = remove_self_loops(edge_index, edge_attr)
        edges, rows = add_self_loops(edges, rows, fill_value=0.5, num_nodes=x.size(0))
        return scatter(x[edges[1]] * rows[:, :1], edges[0], dim=0, dim_size=x.size(0))


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("model", "attr_dim"),
    [(Encoded(), 4), (Sending(), 0), (Looped(), 2)],
    ids=["encoded", "sending", "looped"],
)
def test_code_of_ones_own_against_the_edges_equals_pyg(model, attr_dim):
    assert_equals_pyg(model, homogeneous(attr_dim=attr_dim, both=True))


class BetweenTypes(nn.Module):
    """What authors write, read from the author."""

    def __init__(self):
        super().__init__()
        self.back, self.last = pyg.SAGEConv((6, 5), 4), pyg.SAGEConv((4, 6), 3)

    def forward(self, x_dict, edge_index_dict):
        writes = edge_index_dict["author", "writes", "paper"]
        h = self.back((x_dict["paper"], x_dict["author"]), writes.flip(0)).relu()
        return self.last((h, x_dict["paper"]), writes)


def test_edges_between_two_types_are_read_from_both():
    plans = assert_equals_pyg(BetweenTypes(), hetero(both=True), "paper")
    assert "paper__rev_writes__author" in {key for _, key in kinds_read(plans)}


def test_what_cannot_be_read_from_one_end_is_refused():
    class BothEnds(nn.Module):
        def forward(self, x, edge_index):
            weight = softmax(x[edge_index[0]][:, 0], edge_index[1], num_nodes=x.size(0))
            return scatter(weight.view(-1, 1) * x[edge_index[1]], edge_index[0], 0, x.size(0))

    class Filled(nn.Module):
        def forward(self, x, edge_index, edge_attr):
            edges, rows = add_self_loops(edge_index, edge_attr, "mean", x.size(0))
            return scatter(x[edges[1]] * rows[:, :1], edges[0], 0, x.size(0))

    class Normalised(nn.Module):
        def forward(self, x, edge_index):
            edges, weight = pyg.conv.gcn_conv.gcn_norm(edge_index, None, x.size(0))
            return scatter(x[edges[1]] * weight.view(-1, 1), edges[0], 0, x.size(0))

    for model, attr_dim in ((BothEnds(), 0), (Filled(), 2), (Normalised(), 0)):
        with pytest.raises(NotSplittable):
            split(model, homogeneous(attr_dim=attr_dim, both=True))


def one_way(both=True, dim=6, attr_dim=3, num_nodes=70):
    """Edges of which hardly any has a reverse edge, as PyG and a graph have them."""
    rng = torch.Generator().manual_seed(3)
    edge_index = torch.randint(0, num_nodes, (2, 260), generator=rng)
    edge_index[0, :40] = 5  # many edges leave this node
    edge_index = edge_index[:, edge_index[1] < num_nodes - 5]
    x, attr = (
        torch.randn(num_nodes, dim, generator=rng),
        torch.rand(edge_index.size(1), attr_dim, generator=rng),
    )
    data = Data(x=x, edge_index=edge_index, edge_attr=attr)
    return data, Graph.from_pyg(data, both_directions=both)


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (
            pyg.DirGNNConv(pyg.SAGEConv(6, 8)), pyg.GINEConv(nn.Linear(8, 3), edge_dim=3, **AGAINST)
        )  # fmt: skip

    def forward(self, x, edge_index, edge_attr):
        return self.second(self.first(x, edge_index).relu(), edge_index, edge_attr)


class Along(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(6, 3)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


def package(model, graph, folder, **options):
    options = {"fanouts": [-1, -1], "task": "multiclass"} | options
    return hopline.package(model, graph, folder, name="m", **options)


def answer(report, graph, **request):
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 999)
    (found,) = answerer.answer([ScoreRequest("m", **request)])
    if isinstance(found, Exception):
        raise found
    return found.outputs["logits"]


def expected(model, data, *names):
    with torch.no_grad():
        return model.eval()(data.x, data.edge_index, *(data[name] for name in names)).numpy()


@pytest.mark.release
def test_served_answers_are_those_of_pyg_on_the_whole_graph(tmp_path):
    data, graph = one_way()
    graph, model = graph.save(tmp_path / "graph"), Turned()
    report = package(model, graph, tmp_path / "models")
    found = answer(report, graph, nodes=list(range(70)))
    np.testing.assert_allclose(found, expected(model, data, "edge_attr"), atol=1e-5)


@pytest.mark.release
def test_a_later_graph_must_have_the_same_directions(tmp_path):
    _, graph = one_way()
    report = package(Turned(), graph, tmp_path)
    data, without = one_way(both=False)
    with pytest.raises(SchemaMismatch, match=f"{REVERSE}' is missing"):
        load_model(report.path, report.spec, without)
    table = EdgeTable(data.edge_index, attr=data.edge_attr)
    own = Graph.from_tables(
        {"node": NodeTable(data.x)}, {("node", "to", "node"): table, ("node", "rev_to", "node"): table}
    )
    with pytest.raises(SchemaMismatch, match=r"has separate edges.*both_directions=True"):
        load_model(report.path, report.spec, own)


@pytest.mark.release
def test_a_node_that_a_request_describes_is_refused_since_its_edges_would_change_others(tmp_path):
    data, graph = one_way()
    report = package(Turned(), graph, tmp_path)
    node = InlineNode(
        data.x[0].numpy(), {"node__to__node": [1, 2]}, edge_attr={"node__to__node": data.edge_attr[:2]}
    )
    with pytest.raises(BadRequest, match=r"edges that leave a node.*add it to a live graph \(keep\)"):
        answer(report, graph, inline=[node])


def test_a_model_that_reads_along_the_edges_is_served_as_without_reverse_lists(tmp_path):
    data, graph = one_way()
    model = Along()
    report = package(model, graph, tmp_path, fanouts=[-1])
    assert set(report.spec.fanouts) == {"node__to__node"}
    np.testing.assert_allclose(
        answer(report, graph, nodes=list(range(70))), expected(model, data), atol=1e-5
    )
    near = data.edge_index[0, data.edge_index[1] == 8].tolist()
    copy = InlineNode(data.x[8].numpy(), {"": near})
    np.testing.assert_allclose(answer(report, graph, inline=[copy])[0], expected(model, data)[8], atol=1e-5)


@pytest.mark.sample(4)
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("end", [0, 1])
@pytest.mark.parametrize(
    "count",
    [
        lambda x, end: torch.bincount(end, minlength=x.size(0)).float(),
        lambda x, end: x.new_zeros(x.size(0)).scatter_add_(0, end, torch.ones(end.size(0))),
        lambda x, end: torch.zeros(x.size(0)).index_add(0, end.long(), torch.ones(end.size(0))),
        lambda x, end: torch.zeros(x.size(0)).scatter_add(0, end.view(-1), x[:, 0][end]),
    ],
)
def test_a_refused_count_of_edges_names_the_end_that_the_code_reads(count, end, both, tmp_path):
    class Net(nn.Module):
        def __init__(self, count):
            super().__init__()
            self.last, self.count = pyg.SAGEConv(7, 3), count

        def forward(self, x, edge_index):
            degrees = self.count(x, edge_index[end])
            return self.last(torch.cat([x, degrees[:, None]], 1), edge_index)

    data = one_way(both=both)[0]
    graph = Graph.from_pyg(Data(x=data.x, edge_index=data.edge_index), both_directions=both)
    way_out = rf"degree\(edge_index\[{end}\], x.size\(0\)\).*scatter\(rows, edge_index\[{end}\], dim_size"
    with pytest.raises(NotSplittable, match=way_out) as raised:
        package(Net(count), graph, tmp_path, fanouts=[-1])
    assert f"edge_index[{1 - end}]" not in str(raised.value).split(";", 1)[1]


def test_an_index_in_two_parts_is_refused_with_one_of_a_part(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = pyg.SAGEConv(7, 3)

        def forward(self, x, edge_index):
            sums = scatter(x[edge_index[1], 0], edge_index[0], 0, x.size(0), "mean")
            return self.last(torch.cat([x, sums[:, None]], 1), edge_index)

    data = one_way()[0]
    graph = Graph.from_pyg(Data(x=data.x, edge_index=data.edge_index), both_directions=True)
    with pytest.raises(NotSplittable, match=r"take the column first: x\[:, 0\]\[edge_index"):
        package(Net(), graph, tmp_path)


@pytest.mark.sample(1)
@pytest.mark.parametrize("by_column", [False, True])
def test_edges_that_a_mask_leaves_out_are_refused_with_a_weight_that_is_taken(tmp_path, by_column):
    class Net(nn.Module):
        def __init__(self, weighs):
            super().__init__()
            self.last, self.weighs = pyg.GraphConv(6, 3), weighs

        def forward(self, x, edge_index):
            keep = (x[:, 0][edge_index[0]] if by_column or self.weighs else x[edge_index[0], 0]) > 0
            if self.weighs:
                return self.last(x, edge_index, edge_weight=keep.float())
            return self.last(x, edge_index[:, keep])

    data = one_way()[0]
    graph = Graph.from_pyg(Data(x=data.x, edge_index=data.edge_index))
    with pytest.raises(NotSplittable, match=r"weight 0, conv\(x, edge_index, edge_weight=keep.float\(\)\)"):
        package(Net(False), graph, tmp_path, fanouts=[-1])
    package(Net(True), graph, tmp_path, fanouts=[-1])


class Shared(nn.Module):
    """What a node gives to its out-neighbours, in shares that `share` computes over its out-edges."""

    def __init__(self, share):
        super().__init__()
        self.share, self.logit, self.lin = share, nn.Linear(12, 1), nn.Linear(6, 3)

    def forward(self, x, edge_index):
        ends = torch.cat([x[edge_index[0]], x[edge_index[1]]], dim=1)
        share = self.share(self.logit(ends), edge_index[0], x.size(0))
        return scatter(share * self.lin(x)[edge_index[0]], edge_index[1], 0, x.size(0))


def divided(logits, index, num_nodes):
    e = logits.exp()
    return e / scatter(e, index, 0, num_nodes)[index]


@pytest.mark.release
def test_a_softmax_over_out_edges_in_a_sum_over_in_edges_is_refused_with_what_works(tmp_path):
    data = one_way()[0]
    graph = Graph.from_pyg(Data(x=data.x, edge_index=data.edge_index), both_directions=True)
    way_out = (
        r"write e = logits.exp\(\) and e / scatter\(e, edge_index\[0\], 0, x.size\(0\)\)\[edge_index\[0\]\]"
    )
    with pytest.raises(NotSplittable, match=way_out):
        package(Shared(lambda logits, index, n: softmax(logits, index, num_nodes=n)), graph, tmp_path)
    report = package(Shared(divided), graph, tmp_path, fanouts=[-1, -1])
    assert report.spec.parity["max_abs_diff"] < 1e-4


def test_without_reverse_lists_the_refusal_names_them(tmp_path):
    _, graph = one_way(both=False)
    with pytest.raises(NotSplittable, match=r"both_directions=True\) or `hopline graph build --both-dir"):
        package(Turned(), graph, tmp_path)


turn_edges = trace.lists.turn_edges


def along_instead(module, relations):
    """Reads the edges along their direction where the model reads them against it."""
    turn_edges(module, relations)
    for node in module.graph.nodes:
        node.args = tuple(
            each.replace("__rev_", "__") if isinstance(each, str) else each for each in node.args
        )


def test_the_gate_sees_a_package_that_reads_in_the_wrong_direction(tmp_path, monkeypatch):
    model = Both(lambda e: e.flip(0))
    data, graph = one_way()
    edges = torch.cat([data.edge_index, data.edge_index.flip(0)], 1).unique(dim=1)
    symmetric = Graph.from_pyg(Data(x=data.x, edge_index=edges), both_directions=True)
    for number, each in enumerate((graph, symmetric)):
        assert not package(model, each, tmp_path / str(number)).spec.edges_without
    monkeypatch.setattr(trace.lists, "turn_edges", along_instead)
    for each in (graph, symmetric):
        with pytest.raises(PackagingError, match="differ"):
            package(model, each, tmp_path / "wrong")


def test_an_event_changes_both_directions_of_a_served_live_graph(tmp_path):
    data, graph = one_way()
    model = Both(lambda e: e.flip(0))
    report = package(model, graph, tmp_path)
    writer, view = live(graph)
    served = Answerer(load_model(report.path, report.spec, view), ("logits",), 999)
    for src, dst in ((3, 60), (60, 3), (9, 11)):
        attr = np.ones((1, 3), np.float32)
        edge = EdgeChanges(*np.array([[src], [dst]]), np.zeros(1, bool), np.zeros(1, np.int64), attr=attr)
        assert writer.apply(Changes({"node__to__node": edge}, {}, 1)).num_applied == 1
        data.edge_index = torch.cat([data.edge_index, torch.tensor([[src], [dst]])], 1)
        (found,) = served.answer([ScoreRequest("m", nodes=list(range(70)))])
        np.testing.assert_allclose(found.outputs["logits"], expected(model, data), atol=1e-5)
