"""What a server says of its live graph."""

from pathlib import Path

import numpy as np
import pytest

from hopline.config.schema import Config
from hopline.errors import BadRequest, RequestTooLarge, WriterUnavailable
from hopline.graph import Graph, IdIndex
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter
from hopline.live import wire
from hopline.live.updates import LiveUpdates, WriterWatch
from hopline.observe.metrics import Metrics
from hopline.scheduling.work import Work
from hopline.types import InlineNode, ModelInfo, ScoreRequest
from tests.live.test_link import talking, until


def _view(graph: Graph) -> tuple[LiveView, LiveMemory, dict[str, IdIndex]]:
    plan = make_plan(graph, lineage="g", sequence=0, spare_nodes=1, spare_edges=1, num_levels=1)
    memory = LiveMemory.create(plan)
    ids = {name: nodes.ids for name, nodes in graph.nodes.items()}
    return LiveView(memory, graph.schema, ids), memory, ids


def test_the_age_is_unknown_until_the_writer_has_filled_the_graph(tmp_path: Path) -> None:
    graph = Graph.from_edges(np.array([[0], [1]]), np.ones((2, 3), np.float32))
    view, memory, ids = _view(graph)
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


async def test_a_worker_is_ready_when_the_writer_has_answered_once(tmp_path: Path) -> None:
    graph = Graph.from_edges(np.array([[0], [1]]), np.ones((2, 3), np.float32))
    updates = LiveUpdates(_view(graph)[0], tmp_path / "writer", 1, Metrics(), Config())
    updates.start()
    try:
        assert not updates.is_current
        with pytest.raises(WriterUnavailable, match="may be starting"):
            await updates.apply(b'{"op": "add_node", "node": 3, "features": [1, 2, 3]}')
        async with talking(tmp_path / "writer"):
            await until(lambda: updates.is_current)
        assert updates.is_current  # a writer that ends does not stop scoring
    finally:
        await updates.close()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"live__stream": "redis://127.0.0.1:1/0?stream=edges"}, "the graph follows a stream"),
        ({"features__store": "redis://127.0.0.1:1"}, "features are in a feature store"),
    ],
)
async def test_nodes_are_not_kept_where_events_alone_do_not_make_them(
    tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    graph = Graph.from_edges(np.array([[0], [1]]), np.ones((2, 3), np.float32))
    config = Config().replace(**settings)
    updates = LiveUpdates(_view(graph)[0], tmp_path / "writer", 1, Metrics(), config)
    request = ScoreRequest("m", inline=[InlineNode([1.0, 2.0, 3.0], id=5)], keep=True)
    info = ModelInfo("m", ("1",), "1", "READY", "", "node", "int", (), (), (), graph.version)
    with pytest.raises(BadRequest, match=f"keep: {words}.*send events to /v1/graph/events"):
        updates.keep(Work(request, [].append), info, [].append)


async def test_a_request_with_too_many_edges_is_refused_before_they_are_read(tmp_path: Path) -> None:
    graph = Graph.from_edges(np.array([[0], [1]]), np.ones((2, 3), np.float32))
    updates = LiveUpdates(_view(graph)[0], tmp_path / "writer", 1, Metrics(), Config())
    node = InlineNode([1.0, 2.0, 3.0], {"": range(100_000)}, id=5)
    with pytest.raises(RequestTooLarge, match="1 nodes with 100000 edges; more than 100000 events"):
        await updates._add_nodes(ScoreRequest("m", inline=[node], keep=True), "node")
