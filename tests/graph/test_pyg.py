import warnings

import numpy as np
import pytest
import torch

from hopline.errors import GraphError
from hopline.graph import Graph

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    from torch_geometric.data import Data, HeteroData

torch.set_num_threads(1)
EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]])


def test_data_becomes_the_graph_of_its_arrays():
    x = torch.randn(3, 4)
    data = Data(x=x, edge_index=EDGES, edge_attr=torch.arange(4.0), edge_weight=torch.rand(4))
    graph = Graph.from_pyg(data, ids=["a", "b", "c"])
    names = np.array(["a", "b", "c"])
    expected = Graph.from_edges(
        (names[EDGES[0].numpy()], names[EDGES[1].numpy()]),
        x.numpy(),
        ids=["a", "b", "c"],
        edge_attr=np.arange(4.0),
        edge_weight=data.edge_weight.numpy(),
    )
    assert graph.version == expected.version


@pytest.mark.parametrize(
    "x",
    [
        torch.eye(3, dtype=torch.float64),
        torch.eye(3, dtype=torch.bfloat16),
        torch.eye(3, dtype=torch.int64),
        torch.eye(3, requires_grad=True),
        torch.eye(3).to_sparse_coo(),
    ],
    ids=["float64", "bfloat16", "int64", "requires_grad", "sparse"],
)
def test_features_may_be_of_any_dtype_and_sparse(x):
    np.testing.assert_array_equal(
        Graph.from_pyg(Data(x=x, edge_index=EDGES)).node().features, np.eye(3, dtype=np.float32)
    )


def test_edge_times_under_either_name():
    for name in ("edge_time", "time"):
        data = Data(edge_index=EDGES, num_nodes=3, **{name: torch.tensor([4, 3, 2, 1])})
        assert sorted(Graph.from_pyg(data).edge().time.tolist()) == [1, 2, 3, 4]


def test_times_of_nodes_are_not_times_of_edges():
    data = Data(edge_index=EDGES, num_nodes=3, time=torch.tensor([4, 3, 2]))
    assert Graph.from_pyg(data).edge().time is None
    data = Data(edge_index=EDGES, num_nodes=4, time=torch.tensor([4, 3, 2, 1]))
    with pytest.raises(GraphError, match="name it `edge_time`"):
        Graph.from_pyg(data)


def test_number_of_nodes_without_features():
    assert Graph.from_pyg(Data(edge_index=EDGES, num_nodes=9)).num_nodes == 9
    assert Graph.from_pyg(Data(edge_index=EDGES)).num_nodes == 3


def test_relations_become_edge_types():
    data = Data(
        edge_index=EDGES,
        num_nodes=3,
        edge_type=torch.tensor([2, 0, 2, 0]),
        edge_attr=torch.arange(4.0),
    )
    graph = Graph.from_pyg(data, num_relations=4)
    assert list(graph.edges) == [f"node__r{r}__node" for r in range(4)]
    assert [part.num_edges for part in graph.edges.values()] == [2, 0, 2, 0]
    assert graph.edges["node__r0__node"].neighbors(2).tolist() == [1]
    assert sorted(graph.edges["node__r2__node"].attr.reshape(-1).tolist()) == [0.0, 2.0]
    assert len(Graph.from_pyg(data).edges) == 3


def test_more_than_ten_relations_stay_apart():
    data = Data(edge_index=torch.zeros(2, 12, dtype=torch.long), num_nodes=1, edge_type=torch.arange(12))
    assert len(Graph.from_pyg(data).edges) == 12


@pytest.mark.parametrize(
    ("edge_type", "match"),
    [
        (torch.tensor([0, 1, 2, 5]), "1 relations are outside 0 to 2; the first is 5 at edge 3"),
        (torch.tensor([0, 1]), "must be 4 integers"),
        (torch.zeros(4), "must be 4 integers"),
    ],
)
def test_bad_relations(edge_type, match):
    with pytest.raises(GraphError, match=match):
        Graph.from_pyg(Data(edge_index=EDGES, num_nodes=3, edge_type=edge_type), num_relations=3)


# torch says at its first use in a process that CSR is in beta.
@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_transposed_sparse_adjacency():
    dense = torch.zeros(3, 3)
    dense[EDGES[1], EDGES[0]] = torch.tensor([1.0, 2.0, 3.0, 4.0])
    adjacency = dense.to_sparse_csr()
    data = Data(num_nodes=3)
    data.adj_t = adjacency
    graph = Graph.from_pyg(data)
    weighted = Graph.from_edges(EDGES, num_nodes=3, edge_weight=[1.0, 2.0, 3.0, 4.0])
    assert graph.version == weighted.version
    data.adj_t = dense.bool().float().to_sparse()
    assert Graph.from_pyg(data).version == Graph.from_edges(EDGES, num_nodes=3).version


def test_hetero_data():
    data = HeteroData()
    data["user"].x = torch.randn(3, 2)
    data["item"].num_nodes = 2
    data["user", "buys", "item"].edge_index = torch.tensor([[0, 2], [1, 0]])
    data["user", "buys", "item"].time = torch.tensor([5, 6])
    data["item", "rev_buys", "user"].edge_index = torch.tensor([[1, 0], [0, 2]])
    graph = Graph.from_pyg(data, ids={"item": [10, 20]})
    assert sorted(graph.edges) == ["item__rev_buys__user", "user__buys__item"]
    assert graph.schema.node_types["item"].id_kind == "int"
    assert graph.schema.node_types["item"].feature_dim == 0
    assert graph.edge("user__buys__item").has_self_loops is False
    assert graph.edge("user__buys__item").time.tolist() == [6, 5]


def test_what_is_no_data_is_refused():
    with pytest.raises(GraphError, match="expected a PyG Data or HeteroData; got dict"):
        Graph.from_pyg({})
    with pytest.raises(GraphError, match="neither edge_index nor adj_t"):
        Graph.from_pyg(Data(x=torch.eye(2)))
    with pytest.raises(GraphError, match="must be a mapping"):
        Graph.from_pyg(HeteroData(), ids=[1])


def test_texts_of_nodes_are_named_with_the_way_to_keep_them(caplog):
    data = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
    data.country, data.mcc = ["DE", "JP", "FR"], torch.tensor([5411, 5812, 742])
    graph = Graph.from_pyg(data)
    assert graph.left_out == {"node": ("country", "mcc")}
    assert "node: left out: country [3]; Graph.from_tables (NodeTable.columns) keeps it" in caplog.text
    assert "node: left out: mcc [3]; columns=['mcc'] keeps it" in caplog.text
    with pytest.raises(GraphError, match=r"texts are columns of a table: .*NodeTable\(columns=frame\)"):
        Graph.from_pyg(data, columns=["country"])
