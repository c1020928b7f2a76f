"""Features in fewer bits: what they become, that they are stored, and what is refused."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hopline.errors import GraphError
from hopline.graph import Graph
from hopline.graph.narrow import BFLOAT16_MAX, NarrowMatrix, encode
from hopline.graph.residency import in_huge_pages, prefault
from tests.thorough import thorough

NARROW = ["bfloat16", "int8"]


def graph_of(features, dtype):
    return Graph.from_edges([[0], [1]], features, feature_dtype=dtype)


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=40),
        elements=st.floats(-(2.0**100), 2.0**100, width=32),
    )
)
@settings(deadline=None, max_examples=thorough(15, 60))
def test_bfloat16_rounds_as_torch_does(values):
    expected = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    assert (np.asarray(encode(values, "bfloat16")) == expected).all()


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=40),
        elements=st.floats(-1e6, 1e6, width=32),
    )
)
@settings(deadline=None, max_examples=thorough(15, 60))
def test_int8_is_no_worse_than_the_whole_range_in_255_steps(values):
    found = np.asarray(encode(values, "int8"))
    spread = values.max(axis=0).astype(np.float64) - values.min(axis=0)
    error = np.sqrt(np.square(found.astype(np.float64) - values).mean(axis=0))
    # half a step, and a little for the code of zero and for float32's own rounding
    assert (error <= 1.01 * spread / 255 + 1e-6 * np.abs(values).max(axis=0) + 1e-30).all()


def test_zeros_flags_counts_and_constants_stay_what_they_are():
    rng = np.random.default_rng(0)
    values = np.stack(
        [
            rng.integers(0, 2, 500),
            rng.integers(0, 200, 500),
            1900 + rng.integers(0, 120, 500),
            np.full(500, -3.25),
            np.zeros(500),
            np.where(rng.random(500) < 0.7, 0.0, rng.exponential(3.0, 500)),
        ],
        axis=1,
    ).astype(np.float32)
    found = np.asarray(encode(values, "int8"))
    assert (found[:, :5] == values[:, :5]).all()
    assert (found[values == 0] == 0).all()


def test_one_extreme_value_does_not_take_the_precision_of_a_column():
    values = np.random.default_rng(0).standard_normal((20_000, 1)).astype(np.float32)
    values[77] = 300
    found = np.asarray(encode(values, "int8"))
    usual = np.delete(np.arange(20_000), 77)
    assert np.abs(found - values)[usual].mean() < 0.3


@pytest.mark.parametrize("dtype", NARROW)
def test_a_narrow_matrix_reads_like_an_array(dtype):
    values = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    narrow = encode(values, dtype)
    whole = np.asarray(narrow)
    assert (len(narrow), narrow.shape, narrow.ndim, narrow.dtype) == (30, (30, 4), 2, np.float32)
    rows = np.array([5, 5, 29])
    for key in (rows, slice(3, 9), 7, np.arange(30) % 2 == 0, slice(None, None, 7)):
        assert (narrow[key] == whole[key]).all()
    assert (np.asarray(narrow.taken(rows)) == whole[rows]).all()
    assert np.asarray(narrow, np.float64).dtype == np.float64
    assert np.ascontiguousarray(narrow, np.float32).flags.c_contiguous


@pytest.mark.parametrize("dtype", NARROW)
def test_a_saved_graph_has_the_same_codes_and_version(dtype, tmp_path):
    values = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    graph = graph_of(values, dtype)
    opened = Graph.open(graph.save(tmp_path / "g").path, verify=True)
    assert opened.version == graph.version != graph_of(values, "float32").version
    assert opened.schema == graph.schema
    assert opened.num_bytes == graph.num_bytes
    assert isinstance(opened.node().features, NarrowMatrix)
    assert (np.asarray(opened.node().features) == np.asarray(graph.node().features)).all()
    assert (tmp_path / "g" / "nodes" / "node" / "features.npy").stat().st_size < 40 * 8 * 4
    prefault(opened)
    assert (np.asarray(in_huge_pages(opened).node().features) == np.asarray(graph.node().features)).all()


def test_int8_scales_are_content(tmp_path):
    values = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32)
    assert graph_of(values, "int8").version != graph_of(2 * values, "int8").version


def test_who_knows_no_narrow_features_refuses_the_graph(tmp_path):
    def written(dtype):
        graph_of(np.ones((2, 1)), dtype).save(tmp_path / dtype)
        return json.loads((tmp_path / dtype / "graph.json").read_text())["format"]

    assert {dtype: written(dtype) for dtype in ("float32", "float16", "bfloat16", "int8")} == {
        "float32": 1, "float16": 1, "bfloat16": 2, "int8": 2,
    }  # fmt: skip


def test_scales_of_other_columns_are_refused(tmp_path):
    graph = graph_of(np.ones((2, 3), np.float32), "int8")
    features = graph.node().features
    short = NarrowMatrix(features.codes, features.scale[:1], features.offset)
    nodes = {"node": type(graph.node())(short, graph.node().ids)}
    with pytest.raises(
        GraphError, match=r"the scale of int8 features is float32 \[1\]; expected float32 \[3\]"
    ):
        Graph(graph.schema, nodes, graph.edges).save(tmp_path / "g")


def test_codes_of_another_dtype_are_refused(tmp_path):
    graph = graph_of(np.ones((2, 3), np.float32), "int8")
    other = graph_of(np.ones((2, 3), np.float32), "bfloat16")
    with pytest.raises(GraphError, match=r"features are uint16 .*; int8 needs int8"):
        Graph(graph.schema, other.nodes, graph.edges).save(tmp_path / "g")


@pytest.mark.parametrize("dtype", ["float16", *NARROW])
def test_a_subgraph_keeps_the_codes(dtype):
    values = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    graph = graph_of(values, dtype)
    part = graph.subgraph(np.array([0, 1, 9]))
    assert part.schema.node_types["node"].feature_dtype == dtype
    assert (np.asarray(part.node().features) == np.asarray(graph.node().features)[[0, 1, 9]]).all()


def test_features_of_a_graph_can_be_stored_otherwise():
    values = np.random.default_rng(0).standard_normal((40, 8)).astype(np.float32)
    for dtype in ("float32", "float16", *NARROW):
        found = graph_of(values, "float32").with_features_as(dtype)
        assert found.version == graph_of(values, dtype).version
    back = graph_of(values, "int8").with_features_as("float32")
    assert (back.node().features == np.asarray(graph_of(values, "int8").node().features)).all()


def test_numbers_beyond_bfloat16_are_refused():
    largest = np.full((2, 1), BFLOAT16_MAX, np.float32)
    assert (np.asarray(graph_of(largest, "bfloat16").node().features) == largest).all()
    with pytest.raises(GraphError, match="do not fit into bfloat16"):
        graph_of(np.full((2, 1), 3.4e38, np.float32), "bfloat16")


@pytest.mark.parametrize(("dtype", "largest"), [("int8", 999), ("float16", 4999), ("bfloat16", 999)])
def test_a_column_of_integers_that_the_dtype_changes_is_refused_unless_it_is_listed(dtype, largest):
    """Integers may be codes, and a model looks others up then."""
    values = np.random.default_rng(0).standard_normal((40, 3)).astype(np.float32)
    values[:, 1] = np.linspace(0, largest, 40).round()
    graph = graph_of(values, "float32")
    with pytest.raises(GraphError, match="changes the integers of 1, which may be codes"):
        graph_of(values, dtype)
    with pytest.raises(GraphError, match="changes the integers of 1, which may be codes"):
        graph.with_features_as(dtype)
    found = graph.with_features_as(dtype, rounded={"node": [1]})
    assert (np.asarray(found.node().features)[:, 1] != values[:, 1]).any()
