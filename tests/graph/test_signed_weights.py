"""Weights may be negative: they are kept as they are, and a graph says that it has them."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hopline.errors import GraphError
from hopline.graph import EdgeFile, EdgeTable, EdgeTypeSchema, Graph, GraphSchema, NodeTable, NodeTypeSchema
from hopline.graph.codec import PackedWeights
from hopline.graph.live.changes import Changes, EdgeChanges
from tests.graph.live.test_writer import live
from tests.graph.unpacked import decompressed
from tests.graphs import drawn
from tests.thorough import thorough

EDGE = "node__to__node"


def ratings(seed=0, *, whole=True, num_nodes=50, num_edges=600):
    rng = np.random.default_rng(seed)
    weight = rng.integers(-10, 11, num_edges) if whole else rng.standard_normal(num_edges)
    return Graph.from_edges(
        rng.integers(0, num_nodes, (2, num_edges)),
        np.zeros((num_nodes, 1), np.float32),
        edge_weight=weight.astype(np.float32),
    )


def sums_of_lists(edges):
    """The running sums of each list, one list after the other."""
    weight, indptr = np.asarray(edges.weight, np.float64), np.asarray(edges.indptr)
    lists = [np.cumsum(weight[a:b]) for a, b in pairwise(indptr)]
    return np.concatenate(lists)


def test_a_saved_graph_has_the_same_weights_and_says_that_they_are_signed(tmp_path):
    graph = drawn("a>c@1*-10 b>c@2*3 c>a@3*0")
    opened = graph.save(tmp_path / "g")
    assert Graph.open(tmp_path / "g", verify=True).version == graph.version
    for each in (graph, opened):
        assert each.edge().weight.tolist() == [0.0, -10.0, 3.0]
        assert each.edge().cumweight.tolist() == [0.0, -10.0, -7.0]
        assert each.edge().signed_weight
        assert each.schema.edge_types[EDGE].signed_weight
    assert json.loads((tmp_path / "g" / "graph.json").read_text())["format"] == 5


def test_a_graph_without_negative_weights_is_what_it_was_before(tmp_path):
    drawn("a>b@1*2 b>a@2*0").save(tmp_path / "g")
    assert json.loads((tmp_path / "g" / "graph.json").read_text())["format"] == 1
    edge = EdgeTypeSchema("node", "to", "node", has_weight=True)
    schema = GraphSchema({"node": NodeTypeSchema(1)}, {edge.key: edge})
    assert b"signed_weight" not in schema.canonical()
    assert not Graph.open(tmp_path / "g").edge().signed_weight


def test_minus_zero_is_not_negative():
    assert not Graph.from_edges([[0], [1]], num_nodes=2, edge_weight=[-0.0]).edge().signed_weight


def test_a_graph_may_be_said_to_have_signed_weights_before_it_has_one(tmp_path):
    table = EdgeTable([[0], [1]], weight=[1.0], signed_weight=True)
    plain = EdgeTable([[0], [1]], signed_weight=True)
    graph = Graph.from_tables(
        {"node": NodeTable(num_nodes=2)}, {("node", "to", "node"): table, ("node", "plain", "node"): plain}
    )
    assert graph.save(tmp_path / "g").edges[EDGE].signed_weight
    assert not graph.edges["node__plain__node"].signed_weight
    (tmp_path / "e.csv").write_text("src,dst,w\n0,1,1\n")
    file = EdgeFile(tmp_path / "e.csv", weight="w", signed_weight=True)
    read = Graph.from_parquet(None, file, ids_are_rows=True)
    assert read.edge().signed_weight
    assert Graph.from_edges([[0], [1]], edge_weight=[1], signed_weight=True).version == read.version


def test_a_subgraph_stays_signed_though_none_of_its_weights_is_negative():
    part = drawn("a>b@1*-1 b>a@2*1 c>a@3*2").subgraph([0, 2])
    assert part.edge().weight.tolist() == [2.0]
    assert part.edge().signed_weight


def test_schema_names_edge_types_that_cannot_be_sampled_by_weight():
    schema = ratings().schema
    (named,) = schema.signed([EDGE, "other"])
    assert "weights of edge type 'node__to__node' may be negative" in named
    assert schema.signed(["other"]) == drawn("a>b@1*1").schema.signed([EDGE]) == []


@settings(max_examples=thorough(25, 100), deadline=None)
@given(
    largest=st.sampled_from([1e-45, 1e-38, 1e-6, 1.0, 127.0, 3.0e7, 1e38]),
    count=st.integers(0, 600),
    seed=st.integers(0, 99),
)
def test_packed_weights_are_off_by_half_a_step_and_keep_their_sign(largest, count, seed):
    rng = np.random.default_rng(seed)
    weight = (rng.uniform(-1, 1, count) ** 5 * largest).astype(np.float32)
    weight[rng.random(count) < 0.1] = 0
    packed = PackedWeights.pack(weight, signed=True)
    scale = packed.scale[0]
    read = np.asarray(packed).astype(np.float64)
    np.testing.assert_array_equal(read, (packed.codes.astype(int) - 128) * scale)  # exact in float32
    np.testing.assert_array_equal(np.sign(read), np.sign(weight))
    error = abs(read - weight)
    assert (error[abs(read) > scale] <= scale / 2).all()
    assert (error <= scale).all()


@pytest.mark.parametrize(("weight", "signed"), [(np.arange(-127, 128), True), (np.arange(256), False)])
def test_integers_that_fit_into_8_bits_are_packed_without_loss(weight, signed):
    packed = PackedWeights.pack(weight.astype(np.float32), signed)
    assert np.asarray(packed).tolist() == weight.tolist()


def test_too_large_negative_weights_are_not_packed():
    with pytest.raises(GraphError, match="the limit is 1e\\+38"):
        PackedWeights.pack(np.array([-3e38], np.float32), signed=True)


@pytest.mark.parametrize("whole", [True, False])
def test_a_compressed_graph_is_the_same_after_saving_and_in_plain_arrays(tmp_path, whole):
    graph = ratings(whole=whole)
    saved = graph.compressed().save(tmp_path / "g")
    assert saved.edge().signed_weight
    plain = decompressed(saved).edge()
    assert plain.signed_weight
    np.testing.assert_array_equal(np.asarray(saved.edge().weight), plain.weight)
    np.testing.assert_array_equal(np.asarray(saved.edge().cumweight), sums_of_lists(plain))
    error = abs(plain.weight - graph.edge().weight).max()
    assert error == 0 if whole else 0 < error <= abs(graph.edge().weight).max() / 127


def added(weight):
    ends = np.array([0]), np.array([1])
    return Changes({EDGE: EdgeChanges(*ends, np.array([False]), np.array([0]), None, None, weight)}, {}, 1)


def test_a_live_graph_takes_negative_weights_as_a_fresh_build_does():
    graph = ratings()
    writer, view = live(graph)
    assert not writer.apply(added(np.array([-7.5], np.float32))).rejected
    found = view.snapshot()
    assert found.edge().signed_weight
    np.testing.assert_array_equal(found.edge().cumweight, sums_of_lists(found.edge()))
    into_1 = slice(*found.edge().indptr[1:3])
    assert (
        found.edge().weight[into_1].sum()
        == graph.edge().weight[slice(*graph.edge().indptr[1:3])].sum() - 7.5
    )


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf])
def test_a_live_graph_with_signed_weights_refuses_those_that_are_not_finite(weight):
    writer, _ = live(ratings())
    (rejected,) = writer.apply(added(np.array([weight], np.float32))).rejected
    assert rejected.code == "not_finite"


def test_a_live_graph_takes_the_first_negative_weight_where_it_was_said_that_there_may_be_some():
    for signed in (False, True):
        writer, view = live(Graph.from_edges([[0], [1]], edge_weight=[1.0], signed_weight=signed))
        rejected = writer.apply(added(np.array([-1], np.float32))).rejected
        assert [one.code for one in rejected] == ([] if signed else ["negative_weight"])
        assert view.snapshot().edge().signed_weight == signed
