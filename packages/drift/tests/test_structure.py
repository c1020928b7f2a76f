"""What is read around the nodes of requests, against the graph itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hopline.artifact import Head
from hopline.errors import NodeNotFound
from hopline.graph import Graph
from hopline.types import InlineNode, ScoreRequest
from hopline_drift.observed import Observed, Quantity
from hopline_drift.structure import MAX_NEIGHBORS, Structure
from tests.graphs import drawn, hetero_graph, power_law_graph

EDGE = "node__to__node"


def stub(graph: Graph, keys: list[str], node_type: str = "node", **head: Any) -> Any:
    """What `Structure` reads of a model."""
    spec = SimpleNamespace(head=Head(node_type, 1, **head), fanouts=dict.fromkeys(keys, (5,)))
    return SimpleNamespace(graph=graph, spec=spec, sources={}, encoders={})


def read(
    model: Any, requests: list[ScoreRequest], outcomes: list[Any] | None = None, **plan: Any
) -> Observed:
    observed = Observed()
    structure = Structure(
        model,
        plan.get("max_columns", 32),
        plan.get("columns", ()),
        np.random.default_rng(0),
        rest=lambda: None,
    )
    structure.read(requests, outcomes or [None] * len(requests), observed)
    return observed


def test_features_degrees_and_means_are_those_of_the_graph():
    graph = power_law_graph(300, 900, 4, seed=3, ids="string")
    asked = np.random.default_rng(1).integers(0, 300, 200)
    requests = [ScoreRequest("m", nodes=[f"n{row}" for row in part]) for part in np.split(asked, 20)]
    observed = read(stub(graph, [EDGE]), requests)
    features, edges = graph.nodes["node"].features, graph.edges[EDGE]
    assert observed.values(Quantity("graph", "presence")) == ["known"] * 200
    assert (observed.values(Quantity("graph", "degree")) == edges.degree(asked)).all()
    for column in range(4):
        found = observed.values(Quantity("input", f"f{column}"))
        assert (found == features[asked, column]).all()
        means = observed.values(Quantity("neighbor", f"f{column}"))
        for row, mean in zip(asked, means, strict=True):
            neighbors = edges.neighbors(row)
            if len(neighbors) == 0:
                assert np.isnan(mean)
            elif len(neighbors) <= MAX_NEIGHBORS:
                assert mean == pytest.approx(features[neighbors, column].mean(), abs=1e-6)
            else:
                assert features[neighbors, column].min() <= mean <= features[neighbors, column].max()


def test_a_hub_s_neighbours_are_drawn_from_all_of_them():
    graph = power_law_graph(2000, 20_000, 1, seed=3)
    edges = graph.edges[EDGE]
    hub = int(np.argmax(np.diff(edges.indptr)))
    observed = read(stub(graph, [EDGE]), [ScoreRequest("m", nodes=[hub])] * 400)
    means = observed.values(Quantity("neighbor", "f0"))
    values = graph.nodes["node"].features[edges.neighbors(hub), 0]
    assert means.mean() == pytest.approx(values.mean(), abs=4 * values.std() / np.sqrt(400 * MAX_NEIGHBORS))
    assert means.std() == pytest.approx(values.std() / np.sqrt(MAX_NEIGHBORS), rel=0.2)


def test_each_edge_type_that_the_model_reads_is_distinguished():
    graph = hetero_graph()
    keys = ["item__bought_by__user", "user__follows__user"]
    observed = read(stub(graph, keys, "user"), [ScoreRequest("m", nodes=["user-1", "user-2"])])
    names = {f"{kind} {name}" for kind, name in observed.quantities()}
    assert {"graph degree bought_by", "graph degree follows"} <= names
    assert "neighbor f4 bought_by" in names  # items have five features, users eight
    assert "neighbor f5 bought_by" not in names
    assert "neighbor f7 follows" in names
    assert "graph degree like" not in names


def test_both_sides_of_pairs_are_distinguished():
    graph = hetero_graph()
    model = stub(graph, ["user__buys__item"], "user", kind="link", dst_node_type="item")
    items = graph.nodes["item"].ids.external(np.arange(3))
    observed = read(model, [ScoreRequest("m", pairs=(["user-1"] * 3, items.tolist()))])
    names = {f"{kind} {name}" for kind, name in observed.quantities()}
    assert {"input source f0", "input destination f0", "graph degree of destination"} <= names
    assert (
        observed.values(Quantity("graph", "degree of destination"))
        == graph.edges["user__buys__item"].degree(np.arange(3))
    ).all()


def test_unknown_and_inline_nodes_are_counted_apart():
    graph = drawn("a>b c>b b>d")
    inline = InlineNode(features=[6.0], neighbors={"": ["a", "b", "c"]})
    observed = read(
        stub(graph, [EDGE]),
        [
            ScoreRequest("m", nodes=["b", "x"], on_missing="null"),
            ScoreRequest("m", nodes=["y", "z"]),
            ScoreRequest("m", inline=[inline]),
        ],
        [None, NodeNotFound("y and z", ["y", "z"]), None],
    )
    presence = observed.values(Quantity("graph", "presence"))
    assert sorted(presence) == ["inline", "known", "unknown", "unknown", "unknown"]
    assert observed.values(Quantity("graph", "degree")).tolist() == [2, 3]
    assert observed.values(Quantity("input", "f0")).tolist() == [2.0, 6.0]


def test_requests_about_another_time_are_left_out():
    observed = read(stub(drawn("a>b"), [EDGE]), [ScoreRequest("m", nodes=["b"], as_of=5)])
    assert not any(observed.values(quantity) for quantity in observed.quantities())


@pytest.mark.parametrize(
    ("plan", "expected"), [({"max_columns": 2}, {"f0", "f1"}), ({"columns": ("f3",)}, {"f3"})]
)
def test_columns_are_bounded_or_named(plan, expected):
    observed = read(stub(power_law_graph(dim=6), [EDGE]), [ScoreRequest("m", nodes=[1])], **plan)
    for kind in ("input", "neighbor"):
        assert {name for found, name in observed.quantities() if found == kind} == expected


def test_rows_of_a_store_that_are_not_near_are_missing():
    graph = drawn("a>b c>b")

    class Near:
        def read(self, ids, out, *, stale):
            out[:] = ids[:, None]
            return np.flatnonzero(ids == 2), 0.0  # c

    model = stub(graph, [EDGE])
    model.sources = {"node": Near()}
    observed = read(model, [ScoreRequest("m", nodes=["b", "c"])])
    assert np.isnan(observed.values(Quantity("input", "f0"))).tolist() == [False, True]
    assert observed.values(Quantity("neighbor", "f0"))[0] == 0  # of a alone
