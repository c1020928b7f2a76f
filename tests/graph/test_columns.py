"""Numbers that float32 does not hold are refused, by column; those that it holds well enough are not."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import GraphError
from hopline.float32 import changed
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.columns import matrix

ROWS = 300
NEXT = 2**24 + 1  # the first integer that float32 does not hold
CODES = np.random.default_rng(0).integers(2**24, 2**31, ROWS) | 1
SECONDS = 1.7e9 + np.arange(ROWS)


def refused(match, **columns):
    with pytest.raises(GraphError, match=match):
        Graph.from_edges([[0] * ROWS, [0] * ROWS], num_nodes=columns.pop("num_nodes", None), **columns)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint32, np.float64])
def test_codes_are_refused_by_column(dtype):
    table = np.stack([np.arange(ROWS), CODES], axis=1).astype(dtype)
    refused(
        rf"300 {np.dtype(dtype)} values of column 'merchant' are integers that float32 "
        rf"cannot hold.*the first is {CODES[0]}.* in row 0.*--round",
        features=table,
        feature_names=["age", "merchant"],
    )


def test_one_value_in_a_late_chunk_is_found(monkeypatch):
    monkeypatch.setattr("hopline.graph.columns._CHUNK_BYTES", 64)
    column = np.arange(ROWS)
    column[250] = NEXT
    refused("1 int64 values of column 0 .* 16777217 in row 250", features=column)
    refused("1 float64 values of column 0 .* 16777217.0 in row 250", features=column.astype(float))


@pytest.mark.parametrize("fraction", [0.0, 0.25])
def test_seconds_since_1970_are_refused(fraction):
    refused(r"300 float64 values of column 0|\d+ float64 values", features=SECONDS + fraction)


def test_edge_attributes_and_weights_are_held_to_the_same():
    refused(r"column 'mcc'", edge_attr=np.stack([CODES * 0, CODES], 1), attr_names=["a", "mcc"])
    refused("weights of .* int64 values of column 0", edge_weight=CODES)


def test_pyg_data_is_held_to_the_same():
    from torch_geometric.data import Data

    for x in (torch.tensor(CODES).view(-1, 1), torch.tensor(CODES), torch.tensor(SECONDS)):
        with pytest.raises(GraphError, match=r"features of node type 'node': \d+ .*64 values of column 0"):
            Graph.from_pyg(Data(x=x, edge_index=torch.zeros(2, 1, dtype=torch.long)))


def test_a_vector_of_node_numbers_is_one_column():
    from torch_geometric.data import Data

    graph = Graph.from_pyg(Data(x=torch.arange(50), edge_index=torch.zeros(2, 1, dtype=torch.long)))
    assert graph.node().features.reshape(-1).tolist() == list(range(50))


@pytest.mark.parametrize(
    "column",
    [
        np.full(ROWS, 0.1),
        np.random.default_rng(0).standard_normal(ROWS),
        np.random.default_rng(0).standard_normal(ROWS) * 1e30,
        np.random.default_rng(0).random(ROWS) * 1e9,
        280 + 20 * np.random.default_rng(0).random(ROWS),
        52.3 + 0.3 * np.random.default_rng(0).random(ROWS),
        np.arange(ROWS) * 2**40,
        np.full(ROWS, 1e-300),
        np.arange(ROWS) % 2 == 0,
        np.arange(ROWS, dtype=np.float16),
        [2**24, -(2**24)],
    ],
    ids=[
        "0.1",
        "normal",
        "large",
        "amounts",
        "kelvin",
        "latitudes",
        "powers",
        "tiny",
        "bool",
        "half",
        "2^24",
    ],
)
def test_ordinary_numbers_are_not(column):
    assert np.allclose(matrix(column, "x")[0][:, 0], np.asarray(column, np.float64), rtol=1e-6)


def test_what_is_rounded_by_the_caller_is_taken():
    graph = Graph.from_edges([[0], [0]], CODES.astype(np.float32))
    assert graph.node().features[:, 0].tolist() == CODES.astype(np.float32).tolist()


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4).map(np.array)
    | st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4).map(lambda v: np.array(v, np.uint64))
)
def test_an_integer_is_stored_as_it_is_or_refused(array):
    values = array.tolist()
    if all(int(np.float32(value)) == value for value in values):
        assert [int(value) for value in matrix(array, "x")[0][:, 0]] == values
    else:
        with pytest.raises(GraphError, match="integers that float32 cannot hold"):
            matrix(array, "x")


def test_types_beside_are_no_excuse():
    tables = {"a": NodeTable(np.zeros((2, 1))), "b": NodeTable(CODES)}
    with pytest.raises(GraphError, match="features of node type 'b'"):
        Graph.from_tables(tables, {("a", "to", "b"): EdgeTable([[0], [0]])})


def kept_as(values, rounded=()):
    """The positions of numbers that later events and requests may not bring."""
    array = np.array([values]) if not isinstance(values, np.ndarray) else values.reshape(1, -1)
    with np.errstate(over="ignore"):
        lost = changed(array, array.astype(np.float32), rounded)
    return [] if lost is None else np.flatnonzero(lost[0]).tolist()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.float64])
def test_later_integers_that_float32_changes_are_found(dtype):
    values = np.array([2**24, NEXT, 2**24 + 2, 3, 2**31 - 1]).astype(dtype)
    assert kept_as(values) == [1, 4]
    assert kept_as(values, (1,)) == [4]
    assert kept_as(values, (1, 4)) == []


def test_later_numbers_that_are_no_integers_are_rounded_as_always():
    assert kept_as([0.1, 1e-300, 2**24 + 0.5, 1.7e9 + 0.25, 1e30, -1e25]) == []
    assert kept_as([np.nan, np.inf, 1e39]) == []  # refused elsewhere, as not finite
    assert kept_as(np.array([NEXT], np.float32)) == []  # the caller has rounded it


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4))
def test_a_later_integer_of_64_bits_is_exact_or_found(values):
    inexact = [at for at, value in enumerate(values) if int(np.float32(value)) != value]
    assert kept_as(np.array(values, np.int64)) == inexact


def of_columns(features, **more):
    return Graph.from_tables(
        {"node": NodeTable(features, **more)}, {("node", "to", "node"): EdgeTable([[0], [0]])}
    ).schema.node_types["node"]


def test_columns_of_codes_stay_exact_and_columns_of_large_fractions_may_be_rounded():
    amounts = np.array([0.25, 1e9, 3e7])
    codes = np.array([1, 2**24, 2**24 + 2])
    normal = np.array([0.5, -1, 3])
    for dtype in (np.float32, np.float64):
        assert of_columns(np.stack([codes, amounts, normal, -amounts], 1).astype(dtype)).rounded == (1, 3)
    assert of_columns(codes).rounded == ()
    assert of_columns(CODES.astype(np.float32)).rounded == ()
    assert of_columns(amounts.astype(np.float32) * np.float32(1e20)).rounded == (0,)
    assert of_columns(normal.astype(np.float16)).rounded == ()


def test_columns_may_be_listed():
    table = np.stack([CODES, CODES, CODES * 0], axis=1)
    names = ["a", "b", "c"]
    refused("column 'b'", features=table[:, 1:2], feature_names=["b"])
    assert of_columns(table, feature_names=names, rounded=["b", "a"]).rounded == (0, 1)
    assert of_columns(table, rounded=[1, 0, 2]).rounded == (0, 1, 2)
    with pytest.raises(
        GraphError, match=r"no column 'd' that could be rounded; the columns are 'a', 'b', 'c'"
    ):
        of_columns(table, feature_names=names, rounded=["d"])
    with pytest.raises(GraphError, match=r"no column 3 .*; the columns are 0 to 2, without names"):
        of_columns(table, rounded=[3])
    edges = EdgeTable([[0], [0]], attr=[[NEXT]], weight=[NEXT], attr_names=["mcc"], rounded=["mcc"])
    tables = {"node": NodeTable(num_nodes=1)}
    with pytest.raises(GraphError, match=r"weights of .*16777217"):
        Graph.from_tables(tables, {("node", "to", "node"): edges})
    edges = dataclasses.replace(edges, rounded_weight=True)
    schema = Graph.from_tables(tables, {("node", "to", "node"): edges}).schema.edge_types["node__to__node"]
    assert (schema.rounded, schema.rounded_weight) == ((0,), True)


def test_listed_columns_are_stored_and_count_for_the_version(tmp_path):
    plain = Graph.from_edges([[0], [0]], np.ones((1, 2), np.float32))
    listed = Graph.from_tables(
        {"node": NodeTable(np.ones((1, 2), np.float32), rounded=[1])},
        {("node", "to", "node"): EdgeTable([[0], [0]])},
    )
    assert listed.version != plain.version
    saved = listed.save(tmp_path / "graph")
    assert Graph.open(saved.path).schema.node_types["node"].rounded == (1,)
    assert b'"format": 6' in (tmp_path / "graph" / "graph.json").read_bytes()
    plain.save(tmp_path / "plain")
    assert b'"format": 1' in (tmp_path / "plain" / "graph.json").read_bytes()
    assert saved.subgraph([0]).schema.node_types["node"].rounded == (1,)
    assert saved.with_features_as("bfloat16").subgraph([0]).schema.node_types["node"].rounded == (1,)
