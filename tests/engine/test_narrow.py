"""Narrow features are decoded where they are read: the bits of a float32 graph of the decoded features."""

import dataclasses

import msgspec
import numpy as np
import pytest
import torch
from torch_geometric.utils import scatter

from hopline.artifact import read_spec
from hopline.engine import kernels
from hopline.engine.model import Model, StateCachePlan
from hopline.engine.narrow_kernels import Narrow, matrix_of
from hopline.graph import Graph
from hopline.graph.live.changes import Changes, NodeChanges
from hopline.memory.arena import Arena
from hopline.packaging import package
from hopline.types import InlineNode, ScoreRequest
from tests.engine import zoo
from tests.engine.test_answers import ALL, answer, count_of, request
from tests.engine.test_live import Live

NARROW = ["float16", "bfloat16", "int8"]
NO_FLOATS = np.empty(0, np.float32)


def stored_as(values, dtype):
    return Graph.from_edges([[0], [0]], values, feature_dtype=dtype).node().features


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("dim", [1, 7, 64, 130])
def test_each_reduction_equals_pyg_on_decoded_rows_and_the_kernel_bit_for_bit(dtype, dim):
    rng = np.random.default_rng(dim)
    features = stored_as(rng.standard_normal((300, dim)).astype(np.float32) * 9, dtype)
    narrow, wide = matrix_of(features), np.array(features, np.float32)
    assert isinstance(narrow, Narrow)
    counts = rng.integers(0, 9, 50)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    rows, own = rng.integers(0, 300, offsets[-1]), rng.integers(0, 300, 50)
    weight = rng.random(offsets[-1]).astype(np.float32)
    column, w = dim // 3, dim - dim // 3
    index = torch.from_numpy(np.repeat(np.arange(50), counts))
    messages = torch.from_numpy(wide[rows][:, column:])

    def run(base, call):
        out = np.full((50, w + 2), 5, np.float32)
        call(base, out)
        assert (out[:, [0, -1]] == 5).all()
        return out[:, 1:-1]

    def scattered(values, reduce):
        return scatter(values, index, dim_size=50, reduce=reduce).numpy()

    calls = {
        "gather": (
            lambda base, out: kernels.gather(base, own, column, w, out, 1),
            wide[own][:, column:],
        ),
        "sum": (
            lambda base, out: kernels.reduce_sum(base, rows, offsets, NO_FLOATS, False, column, w, out, 1),
            scattered(messages, "sum"),
        ),
        "mean": (
            lambda base, out: kernels.reduce_sum(base, rows, offsets, NO_FLOATS, True, column, w, out, 1),
            scattered(messages, "mean"),
        ),
        "weighted": (
            lambda base, out: kernels.reduce_sum(base, rows, offsets, weight, False, column, w, out, 1),
            scattered(messages * torch.from_numpy(weight)[:, None], "sum"),
        ),
        "max": (
            lambda base, out: kernels.reduce_max(base, rows, offsets, column, w, out, 1),
            scattered(messages, "max"),
        ),
    }
    for name, (call, expected) in calls.items():
        found = run(narrow, call)
        assert (found == run(wide, call)).all(), name
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5, err_msg=name)
    side, other = (np.zeros((50, 2 * w), np.float32) for _ in range(2))
    for base, out in ((narrow, side), (wide, other)):
        kernels.gather_reduce(base, own, column, w, out, 0, base, rows, offsets, True, column, w, out, w)
        kernels.add_scaled(base, own, weight[:50], column, w, out, w)
    assert (side == other).all()


@pytest.fixture(scope="module", params=NARROW)
def pairs(request, cases):
    """Cases on narrow graphs, and on float32 graphs of the decoded features."""
    found = {}
    for name, case in cases.items():
        narrow = case.graph.with_features_as(request.param)
        found[name] = tuple(
            dataclasses.replace(case, graph=graph) for graph in (narrow, narrow.with_features_as("float32"))
        )
    return found


@pytest.mark.sample(9)
@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_answers_are_those_of_the_decoded_features_bit_for_bit(pairs, name, caches):
    narrow, wide = pairs[name]
    rows = np.random.default_rng(0).permutation(count_of(wide))
    (expected,) = answer(wide.answerer(False), request(wide, rows))
    answerer = narrow.answerer(caches)
    for _ in range(2):  # the second time from state caches, where there are any
        (found,) = answer(answerer, request(narrow, rows))
        assert (found == expected).all()
    alone = [answer(answerer, request(narrow, [v]))[0] for v in rows[:20]]
    assert (np.concatenate(alone) == expected[:20]).all()


def test_inline_nodes_read_narrow_neighbours(pairs):
    narrow, wide = pairs["plain"]
    node = InlineNode(np.ones(6, np.float32), {"": [f"n{v}" for v in (3, 5, 3, 90)]})
    told = ScoreRequest("plain", inline=(node,), outputs=("logits",))
    assert (answer(narrow.answerer(False), told)[0] == answer(wide.answerer(False), told)[0]).all()


def test_a_live_graph_on_narrow_features_answers_like_them_and_like_a_fresh_build(pairs):
    narrow, _ = pairs["plain"]
    live = Live(narrow, 0)
    everyone = np.arange(zoo.N)
    with live.view:
        found = live.model().final_states({"node": everyone})["node"].copy()
    assert (found == narrow.model(False).final_states({"node": everyone})["node"]).all()
    live.change(40)
    with live.view:
        found = live.model().final_states({"node": everyone})["node"].copy()
    assert (found == live.fresh().final_states({"node": everyone})["node"]).all()


def test_a_live_graph_rounds_rows_like_a_build_and_refuses_what_does_not_fit(pairs):
    narrow, _ = pairs["plain"]
    dtype = narrow.graph.schema.node_types["node"].feature_dtype
    live = Live(narrow, 0)
    rows = np.array([[0.1, -2.3, 7.77, 1e-3, 5, 0], [3.4e38, 0, 0, 0, 0, 0]], np.float32)
    changes = NodeChanges(["n3", "n4"], np.array([False, False]), rows, np.arange(2))
    applied = live.writer.apply(Changes({}, {"node": changes}, 2))
    assert [one.code for one in applied.rejected] == ([] if dtype == "int8" else ["not_finite"])
    # the scales of int8 are of other numbers: there, a row stays what it was given as
    built = np.array(stored_as(rows[:1], "float32" if dtype == "int8" else dtype), np.float32)
    with live.view:
        assert (live.view.nodes["node"].features[np.array([3])] == built).all()


def test_no_float32_copy_of_the_features_is_made(pairs):
    narrow, _ = pairs["plain"]
    features = narrow.graph.node().features
    base = narrow.model(False).features["node"]
    assert np.shares_memory(base.codes, features if isinstance(features, np.ndarray) else features.codes)


@pytest.mark.parametrize("dtype", NARROW)
def test_the_short_way_of_small_batches_equals_the_general_way(dtype, tmp_path):
    rng = np.random.default_rng(3)
    num = 2000
    edges = (num * rng.random((2, 20_000)) ** 2).astype(np.int64)
    graph = Graph.from_edges(edges, rng.standard_normal((num, 6)).astype(np.float32), feature_dtype=dtype)
    torch.manual_seed(1)
    report = package(
        zoo.Plain().eval(),
        graph,
        tmp_path,
        name="plain",
        fanouts=[4, 3, 5],
        task="multiclass",
        check_nodes=50,
    )
    spec = msgspec.structs.replace(read_spec(report.path))
    plan = StateCachePlan(spec, graph, 2**22)
    chain, other, wide = (
        Model(report.path, spec, graph, plan.build(Arena(plan.num_bytes))),
        Model(report.path, spec, graph),
        Model(report.path, spec, graph.with_features_as("float32")),
    )
    assert chain._fused_plan is not None
    other._fused_plan = None
    for size in (1, 5, 200, 1, 5, 200):
        ids = rng.permutation(400)[:size]
        expected = other.final_states({"node": ids})["node"].copy()
        assert (chain.final_states({"node": ids})["node"] == expected).all()
        assert (wide.final_states({"node": ids})["node"] == expected).all()
