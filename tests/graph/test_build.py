import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import GraphError
from hopline.graph import EdgeTable, Graph, NodeTable, csc
from tests.graph.reference import assert_adjacency_equals_lists, neighbor_lists
from tests.graphs import drawn, hetero_graph, power_law_graph
from tests.thorough import thorough


@st.composite
def edge_lists(draw, max_nodes=12, max_edges=60):
    num_nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=max_edges))
    times = draw(
        st.none()
        | st.lists(
            st.integers(0, 5) | st.sampled_from([-(2**63), 2**63 - 1, 2**62]),
            min_size=len(edges),
            max_size=len(edges),
        )
    )
    return num_nodes, [s for s, _ in edges], [d for _, d in edges], times


@settings(max_examples=thorough(37, 150), deadline=None)
@given(edge_lists())
def test_csc_equals_brute_force(case):
    num_nodes, src, dst, time = case
    weight = [float(i) for i in range(len(src))]
    attr = [[i, -i] for i in range(len(src))]
    graph = Graph.from_edges(
        np.array([src, dst], np.int64).reshape(2, -1),
        num_nodes=num_nodes,
        edge_time=time,
        edge_weight=weight,
        edge_attr=np.array(attr).reshape(-1, 2),
    )
    adjacency = graph.edge()
    lists = neighbor_lists(src, dst, num_nodes, time)
    assert_adjacency_equals_lists(adjacency, lists, src, time=time, weight=weight, attr=attr or None)
    sums = [np.cumsum([weight[e] for e in edges]) for edges in lists]
    np.testing.assert_allclose(adjacency.cumweight, np.concatenate([*sums, []]))
    assert adjacency.has_self_loops == any(s == d for s, d in zip(src, dst, strict=True))
    assert adjacency.has_repeated_edges == (len(set(zip(src, dst, strict=True))) < len(src))
    source, target = csc.repeated_edge(adjacency.indptr, adjacency.indices)
    assert (source < 0) != adjacency.has_repeated_edges
    if source >= 0:
        assert list(zip(src, dst, strict=True)).count((source, target)) > 1


@settings(max_examples=thorough(15, 60), deadline=None)
@given(edge_lists(), st.randoms(use_true_random=False))
def test_build_does_not_depend_on_edge_order(case, random):
    num_nodes, src, dst, time = case
    shuffled = list(range(len(src)))
    random.shuffle(shuffled)

    def build(order):
        return Graph.from_edges(
            ([src[i] for i in order], [dst[i] for i in order]),
            num_nodes=num_nodes,
            edge_time=None if time is None else [time[i] for i in order],
        )

    assert build(shuffled).version == build(range(len(src))).version


def test_many_nodes_need_many_radix_passes_and_sort_right():
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 2**30, 3_000), rng.integers(0, 50, 3_000)
    graph = Graph.from_tables(
        {"a": NodeTable(ids=np.unique(src)), "b": NodeTable(num_nodes=50)},
        {("a", "to", "b"): EdgeTable((src, dst), time=rng.integers(-(2**62), 2**62, 3_000))},
    )
    adjacency = graph.edge()
    for node in range(50):
        time = adjacency.time[adjacency.indptr[node] : adjacency.indptr[node + 1]]
        assert (np.diff(time) >= 0).all()
    assert adjacency.num_edges == 3_000


def test_in_neighbors_of_a_drawn_graph_are_sorted_by_source():
    graph = drawn("c>b a>b b>d a>b")
    ids = graph.node().ids
    (b,) = ids.lookup(["b"])
    assert ids.external(graph.edge().neighbors(b)) == ["c", "a", "a"]  # c was named first: row 0


def test_times_sort_before_sources_and_as_of_is_a_prefix():
    graph = drawn("a>x@30 b>x@10 c>x@20 d>x@10")
    (x,) = graph.node().ids.lookup(["x"])
    assert graph.node().ids.external(graph.edge().neighbors(x)) == ["b", "d", "c", "a"]
    assert graph.edge().time.tolist() == [10, 10, 20, 30]


def test_ties_keep_input_order():
    graph = Graph.from_edges([[0, 0, 0], [1, 1, 1]], num_nodes=2, edge_attr=[3.0, 1.0, 2.0])
    assert graph.edge().attr.reshape(-1).tolist() == [3.0, 1.0, 2.0]


def test_multi_edges_and_self_loops_are_kept():
    graph = drawn("a>b a>b b>b")
    assert graph.num_edges == 3
    assert graph.edge().has_self_loops


def test_self_loops_are_only_reported_where_both_ends_are_of_one_type():
    graph = Graph.from_tables(
        {"a": NodeTable(num_nodes=2), "b": NodeTable(num_nodes=2)},
        {("a", "to", "b"): EdgeTable([[0, 1], [0, 1]])},
    )
    assert not graph.edge().has_self_loops


def test_undirected_adds_reverses_with_their_columns_but_no_second_self_loop():
    graph = Graph.from_edges(
        [[0, 1, 2], [1, 2, 2]], num_nodes=3, edge_weight=[1, 2, 3], edge_time=[7, 8, 9], undirected=True
    )
    triples = [
        (int(s), d, float(w))
        for d in range(3)
        for s, w in zip(
            graph.edge().neighbors(d),
            graph.edge().weight[graph.edge().indptr[d] : graph.edge().indptr[d + 1]],
            strict=True,
        )
    ]
    assert sorted(triples) == [(0, 1, 1.0), (1, 0, 1.0), (1, 2, 2.0), (2, 1, 2.0), (2, 2, 3.0)]


def test_edges_by_row_may_be_given_beside_ids():
    by_row = Graph.from_edges([[0, 2], [1, 1]], ids=["a", "b", "c"], by_row=True)
    by_id = Graph.from_edges((["a", "c"], ["b", "b"]), ids=["a", "b", "c"])
    assert by_row.version == by_id.version


def test_homogeneous_graph_is_the_one_type_case_of_tables():
    features = np.eye(3)
    one = Graph.from_edges([[0, 1], [1, 2]], features)
    other = Graph.from_tables(
        {"node": NodeTable(features)}, {("node", "to", "node"): EdgeTable([[0, 1], [1, 2]])}
    )
    assert one.version == other.version
    assert list(one.edges) == ["node__to__node"]


def test_order_of_tables_does_not_matter():
    nodes = {"a": NodeTable(num_nodes=2), "b": NodeTable(num_nodes=3)}
    edges = {("a", "x", "b"): EdgeTable([[0], [2]]), ("b", "y", "a"): EdgeTable([[1], [1]])}
    forward = Graph.from_tables(nodes, edges)
    backward = Graph.from_tables(dict(reversed(nodes.items())), dict(reversed(edges.items())))
    assert forward.version == backward.version
    assert forward.schema.hash == backward.schema.hash


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "bool"])
def test_features_of_any_real_dtype_become_float32(dtype):
    graph = Graph.from_edges([[0], [1]], np.ones((2, 3)).astype(dtype))
    assert graph.node().features.dtype == np.float32
    assert graph.node().features.flags.c_contiguous


def test_float16_is_stored_on_request():
    graph = power_law_graph(50, 100, feature_dtype="float16")
    assert graph.node().features.dtype == np.float16
    assert graph.schema.node_types["node"].feature_dtype == "float16"


def test_fortran_ordered_features_become_c_contiguous():
    features = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(3, 2))
    graph = Graph.from_edges([[0], [1]], features)
    assert graph.node().features.flags.c_contiguous
    np.testing.assert_array_equal(graph.node().features, features)


def test_fitting_features_are_not_copied():
    features = np.ones((2, 3), np.float32)
    assert np.shares_memory(Graph.from_edges([[0], [1]], features).node().features, features)


def test_nothing_of_a_graph_can_be_written():
    graph = power_law_graph(20, 40, times=True, weights=True, edge_attr_dim=2, ids="int")
    arrays = [graph.node().features, *graph.edge().arrays().values(), *graph.node().ids.arrays().values()]
    assert len(arrays) == 9
    assert not any(array.flags.writeable for array in arrays)
    with pytest.raises(TypeError):
        graph.nodes["more"] = graph.node()


def test_number_of_nodes_comes_from_the_edges_without_another_source():
    graph = Graph.from_edges([[0, 5], [3, 1]])
    assert graph.num_nodes == 6
    assert graph.node().features.shape == (6, 0)


def test_edges_may_be_none_at_all():
    graph = Graph.from_edges(np.empty((2, 0), np.int64), np.ones((4, 1)))
    assert graph.edge().indptr.tolist() == [0] * 5
    assert graph.edge().max_degree == 0


def test_datetimes_become_integers_of_their_own_unit():
    time = np.array(["2024-01-02", "2024-01-01"], "datetime64[ms]")
    graph = Graph.from_edges([[0, 1], [1, 1]], num_nodes=2, edge_time=time)
    assert graph.edge().time.tolist() == [1_704_067_200_000, 1_704_153_600_000]


def test_whole_floats_are_times_too():
    assert Graph.from_edges([[0], [1]], edge_time=[3.0]).edge().time.dtype == np.int64


def test_each_type_has_ids_of_its_own():
    graph = hetero_graph()
    assert graph.schema.node_types["user"].id_kind == "string"
    assert graph.schema.node_types["item"].id_kind == "int"
    assert graph.edges["user__follows__user"].has_self_loops
    assert graph.num_edges == 300 + 300 + 203 + 80


def test_version_changes_with_features_ids_names_and_weights():
    def version(**changes):
        known = {
            "features": np.ones((2, 2)),
            "ids": [1, 2],
            "feature_names": ["a", "b"],
            "edge_weight": [1.0],
        }
        return Graph.from_edges([[1], [2]], **(known | changes)).version

    others = [
        version(features=np.zeros((2, 2))),
        version(ids=[2, 1]),
        version(feature_names=["a", "c"]),
        version(edge_weight=[2.0]),
        version(feature_dtype="float16"),
    ]
    assert version() == version()
    assert len({version(), *others}) == 6


def test_progress_reports_every_stage_up_to_its_end():
    heard: dict[str, list[float]] = {}
    Graph.from_edges(
        [[1], [2]],
        np.ones((2, 2)),
        ids=[1, 2],
        progress=lambda stage, done: heard.setdefault(stage, []).append(done),
    )
    assert len(heard) == 3
    assert all(done == sorted(done) and done[-1] == 1.0 for done in heard.values())


def test_node_and_edge_name_what_there_is():
    graph = hetero_graph()
    assert graph.edge(("user", "buys", "item")) is graph.edge("user__buys__item")
    with pytest.raises(ValueError, match="no node type 'shop'; there are 'item', 'user'"):
        graph.node("shop")
    with pytest.raises(ValueError, match="must be given"):
        graph.edge()


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


def both_ways():
    users, items = np.zeros((3, 1), np.float32), np.zeros((2, 1), np.float32)
    buys = EdgeTable(([0, 1, 1, 2], [1, 1, 0, 1]), attr=[[1], [2], [3], [4]], time=[4, 3, 2, 1])
    nodes = {"user": NodeTable(users), "item": NodeTable(items)}
    return Graph.from_tables(nodes, {("user", "buys", "item"): buys}, both_directions=True)


def test_both_directions_add_the_reverse_of_each_edge_type(tmp_path):
    graph = both_ways().save(tmp_path / "g")
    back = graph.schema.edge_types["item__rev_buys__user"]
    assert (back.reverse_of, back.attr_dim, back.has_time) == ("user__buys__item", 1, True)
    assert list(graph.schema.own_edge_types) == ["user__buys__item"]
    edges = graph.edges["item__rev_buys__user"]
    assert [edges.neighbors(user).tolist() for user in range(3)] == [[1], [0, 1], [1]]
    assert edges.attr.ravel().tolist() == [1, 3, 2, 4]
    assert edges.time.tolist() == [4, 2, 3, 1]
    assert json.loads((tmp_path / "g" / "graph.json").read_text())["format"] == 7
    part = graph.subgraph({"user": [1, 2], "item": [1]})
    assert part.edges["item__rev_buys__user"].neighbors(0).tolist() == [0]
    assert part.schema.edge_types["item__rev_buys__user"] == back


def test_both_directions_of_an_undirected_type_hold_the_same_edges():
    table = EdgeTable(([0, 1], [1, 2]), undirected=True)
    nodes = {"node": NodeTable(np.zeros((3, 1), np.float32))}
    graph = Graph.from_tables(nodes, {("node", "to", "node"): table}, both_directions=True)
    one, other = graph.edges.values()
    assert one.neighbors(1).tolist() == other.neighbors(1).tolist() == [0, 2]


def test_both_directions_refuse_a_type_that_exists():
    with pytest.raises(GraphError, match=r"both_directions adds .*'rev_buys'.* exists: rename it"):
        Graph.from_tables(
            {"user": NodeTable(num_nodes=1), "item": NodeTable(num_nodes=1)},
            {
                ("user", "buys", "item"): EdgeTable(([], [])),
                ("item", "rev_buys", "user"): EdgeTable(([], [])),
            },
            both_directions=True,
        )
