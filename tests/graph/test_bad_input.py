"""Every refusal names what is wrong, how many, where first, and what would be right."""

import numpy as np
import pytest
import torch

from hopline.errors import GraphError
from hopline.graph import EdgeTable, Graph, NodeTable


def refused(match, *args, **kwargs):
    with pytest.raises(GraphError, match=match):
        Graph.from_edges(*args, **kwargs)


def test_edges_outside_the_node_range_name_the_end_and_the_first_few():
    edges = np.array([[0, 9, 1, 8, 7, 6, 5, 5], [0, 0, 0, 0, 0, 0, 0, 0]])
    refused(
        r"sources of 'node__to__node' outside the node range: 6; .*0 to 2; edge 1 has 9, .*edge 6 has 5, …",
        edges,
        num_nodes=3,
    )
    refused("destinations of .* range: 1; .* edge 2 has -1", [[0, 1, 2], [0, 1, -1]], num_nodes=3)


def test_edges_of_unknown_external_ids_are_named():
    refused(r"destinations .* unknown: 1;.*edge 0 has 'z'", [["a"], ["z"]], ids=["a", "b"])
    refused(r"sources .* unknown: 2;.*edge 0 has 7, edge 1 has 8", [[7, 8], [1, 1]], ids=[1, 2])


def test_edges_of_other_id_kind_than_the_nodes():
    refused("node ids are strings here; got the integer 1.*has string ids", [[1], [2]], ids=["a", "b"])
    refused("node ids are integers here; got the string 'a'.*has int ids", [["a"], ["b"]], ids=[1, 2])
    refused("must be integers.*to use your own ids, pass `ids`", [["a"], ["b"]])


def test_duplicate_external_ids():
    refused(
        r"1 of them are repeated, the first is 'a' in row 2 \(also in row 0\)",
        [[], []],
        ids=["a", "b", "a"],
    )
    refused(r"2 of them are repeated, the first is 5 in row 1", [[], []], ids=[5, 5, 6, 5])


@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ([1, "a"], "all integers or all strings; got both"),
        ([1.5, 2], r"got 1.5 \(float\)"),
        ([True, 2], r"got True \(bool\)"),
        ([None, "a"], r"got None \(NoneType\)"),
        ([2**63], "does not fit into a signed 64-bit integer; use string ids"),
        (np.array([2**63], np.uint64), "does not fit"),
        (np.ones((2, 2), int), "one-dimensional"),
        ("ab", "must be a list; got the single value 'ab'"),
    ],
)
def test_ids_of_wrong_kind(ids, match):
    refused(match, [[], []], ids=ids)


def test_nan_and_inf_in_features_are_counted_and_the_first_is_placed():
    features = np.zeros((4, 3))
    features[1, 2] = np.nan
    features[3, :2] = np.inf
    refused(
        r"3 values in 2 rows are NaN or infinite; the first is nan in row 1 \(the first row is 0\), "
        r"column 2 \('amount'\)",
        [[0], [1]],
        features,
        feature_names=["a", "b", "amount"],
    )


def test_masked_values_are_not_read_through_the_mask():
    hidden = np.ma.masked_equal([[1.0], [5.0]], 5.0)
    refused(r"features .*: 1 values are masked; fill them", [[0], [1]], hidden)
    refused("times .*: 1 values are masked", [[0], [1]], edge_time=np.ma.masked_equal([7], 7))
    graph = Graph.from_edges([[0], [1]], np.ma.masked_equal([[1.0], [5.0]], 9.0))
    assert graph.node().features.tolist() == [[1.0], [5.0]]


def test_features_too_large_for_their_dtype():
    refused(r"1 values in 1 rows do not fit into float32 .*1e\+300 in row 0", [[0], [1]], [[1e300], [0]])
    refused("do not fit into float16", [[0], [1]], [[1e6], [0]], feature_dtype="float16")


@pytest.mark.parametrize(
    ("features", "match"),
    [
        (np.zeros((2, 2, 2)), r"must be a matrix \[n, d\]; got shape \(2, 2, 2\)"),
        (np.array([["a"], ["b"]]), "must be real numbers; got dtype <U1"),
        (np.zeros((2, 1), complex), "must be real numbers; got dtype complex128"),
        ([[1, 2], [3]], "not a rectangular array"),
    ],
)
def test_features_of_wrong_shape_or_dtype(features, match):
    refused(match, [[0], [1]], features)


def test_feature_dtype_is_one_of_four():
    refused("float32, float16, bfloat16 or int8; not 'int4'", [[0], [1]], feature_dtype="int4")
    refused("do not fit into bfloat16", [[0], [1]], [[3.4e38], [0]], feature_dtype="bfloat16")


def test_feature_names_fit_the_columns():
    refused("1 names for 2 columns", [[0], [1]], np.ones((2, 2)), feature_names=["a"])
    refused("must be distinct; repeated: 'a'", [[0], [1]], np.ones((2, 2)), feature_names=["a", "a"])
    refused("must be strings", [[0], [1]], np.ones((2, 1)), feature_names=[1])


@pytest.mark.parametrize(
    ("edges", "match"),
    [
        (np.zeros((5, 2), int), r"shape \[2, E\].*got \[5, 2\]; transpose it"),
        (np.zeros(4, int), r"shape \[2, E\].*got \[4\]"),
        (np.zeros((2, 3)), "must be integers.*got dtype float64"),
        (([0, 1], [1]), "2 sources but 1 destinations"),
        ((np.zeros((2, 2), int), np.zeros((2, 2), int)), "must be a vector"),
    ],
)
def test_edges_of_wrong_shape_or_dtype(edges, match):
    refused(match, edges, num_nodes=5)


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite(weight):
    refused("1 values in 1 rows are NaN or infinite", [[0], [0]], edge_weight=[weight])


def test_columns_have_one_row_for_each_edge():
    refused("2 rows; there must be 1, one for each edge", [[0], [0]], edge_attr=[[1], [2]])
    refused("2 values; there must be 1", [[0], [0]], edge_weight=[1, 2])
    refused("2 values; there must be 1", [[0], [0]], edge_time=[1, 2])
    refused("must be a vector", [[0], [0]], edge_time=[[1, 2]])


@pytest.mark.parametrize(
    ("time", "match"),
    [
        ([0.5], "must be integers in one unit.* first is 0.5 at edge 0"),
        ([np.nan], "must be integers in one unit"),
        (["x"], "integers or datetimes; got dtype <U1"),
        (np.array(["NaT"], "datetime64[s]"), r"1 times are missing \(NaT\); the first is edge 0"),
        (np.array([2**63], np.uint64), "does not fit"),
    ],
)
def test_times_are_integers(time, match):
    refused(match, [[0], [0]], edge_time=time)


def test_empty_graph():
    refused("the graph is empty", np.empty((2, 0), int))
    with pytest.raises(GraphError, match="at least one node type"):
        Graph.from_tables({}, {})


def test_number_of_nodes():
    refused("must agree: 3 num_nodes, 2 rows of features", [[0], [1]], np.ones((2, 1)), num_nodes=3)
    refused("must agree: 2 rows of features, 3 ids", [[0], [1]], np.ones((2, 1)), ids=[1, 2, 3])
    refused("num_nodes of node type 'node' must be an integer; got 2.5", [[0], [1]], num_nodes=2.5)
    refused("-1 nodes", [[0], [0]], num_nodes=-1)
    refused("may have 0 to 2147483647$", [[0], [0]], num_nodes=2**31)
    refused("your own ids rather than row numbers, pass `ids`", [[0], [10**15]])


@pytest.mark.parametrize("name", ["", "a__b", ".hidden", "a\nb", "x" * 73, 3])
def test_type_names(name):
    with pytest.raises(GraphError, match="a node type's name"):
        Graph.from_tables({name: NodeTable(num_nodes=1)}, {})


def test_edge_types_name_node_types():
    nodes = {"a": NodeTable(num_nodes=1)}
    with pytest.raises(GraphError, match="its destination type 'b' is not a node type; known types: 'a'"):
        Graph.from_tables(nodes, {("a", "to", "b"): EdgeTable([[0], [0]])})
    with pytest.raises(GraphError, match="an edge type is a triple"):
        Graph.from_tables(nodes, {"a__to__a": EdgeTable([[0], [0]])})
    with pytest.raises(GraphError, match="joins two node types and cannot be undirected"):
        Graph.from_tables(
            nodes | {"b": NodeTable(num_nodes=1)},
            {("a", "to", "b"): EdgeTable([[0], [0]], undirected=True)},
        )


@pytest.mark.parametrize(
    "name", ["Bob's café", "cites (old)", "rev_rates", "用户购买商品关系记录表" * 6, "a/b:c"]
)
def test_type_names_as_people_have_them(tmp_path, name):
    edges = {(name, name, name): EdgeTable([[0], [1]], attr=[1.0])}
    graph = Graph.from_tables({name: NodeTable(np.ones((2, 1)))}, edges).save(tmp_path / "g")
    opened = Graph.open(tmp_path / "g", verify=True)
    assert opened.version == graph.version
    assert opened.edge((name, name, name)).num_edges == 1


def test_names_that_a_key_would_mix_up_are_refused():
    with pytest.raises(GraphError, match=r"'user__id' cannot be used.*; 'user_id' can"):
        Graph.from_tables({"user__id": NodeTable(num_nodes=1)}, {})
    nodes = {"a": NodeTable(num_nodes=1), "b": NodeTable(num_nodes=1)}
    with pytest.raises(GraphError, match=r"must not end with '_'.*'to' can be used"):
        Graph.from_tables(nodes, {("a", "to_", "b"): EdgeTable([[0], [0]])})


def test_ids_taken_for_row_numbers_are_refused():
    refused("name rows up to 193609, but there are only 4 edge ends.*pass `ids`", [[1, 2], [3, 193_609]])
    assert Graph.from_edges([[1, 2], [3, 193_609]], num_nodes=193_610).num_nodes == 193_610
    assert Graph.from_edges([[1, 2], [3, 999]]).num_nodes == 1000


def test_a_data_frame_where_a_table_is_due():
    import pandas as pd

    frame = pd.DataFrame({"src": [0, 1], "dst": [1, 0], "name": ["a", "b"]})
    refused(r"given as a DataFrame; pass a pair of its columns", frame)
    refused(r"dtype object \(columns without numbers: name\)", [[0], [1]], frame)
    with pytest.raises(GraphError, match=r"expected a NodeTable; got DataFrame.*with NodeFile"):
        Graph.from_tables({"node": frame}, {})
    with pytest.raises(GraphError, match=r"given by type, .*got DataFrame"):
        Graph.from_tables(frame, {})
    graph = Graph.from_edges((frame["src"], frame["dst"]), frame[["src"]])
    assert graph.edge().neighbors(0).tolist() == [1]


def test_floats_that_no_longer_hold_the_time():
    refused("float32 may have rounded them", [[0], [0]], edge_time=np.array([1.6e9], np.float32))
    refused("float64 may have rounded them", [[0], [0]], edge_time=[1.7e18])


def test_edges_that_may_be_row_numbers_get_that_advice():
    for ids in ([10, 20], ["x", "y"]):
        with pytest.raises(GraphError, match="if the edges are row numbers, pass by_row=True"):
            Graph.from_edges([[0], [1]], ids=ids)
        with pytest.raises(GraphError) as caught:
            Graph.from_edges([[7], [7]], ids=ids)
        assert "row numbers" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_tensors_that_numpy_lacks_are_named(dtype):
    x = torch.ones(2, 1).to(dtype)
    with pytest.raises(GraphError, match=f"tensors of {dtype} cannot be read; convert them to float32"):
        Graph.from_edges([[0], [1]], x)
