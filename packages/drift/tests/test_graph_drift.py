"""Drift of a real graph model: its nodes, their degrees, their neighbours; in a service and alone."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hopline.artifact import read_spec
from hopline.config.reader import load_config
from hopline.engine.model import Model
from hopline.graph import Graph
from hopline.packaging import package
from hopline.service import Service
from hopline.types import ScoreRequest
from packages.drift.tests.streams import SLICE_S, Clock, FakeServed, answer, monitor, quantities, ran
from tests.engine.zoo import SAGEConv
from tests.graphs import power_law_edges, power_law_graph

NODES, EDGES, DIM = 3000, 24_000, 4


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = SAGEConv(DIM, 8)
        self.b = SAGEConv(8, 1)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.b(self.a(x, edge_index).relu(), edge_index)


@pytest.fixture(scope="module")
def places(tmp_path_factory: Any) -> Any:
    root = tmp_path_factory.mktemp("graph-drift")
    torch.manual_seed(0)
    graph = power_law_graph(NODES, EDGES, DIM).save(root / "graph")
    options = {"name": "risk", "fanouts": [4, 3], "task": "binary", "check_nodes": 50}
    package(Small().eval(), graph, root / "models", **options)
    return root


def loaded(places: Any, graph: Graph) -> FakeServed:
    folder = places / "models" / "risk" / "1"
    return FakeServed("risk", "1", Model(folder, read_spec(folder), graph))


def requests_for(served: FakeServed, nodes: np.ndarray) -> Any:
    requests = [ScoreRequest("risk", nodes=[int(node)]) for node in nodes]
    return ran(served, requests, [answer(served, {})] * len(requests))


def levels_after(places: Any, tmp_path: Any, graph: Graph, nodes: Any = None) -> dict[str, str]:
    """Let a reference be made of evenly drawn nodes, then ask about a graph, 3,000 nodes in six slices."""
    clock, rng = Clock(), np.random.default_rng(1)
    watched = monitor(tmp_path, clock, drift__sample_per_s=5000, drift__reference_size=2000)
    before = loaded(places, Graph.open(places / "graph"))
    outputs = {"probabilities": np.array([0.5], np.float32)}
    asked = requests_for(before, rng.integers(0, NODES, 2000)).requests
    watched.record(ran(before, asked, [answer(before, outputs)] * 2000))
    watched.tick()
    after = loaded(places, graph)
    for _ in range(12):
        chosen = rng.integers(0, NODES, 500) if nodes is None else rng.choice(nodes, 500)
        watched.record(requests_for(after, chosen))
        watched.tick()
        clock.now += SLICE_S
    watched.tick()
    return {f"{kind} {name}": each["level"] for (kind, name), each in quantities(watched, "risk").items()}


def features() -> np.ndarray:
    return power_law_graph(NODES, EDGES, DIM).nodes["node"].features.copy()


def test_the_same_graph_raises_nothing(places: Any, tmp_path: Any) -> None:
    levels = levels_after(places, tmp_path, Graph.open(places / "graph"))
    assert set(levels.values()) == {"ok"}
    assert {"graph degree", "graph presence", "input f0", "neighbor f3"} <= set(levels)


def test_a_denser_graph_shows_in_the_degrees(places: Any, tmp_path: Any) -> None:
    denser = Graph.from_edges(power_law_edges(NODES, 2 * EDGES), features())
    levels = levels_after(places, tmp_path, denser)
    assert levels["graph degree"] == "alert"
    assert levels["input f0"] == "ok"


def test_a_feature_that_moved_shows_in_the_node_and_its_neighbours(places: Any, tmp_path: Any) -> None:
    moved = features()
    moved[:, 2] += 1.0
    levels = levels_after(places, tmp_path, Graph.from_edges(power_law_edges(NODES, EDGES), moved))
    assert {name for name, level in levels.items() if level == "alert"} == {"input f2", "neighbor f2"}


def test_questions_about_hubs_alone_show_in_the_degrees(places: Any, tmp_path: Any) -> None:
    graph = Graph.open(places / "graph")
    degrees = np.diff(graph.edges["node__to__node"].indptr)
    levels = levels_after(places, tmp_path, graph, np.argsort(degrees)[-300:])
    assert levels["graph degree"] == "alert"


async def test_a_service_s_answers_are_watched(places: Any, tmp_path: Any, caplog: Any) -> None:
    config = load_config(overrides={"graph.path": places / "graph", "models.repository": places / "models"})
    service = Service(config)
    clock = Clock()
    watched = monitor(tmp_path, clock, drift__sample_per_s=5000, drift__reference_size=600)
    service.recorders.append(watched)
    await service.start()
    with caplog.at_level(logging.INFO):
        for number in range(600):
            await service.score(ScoreRequest("risk", nodes=[number % NODES]))
        watched.tick()
    assert "is now compared with its first 600 requests" in caplog.text
    result = await service.score(ScoreRequest("risk", nodes=[1, 2, 999_999], on_missing="null"))
    assert result.missing is not None
    watched.tick()
    seen = quantities(watched, "risk")
    assert seen["output", "score"]["values"] == 2
    assert seen["output", "label"]["values"] == 2
    presence = seen["graph", "presence"]
    assert dict(zip(presence["bins"], presence["shares"], strict=True))["other"] == pytest.approx(1 / 3)
    service.begin_drain()
    await service.drain(5)
    await service.close()
