"""Numbers that float32 does not hold are refused, by column; those that it holds well enough are not."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hopline.errors import GraphError
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
    assert np.allclose(matrix(column, "x")[:, 0], np.asarray(column, np.float64), rtol=1e-6)


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
        assert [int(value) for value in matrix(array, "x")[:, 0]] == values
    else:
        with pytest.raises(GraphError, match="integers that float32 cannot hold"):
            matrix(array, "x")


def test_types_beside_are_no_excuse():
    tables = {"a": NodeTable(np.zeros((2, 1))), "b": NodeTable(CODES)}
    with pytest.raises(GraphError, match="features of node type 'b'"):
        Graph.from_tables(tables, {("a", "to", "b"): EdgeTable([[0], [0]])})
