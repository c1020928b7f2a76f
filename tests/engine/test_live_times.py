"""Models that read times on a live graph: now is its latest time, at every version.

The oracle is the same model on a graph that is built from the edges that are left: answers are compared
byte for byte, with all the ways of sampling that such models have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric import nn as pyg

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan, has_changed_at
from hopline.errors import ArtifactError
from hopline.graph import Graph
from hopline.graph.live.changes import Changes, EdgeChanges, NodeChanges
from hopline.graph.live.view import LiveView
from hopline.memory.arena import Arena
from hopline.types import EdgeEdit, Edit, ScoreRequest
from tests.graph.live.test_writer import live
from tests.packaged import package
from tests.packaging.test_seed_time import BEGIN, DAY, Ages
from tests.thorough import thorough

TO = "node__to__node"
N = 50


class Edges:
    """Edges of a live graph, and what happens to them."""

    def __init__(self, seed: int, count: int = 300) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows = [*self.rng.standard_normal((N, 4)).astype(np.float32)]
        self.edges = [self.drawn(200) for _ in range(count)]

    def drawn(self, day: int) -> tuple[Any, ...]:
        src, dst = self.rng.integers(0, len(self.rows), 2).tolist()
        return src, dst, BEGIN + DAY * int(self.rng.integers(day)), self.rng.standard_normal(2)

    def graph(self) -> Graph:
        src, dst, times, attrs = zip(*self.edges, strict=True)
        return Graph.from_edges(
            [list(src), list(dst)], np.stack(self.rows), edge_time=np.array(times),
            edge_attr=np.array(attrs, np.float32), time_unit="s",
        )  # fmt: skip

    def batch(self, number: int) -> Changes:
        """Later edges and late ones, a new node, and removals: of any edge, and of the latest one."""
        row = self.rng.standard_normal(4).astype(np.float32)
        nodes = NodeChanges([len(self.rows)], np.ones(1, bool), row[None], np.zeros(1, np.int64))
        self.rows.append(row)
        events = []
        for at in range(int(self.rng.integers(2, 8))):
            new = self.drawn(200)
            new = new if at else (*new[:2], BEGIN + DAY * (200 + 9 * number), new[3])
            self.edges.append(new)
            events.append((*new, False))
        latest = max(self.edges, key=lambda each: each[2])
        for gone in (latest if number % 3 == 2 else self.edges[9], self.edges[self.rng.integers(9)]):
            self.edges = [each for each in self.edges if each[:3] != gone[:3]]
            events.append((*gone, True))
        src, dst, times, attrs, remove = zip(*events, strict=True)
        edges = EdgeChanges(
            list(src), list(dst), np.array(remove), np.arange(1, 1 + len(events)), np.array(times),
            np.ones(len(events), bool), None, np.array(attrs, np.float32),
        )  # fmt: skip
        return Changes({TO: edges}, {"node": nodes}, 1 + len(events))


class Windowed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = pyg.SAGEConv(4, 8), pyg.SAGEConv(8, 3)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.second(self.first(x, edge_index).relu(), edge_index)


MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "window": (Windowed, {"fanouts": [-1, -1], "windows": {TO: "60d"}}),
    "sampled": (Windowed, {"fanouts": [4, 2], "windows": {TO: ["30d", "90d"]}}),
    "recent": (Windowed, {"fanouts": [3, 3], "windows": {TO: ["90d", None]}, "sampling": "recent"}),
    "ages": (Ages, {"fanouts": [-1, -1]}),
}


@pytest.fixture(scope="module", params=MODELS)
def folder(request: Any, tmp_path_factory: Any) -> Any:
    torch.manual_seed(0)
    make, options = MODELS[request.param]
    root = tmp_path_factory.mktemp("m")
    return package(make().eval(), Edges(0).graph(), root, name="m", task="embedding", **options).path


def answerer(folder: Any, graph: Graph | LiveView) -> Answerer:
    spec = read_spec(folder)
    plan = StateCachePlan(spec, graph, 1 << 22)
    return Answerer(Model(folder, spec, graph, plan.build(Arena(plan.num_bytes))), ("embedding",), 100)


def test_now_is_the_latest_time_of_each_version(folder: Any) -> None:
    """From two readers, together and alone, now and at times of the past."""
    happened = Edges(0)
    writer, view = live(happened.graph())
    served = [answerer(folder, view), answerer(folder, view.another())]
    clocks = set()
    for number in range(thorough(8, 40)):
        assert not writer.apply(happened.batch(number)).rejected
        graph = happened.graph()
        right, ids = answerer(folder, graph), [*range(len(happened.rows))]
        clocks.add(graph.clock)
        for as_of in (None, BEGIN + DAY * int(happened.rng.integers(250)), None):
            (wanted,) = right.answer([ScoreRequest("m", nodes=ids, as_of=as_of)])
            assert wanted.as_of == (graph.clock if as_of is None else as_of)
            for part in (ids, ids[-1:], ids[3:40:4]):
                for each in served:
                    (found,) = each.answer([ScoreRequest("m", nodes=part, as_of=as_of)])
                    assert found.as_of == wanted.as_of
                    np.testing.assert_array_equal(
                        found.outputs["embedding"], wanted.outputs["embedding"][part]
                    )
    assert len(clocks) > 4, "the latest time moves"
    assert not has_changed_at(read_spec(folder), view), "nothing is cached: each row depends on the time"


def test_requests_of_a_batch_are_each_of_their_time(folder: Any) -> None:
    happened = Edges(1)
    writer, view = live(happened.graph())
    writer.apply(happened.batch(3))
    graph = happened.graph()
    asked = [ScoreRequest("m", nodes=[at], as_of=graph.clock if at % 2 else None) for at in range(10)]
    for found, wanted in zip(
        answerer(folder, view).answer(asked), answerer(folder, graph).answer(asked), strict=True
    ):
        np.testing.assert_array_equal(found.outputs["embedding"], wanted.outputs["embedding"])


def test_edits_are_of_the_latest_time(folder: Any) -> None:
    """Of models without windows, which refuse edits."""
    happened = Edges(2)
    writer, view = live(happened.graph())
    writer.apply(happened.batch(3))
    src, dst = happened.edges[0][:2]
    edit = Edit(remove_edge=EdgeEdit(src=src, dst=dst))
    request = ScoreRequest("m", nodes=[dst, src], edits=(edit,))
    (found,) = answerer(folder, view).answer([request])
    (wanted,) = answerer(folder, happened.graph()).answer([request])
    if isinstance(wanted, Exception):
        assert (type(found), str(found)) == (type(wanted), str(wanted))
    else:
        np.testing.assert_array_equal(found.outputs["embedding"], wanted.outputs["embedding"])
        assert found.as_of == wanted.as_of


def test_a_feature_store_under_a_live_graph_is_refused(folder: Any) -> None:
    _, view = live(Edges(3).graph())
    with pytest.raises(ArtifactError, match=r"reads times or rows of then, and a feature store .of 'node'"):
        Model(folder, read_spec(folder), view, sources={"node": object()})  # type: ignore[dict-item]
