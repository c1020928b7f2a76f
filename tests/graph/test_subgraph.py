import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import GraphError
from tests.graphs import drawn, hetero_graph, power_law_graph
from tests.thorough import thorough


def edges_by_id(graph):
    """All edges as (key, source id, destination id, columns), sorted."""
    found = []
    for key, part in graph.edges.items():
        dst = np.repeat(np.arange(graph.nodes[part.dst].num_nodes), np.diff(part.indptr))
        sources = list(graph.nodes[part.src].ids.external(part.indices.astype(np.int64)))
        targets = list(graph.nodes[part.dst].ids.external(dst))
        columns = [c for c in (part.time, part.weight, part.attr) if c is not None]
        for i, (a, b) in enumerate(zip(sources, targets, strict=True)):
            found.append((key, a, b, *(np.asarray(c[i]).tolist() for c in columns)))
    return sorted(found, key=repr)


def test_subgraph_keeps_nodes_ids_features_and_edges_between_them():
    graph = drawn("a>b c>b b>d d>a a>a")
    rows = graph.node().ids.lookup(["d", "a", "b"])
    part = graph.subgraph(rows)
    assert part.node().ids.external(np.arange(3)) == ["d", "a", "b"]
    np.testing.assert_array_equal(part.node().features, graph.node().features[rows])
    assert [(a, b) for _, a, b in edges_by_id(part)] == [("a", "a"), ("a", "b"), ("b", "d"), ("d", "a")]


@settings(max_examples=thorough(6, 25), deadline=None)
@given(st.integers(0, 50), st.data())
def test_subgraph_equals_a_filter_of_all_edges(seed, data):
    graph = hetero_graph(seed, num_users=20, num_items=15)
    rows = {
        name: data.draw(st.lists(st.integers(0, part.num_nodes - 1), unique=True, min_size=name == "user"))
        for name, part in graph.nodes.items()
    }
    part = graph.subgraph(rows)
    kept = {name: set(graph.nodes[name].ids.external(np.array(r, np.int64))) for name, r in rows.items()}
    expected = [
        edge
        for edge in edges_by_id(graph)
        if edge[1] in kept[graph.edges[edge[0]].src] and edge[2] in kept[graph.edges[edge[0]].dst]
    ]
    assert edges_by_id(part) == expected
    assert part.schema == graph.schema


def test_the_whole_graph_is_its_own_subgraph():
    graph = hetero_graph()
    rows = {name: np.arange(part.num_nodes) for name, part in graph.nodes.items()}
    assert graph.subgraph(rows).version == graph.version


def test_row_numbers_become_integer_ids():
    part = power_law_graph(50, 200).subgraph([7, 3])
    assert part.node().ids.lookup([3, 7]).tolist() == [1, 0]


def test_bad_rows_are_named():
    graph = hetero_graph()
    with pytest.raises(GraphError, match="must be a mapping from node type to rows"):
        graph.subgraph([0])
    with pytest.raises(GraphError, match="no node type 'shop'"):
        graph.subgraph({"shop": [0]})
    with pytest.raises(GraphError, match="2 rows of node type 'user' are outside 0 to 59; the first is 60"):
        graph.subgraph({"user": [0, 60, -1]})
    with pytest.raises(GraphError, match=r"row 1 \(also in row 0\)"):
        graph.subgraph({"user": [3, 3]})
    with pytest.raises(GraphError, match="vector of row numbers"):
        graph.subgraph({"user": [0.5]})
    with pytest.raises(GraphError, match="the graph is empty"):
        graph.subgraph({})
