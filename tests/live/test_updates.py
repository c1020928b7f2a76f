"""What a server says of its live graph."""

from pathlib import Path

import numpy as np

from hopline.config.schema import Config
from hopline.errors import WriterUnavailable
from hopline.graph import Graph
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter
from hopline.live import wire
from hopline.live.updates import LiveUpdates, WriterWatch
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


class Link:
    def __init__(self) -> None:
        self.found: wire.Status | None = None

    async def status(self) -> wire.Status:
        if self.found is None:
            raise WriterUnavailable("away")
        return self.found


async def test_a_writer_is_counted_across_its_lives() -> None:
    link, metrics = Link(), Metrics()
    watch = WriterWatch(link, metrics)

    async def value(name: str, found: wire.Status | None) -> float:
        link.found = found
        await watch.poll()
        lines = dict(line.rsplit(" ", 1) for line in metrics.render().decode().splitlines())
        return float(lines[f"hopline_graph_{name}"])

    assert await value("writer_up", None) == 0
    first = wire.Status(1, filled=0.25, log_bytes=70, problem="disk", steps=100, events=900, seconds=2.0)
    assert await value("writer_up", first) == 1
    assert await value("writer_events_total", first) == 0  # before this worker's time
    assert await value("memory_filled", first) == 0.25
    assert await value("log_bytes", first) == 70
    assert await value("snapshot_failing", first) == 1
    later = wire.Status(1, steps=110, events=950, seconds=2.5)
    assert await value("writer_events_total", later) == 50
    assert await value("snapshot_failing", later) == 0
    assert await value("writer_up", None) == 0
    assert await value("writer_steps_total", wire.Status(1, steps=7, events=8)) == 17
    assert await value("writer_events_total", wire.Status(1, steps=8, events=9)) == 59
