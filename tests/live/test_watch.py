"""What the metrics say of a writer: there, away, another one."""

from __future__ import annotations

from hopline.errors import WriterUnavailable
from hopline.live import wire
from hopline.live.watch import WriterWatch
from hopline.observe.metrics import Metrics


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
        await watch.ask()
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
