"""What a server says of its live graph."""

from pathlib import Path

import numpy as np

from hopline.config.schema import Config
from hopline.graph import Graph
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter
from hopline.live.updates import LiveUpdates
from hopline.observe.metrics import Metrics


def test_the_age_is_unknown_until_the_writer_has_filled_the_graph(tmp_path: Path) -> None:
    graph = Graph.from_edges(np.array([[0], [1]]), np.ones((2, 3), np.float32))
    plan = make_plan(graph, lineage="g", sequence=0, spare_nodes=1, spare_edges=1, num_levels=1)
    memory = LiveMemory.create(plan)
    ids = {name: nodes.ids for name, nodes in graph.nodes.items()}
    view = LiveView(memory, graph.schema, ids)
    updates = LiveUpdates(view, tmp_path / "writer", 0, Metrics(), Config())
    assert updates.describe()["age_ms"] is None
    writer = LiveWriter(memory, graph.schema, ids, lambda: 1_700_000_000_000)
    writer.fill(graph, through_ms=1_700_000_000_000)
    assert updates.describe()["age_ms"] > 0
