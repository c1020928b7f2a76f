"""Undirected never doubles edges whose reverse is there already."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import GraphError
from hopline.graph import Graph


def neighbors(graph):
    return [graph.edge().neighbors(v).tolist() for v in range(graph.num_nodes)]


def test_a_file_that_holds_both_directions_stays_as_it_is(caplog):
    both = [[0, 1, 1, 2, 2], [1, 0, 2, 1, 2]]
    graph = Graph.from_edges(both, undirected=True, edge_weight=[1, 1, 2, 2, 3])
    assert graph.version == Graph.from_edges(both, edge_weight=[1, 1, 2, 2, 3]).version
    assert "already contain both directions: no reverse was added" in caplog.text


@pytest.mark.parametrize(
    ("edges", "columns", "match"),
    [
        ([[0, 1, 1], [1, 0, 2]], {}, r"2 of 3 edges already have their reverse.*\(the first is edge 0\)"),
        ([[2, 0, 1], [2, 1, 0]], {"edge_time": [1, 2, 3]}, "with another time, weight or attribute"),
        ([[0, 1], [1, 0]], {"edge_attr": [[1.0], [2.0]]}, "with another time, weight or attribute"),
        ([[0, 0, 1], [1, 1, 0]], {}, "but not the same number of times"),
    ],
)
def test_some_reverses_are_refused(edges, columns, match):
    with pytest.raises(
        GraphError, match=match + ".*would double them.*with source and destination exchanged"
    ):
        Graph.from_edges(edges, undirected=True, **columns)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12))
def test_no_pair_has_more_edges_than_it_was_given(pairs):
    edges = np.array(pairs, int).reshape(-1, 2).T
    count = {}
    for a, b in pairs:
        count[frozenset((a, b))] = count.get(frozenset((a, b)), 0) + 1
    try:
        graph = Graph.from_edges(edges, num_nodes=7, undirected=True)
    except GraphError:
        assert any(a != b and (b, a) in pairs for a, b in pairs)
        return
    for v, sources in enumerate(neighbors(graph)):
        for u in set(sources):
            assert sources.count(u) <= count[frozenset((u, v))]
            assert u == v or neighbors(graph)[u].count(v) == sources.count(u)
