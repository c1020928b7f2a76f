"""Several tensors of nodes in one graph: each argument of forward receives the tensor of its name."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData

import hopline
from hopline.engine.answer import Answerer
from hopline.engine.model import load_model
from hopline.errors import BadRequest, GraphError, PackagingError, SchemaMismatch
from hopline.events.decode import Decoder
from hopline.graph import ColumnGroup, Graph
from hopline.types import InlineNode, ScoreRequest

COLUMNS = ("country", "pos", "flag")
GROUPS = (
    ColumnGroup("x", 4), ColumnGroup("country", 0, "uint8"), ColumnGroup("pos", 3),
    ColumnGroup("flag", 0, "bool"),
)  # fmt: skip


def data_of(num_nodes=60, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return Data(
        x=torch.randn(num_nodes, 4, generator=rng),
        edge_index=torch.randint(0, num_nodes, (2, 4 * num_nodes), generator=rng),
        country=torch.randint(0, 9, (num_nodes,), generator=rng).to(torch.uint8),
        pos=torch.randn(num_nodes, 3, generator=rng),
        flag=torch.rand(num_nodes, generator=rng) > 0.5,
    )


class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(9, 5)
        self.first, self.second = pyg.SAGEConv(12, 8), pyg.SAGEConv(8, 3)

    def embedded(self, x, country, pos, flag):
        wraps = (country - 5)[:, None] / 256  # of uint8: 251 for 0
        scale = torch.where(~flag & (x[:, 0] > 0), 2.0, 1.0)[:, None]
        return torch.cat([x, self.emb(country.long()), pos], 1) * scale + wraps

    def forward(self, x, country, edge_index, pos=None, flag=None):
        h = self.first(self.embedded(x, country, pos, flag), edge_index)
        return self.second(h.relu(), edge_index)


class OfData(Typed):
    def forward(self, data):
        return super().forward(data.x, data.country, data.edge_index, data.pos, data.flag)


class OtherNames(Typed):
    def forward(self, x, codes, edge_index, where, mask):
        return super().forward(x, codes, edge_index, where, mask)


OTHERS = {"codes": "country", "where": "pos", "mask": "flag"}


def package(model, graph, repository, **options):
    options = {"fanouts": [-1, -1], "task": "multiclass"} | options
    return hopline.package(model, graph, repository, name="m", **options)


def answers(report, graph, **request):
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 999)
    (found,) = answerer.answer([ScoreRequest("m", **request)])
    return found.outputs["logits"]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("model", "options"), [(Typed, {}), (OfData, {}), (OtherNames, {"arguments": OTHERS})]
)
def test_each_argument_receives_the_tensor_of_its_name(model, options, tmp_path):
    data, model = data_of(), model().eval()
    graph = Graph.from_pyg(data, columns=COLUMNS).save(tmp_path / "graph")
    report = package(model, Graph.open(tmp_path / "graph"), tmp_path, **options)
    with torch.no_grad():
        wanted = Typed.forward(model, data.x, data.country, data.edge_index, data.pos, data.flag)
    np.testing.assert_allclose(answers(report, graph, nodes=list(range(60))), wanted, atol=1e-5)


@pytest.mark.release
def test_the_call_names_each_tensor(tmp_path):
    graph = Graph.from_pyg(data_of(), columns=COLUMNS)
    call = "called as forward(x=features[4], country=country, edge_index=edge_index, pos=pos, flag=flag)"
    assert package(Typed(), graph, tmp_path).notes[0] == call
    named = package(OtherNames(), graph, tmp_path / "named", arguments=OTHERS).notes[0]
    assert "codes=country, edge_index=edge_index, where=pos, mask=flag" in named


def test_a_node_of_a_request_has_all_columns_in_their_order(tmp_path):
    data, model = data_of(), Typed().eval()
    graph = Graph.from_pyg(data, columns=COLUMNS)
    report = package(model, graph, tmp_path)
    row = np.asarray(graph.nodes["node"].features)[7].tolist()
    into = data.edge_index[0][data.edge_index[1] == 7].tolist()
    inline = [InlineNode(row, {"node__to__node": into})]
    found = answers(report, graph, inline=inline)
    np.testing.assert_allclose(found, answers(report, graph, nodes=[7]), atol=1e-5)
    assert graph.schema.node_types["node"].feature_names[4:] == (
        "country",
        "pos.0",
        "pos.1",
        "pos.2",
        "flag",
    )


def test_types_of_hetero_data_have_their_own_tensors(tmp_path):
    data = HeteroData()
    rng = torch.Generator().manual_seed(1)
    data["user"].x = torch.randn(20, 4, generator=rng)
    data["user"].country = torch.randint(0, 5, (20,), generator=rng)
    data["item"].price = torch.rand(30, generator=rng)
    data["item"].country = torch.randint(0, 5, (30,), generator=rng)
    data["item", "by", "user"].edge_index = torch.stack(
        [torch.randint(0, n, (80,), generator=rng) for n in (30, 20)]
    )

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.conv = nn.Embedding(5, 6), pyg.SAGEConv((7, 10), 3)

        def forward(self, x_dict, country_dict, price_dict, edge_index_dict):
            item = torch.cat([self.emb(country_dict["item"]), price_dict["item"][:, None]], 1)
            user = torch.cat([self.emb(country_dict["user"]), x_dict["user"]], 1)
            return self.conv((item, user), edge_index_dict["item", "by", "user"])

    graph = Graph.from_pyg(data, columns=["country", "price"])
    model = Net().eval()
    report = package(model, graph, tmp_path, target="user", fanouts=[-1])
    with torch.no_grad():
        wanted = model(
            {"user": data["user"].x}, {key: data[key].country for key in ("user", "item")},
            {"item": data["item"].price}, data.edge_index_dict,
        )  # fmt: skip
    np.testing.assert_allclose(answers(report, graph, nodes=list(range(20))), wanted, atol=1e-5)


def test_a_graph_of_codes_alone_needs_the_name_of_what_x_receives(tmp_path):
    data = data_of()
    del data.x

    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.conv = nn.Embedding(9, 5), pyg.SAGEConv(5, 3)

        def forward(self, x, edge_index):
            return self.conv(self.emb(x.long()), edge_index)

    graph = Graph.from_pyg(data, columns=["country"])
    with pytest.raises(PackagingError, match=r"the graph has no x: its tensors of nodes are country"):
        package(Codes(), graph, tmp_path, fanouts=[-1])
    model = Codes().eval()
    report = package(model, graph, tmp_path, fanouts=[-1], arguments={"x": "country"})
    with torch.no_grad():
        wanted = model(data.country, data.edge_index)
    np.testing.assert_allclose(answers(report, graph, nodes=list(range(60))), wanted, atol=1e-5)


def test_the_tensors_are_known_to_copies_of_the_graph(tmp_path):
    graph = Graph.from_pyg(data_of(), columns=COLUMNS)
    saved = graph.save(tmp_path / "graph")
    for copy in (
        graph, saved, Graph.open(tmp_path / "graph"), saved.compressed(), saved.subgraph([0, 1, 2]),
        saved.with_features_as("float16"), saved.with_features_as("float32"),
    ):  # fmt: skip
        assert copy.schema.node_types["node"].groups == GROUPS
    plain = Graph.from_pyg(data_of())
    assert plain.schema.node_types["node"].groups == ()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("pos", r"write columns=\['pos'\]"),
        (["mcc"], "'mcc', and no node type of the data has such a tensor"),
        (["x"], "'x', which is read anyway"),
        (["names"], r"a tensor of nodes has numbers of shape \[60\]"),
        (["cube"], r"float32 of shape \[60, 2, 2\]"),
        (["short"], r"of shape \[5\]; a tensor of nodes has"),
    ],
)
def test_columns_that_are_no_tensors_of_nodes_are_named(columns, message):
    data = data_of()
    data.names, data.cube, data.short = ["a"] * 60, torch.zeros(60, 2, 2), torch.zeros(5)
    with pytest.raises(GraphError, match=message):
        Graph.from_pyg(data, columns=columns)


def test_an_unknown_name_of_a_tensor_is_refused_with_those_that_there_are(tmp_path):
    graph = Graph.from_pyg(data_of(), columns=COLUMNS)
    for name in ("columns", "mcc"):
        with pytest.raises(PackagingError, match=r"receives one of features, .*data, country, pos, flag"):
            package(OtherNames(), graph, tmp_path, arguments=OTHERS | {"codes": name})


def later(**columns):
    """The same graph with other tensors."""
    data = data_of()
    for name, value in columns.items():
        data[name] = value
    return Graph.from_pyg(data, columns=COLUMNS)


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"country": torch.full((60,), 2.7)}, r"tensors .*country \(float32, 1\).*country \(uint8, 1\)"),
        ({"flag": torch.ones(60, dtype=torch.int64)}, r"flag \(int64, 1\).*flag \(bool, 1\)"),
        ({"pos": torch.zeros(60, 3, dtype=torch.int32)}, r"pos \(int32, 3\).*pos \(float32, 3\)"),
    ],
)
def test_a_later_graph_with_tensors_of_other_dtypes_is_refused(columns, message, tmp_path):
    report = package(Typed(), Graph.from_pyg(data_of(), columns=COLUMNS), tmp_path)
    with pytest.raises(SchemaMismatch, match=message):
        load_model(report.path, report.spec, later(**columns))


@pytest.mark.release
def test_a_fraction_among_integers_is_refused(tmp_path):
    graph = Graph.from_pyg(data_of(), columns=COLUMNS)
    report = package(Typed(), graph, tmp_path)
    row = np.asarray(graph.nodes["node"].features)[7].tolist()
    answerer = Answerer(load_model(report.path, report.spec, graph), ("logits",), 999)
    for at, name in ((4, "country"), (8, "flag")):
        wrong = [*row[:at], 2.7, *row[at + 1 :]]
        (found,) = answerer.answer([ScoreRequest("m", inline=[InlineNode(wrong)])])
        assert isinstance(found, BadRequest)
        assert f"column {name!r}: 2.7 is a fraction, and the graph has integers there" in str(found)
    event = {"op": "set_features", "node": 3, "features": [*row[:4], 2.7, *row[5:]]}
    (refused,) = Decoder(graph.schema).decode([json.dumps([event]).encode()]).refused
    assert "2.7 is a fraction" in refused.reason


@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float16"])
def test_a_narrow_dtype_that_changes_codes_is_refused(dtype, tmp_path):
    data = data_of()
    data.country = 4001 + 7 * torch.arange(60)
    with pytest.raises(GraphError, match="the dtype changes the integers of 'country'"):
        Graph.from_pyg(data, columns=COLUMNS, feature_dtype=dtype)
    with pytest.raises(GraphError, match="the dtype changes the integers of 'country'"):
        Graph.from_pyg(data, columns=COLUMNS).with_features_as(dtype)
