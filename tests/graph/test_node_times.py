"""Times of nodes: a row exists from its time on, and is held exactly."""

import numpy as np
import pytest
import torch
from torch_geometric.data import HeteroData

from hopline.errors import GraphError
from hopline.graph import EdgeTable, Graph, NodeFile, NodeTable
from hopline.graph.files import read_nodes
from hopline.graph.live.home import LiveHome
from hopline.graph.node_times import times_of
from tests.commands.typed import typed

PAID, PAYS = ("payment", "by", "account"), ("account", "pays", "payment")
LONG = np.array([-(2**62), -1, 0, 1, 1_500_000_000_123_456_789, 2**62 - 1])


def tables(times=LONG, **options):
    accounts = np.arange(len(times)) % 3
    payments = np.arange(len(times))
    nodes = {
        "payment": NodeTable(np.ones((len(times), 2)), time=times, **options),
        "account": NodeTable(np.ones((3, 1))),
    }
    edges = {
        PAID: EdgeTable((payments, accounts), by_row=True),
        PAYS: EdgeTable((accounts, payments), by_row=True),
    }
    return nodes, edges


def read(graph):
    return times_of(graph.schema.node_types["payment"], graph.nodes["payment"].features)


def test_times_are_held_exactly_and_survive_a_folder_and_a_subgraph(tmp_path):
    graph = Graph.from_tables(*tables())
    schema = graph.schema.node_types["payment"]
    assert (schema.feature_dim, schema.x_dim, schema.has_time) == (5, 2, True)
    assert read(graph).tolist() == LONG.tolist()
    assert read(graph.save(tmp_path / "graph")).tolist() == LONG.tolist()
    part = graph.subgraph({"payment": [4, 1], "account": [1]})
    assert read(part).tolist() == LONG[[4, 1]].tolist()
    assert part.edges["payment__by__account"].time.tolist() == sorted(LONG[[4, 1]].tolist())
    assert graph.clock == 2**62 - 1


def test_edges_have_the_times_of_their_sources():
    graph = Graph.from_tables(*tables(np.array([30, 10, 20, 5])))
    paid = graph.edges["payment__by__account"]
    assert paid.time.tolist() == [5, 30, 10, 20], "by destination, then by time"
    assert paid.indices.tolist() == [3, 0, 1, 2]
    assert graph.edges["account__pays__payment"].time is None, "accounts have no times"


def test_an_own_time_of_an_edge_stays_and_must_not_be_before_its_source():
    nodes, edges = tables(np.array([30, 10]))
    edges[PAID] = EdgeTable(([0, 1], [0, 1]), time=[40, 10], by_row=True)
    assert Graph.from_tables(nodes, edges).edges["payment__by__account"].time.tolist() == [40, 10]
    edges[PAID] = EdgeTable(([0, 1], [0, 1]), time=[29, 10], by_row=True)
    with pytest.raises(GraphError, match="1 edges are older than their source"):
        Graph.from_tables(nodes, edges)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"times": np.array([1, 2**62])}, "times must be in"),
        ({"times": np.array([1, 2]), "num_nodes": 3}, "must agree"),
        ({"times": np.array([0.5, 1.0])}, "integers"),
    ],
)
def test_wrong_times_are_refused(given, message):
    with pytest.raises(GraphError, match=message):
        Graph.from_tables(*tables(**given))


def test_narrow_features_would_round_times():
    with pytest.raises(GraphError, match="has times, and float16 besides"):
        Graph.from_tables(*tables(), feature_dtype="float16")


def test_times_of_pyg_are_kept_by_name():
    data = HeteroData()
    data["payment"].x = torch.ones(4, 2)
    data["payment"].at = torch.tensor([30, 10, 20, 5]) + 10**9
    data["account"].x = torch.ones(3, 1)
    data[PAID].edge_index = torch.tensor([[0, 1, 2, 3], [0, 1, 2, 0]])
    graph = Graph.from_pyg(data, node_time="at", time_unit="s")
    assert (read(graph) - 10**9).tolist() == [30, 10, 20, 5]
    assert graph.schema.time_unit == "s"
    assert "payment" not in graph.left_out
    with pytest.raises(GraphError, match="no node type of the data has such a tensor"):
        Graph.from_pyg(data, node_time="time")


def test_a_live_graph_of_nodes_with_times_is_refused(tmp_path):
    base = Graph.from_tables(*tables()).save(tmp_path / "graph")
    with pytest.raises(GraphError, match="has times, which no event sets: build the graph with a history"):
        LiveHome.open(tmp_path / "live", base)


def test_files_and_the_command_line_have_times_of_nodes(tmp_path):
    """A time is no feature, and edges from a node have it; one of edges is named beside it."""
    (tmp_path / "orders.csv").write_text("id,placed,amount\n1,2024-01-01,5\n2,2024-01-03,7\n")
    (tmp_path / "of.csv").write_text("src,dst\n2,a\n1,a\n")
    (tmp_path / "likes.csv").write_text("src,dst,at\na,1,2024-02-01\n")
    words = [
        "graph",
        "build",
        f"order:of:user={tmp_path / 'of.csv'}",
        f"user:likes:order={tmp_path / 'likes.csv'}",
    ]
    words += ["--features", f"order={tmp_path / 'orders.csv'}", "--id", "order=id"]
    words += ["--time", "order=placed", "--time", "user:likes:order=at"]
    found = typed(*words, "--out", str(tmp_path / "graph"))
    assert found.exit_code == 0, found.output
    graph = Graph.open(tmp_path / "graph")
    schema, day = graph.schema.node_types["order"], 86_400
    first = 1_704_067_200  # 2024-01-01
    assert schema.has_time
    assert schema.feature_names[:1] == ("amount",)
    assert times_of(schema, graph.nodes["order"].features).tolist() == [first, first + 2 * day]
    assert graph.edges["order__of__user"].time.tolist() == [first, first + 2 * day]
    assert graph.edges["user__likes__order"].time.tolist() == [first + 31 * day]
    file = NodeFile(tmp_path / "orders.csv", "id", time="placed")
    assert read_nodes(file)[1] == ["amount"]
