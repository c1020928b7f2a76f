"""Exports the status of a live graph's writer as metrics of one of the workers."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol

from hopline.errors import HoplineError
from hopline.live import wire
from hopline.observe.metrics import Metrics

#: Seconds between status requests.
_LOOK_S = 2.0
#: Timeout of an answer in seconds: a step of the writer takes milliseconds.
_PATIENCE_S = 5.0


class Asks(Protocol):
    """`live.link.WriterLink`, or a fake."""

    async def status(self) -> wire.Status:
        """The state of the graph. Raises: WriterUnavailable."""
        ...


class WriterWatch:
    """Polls the writer's status and exports it as metrics.

    Args:
        link: to the writer.
        metrics: of the server.
    """

    def __init__(self, link: Asks, metrics: Metrics) -> None:
        self._link = link
        self._task: asyncio.Task[None] | None = None
        self._last: wire.Status | None = None
        self._up = metrics.gauge(
            "hopline_graph_writer_up", "Whether the writer of the live graph answers.", merge="max"
        )()
        self._filled = metrics.gauge(
            "hopline_graph_memory_filled",
            "Share of the live graph's memory that is in use, 0 to 1.",
            merge="max",
        )()
        self._log_bytes = metrics.gauge(
            "hopline_graph_log_bytes", "Changes that a start would have to read again.", merge="max"
        )()
        self._failing = metrics.gauge(
            "hopline_graph_snapshot_failing", "Whether the last snapshot could not be written.", merge="max"
        )()
        self._steps = metrics.counter(
            "hopline_graph_writer_steps_total", "Groups of batches that the writer made durable together."
        )()
        self._events = metrics.counter(
            "hopline_graph_writer_events_total", "Events that the writer received, from all clients."
        )()
        self._seconds = metrics.counter(
            "hopline_graph_writer_seconds_total", "Seconds that the writer worked."
        )()

    def start(self) -> None:
        """Start polling."""
        self._task = asyncio.ensure_future(self._look())

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def ask(self) -> None:
        """Once."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                status = await self._link.status()
        except (HoplineError, TimeoutError):
            self._up.set(0.0)
            return
        self._up.set(1.0)
        self._filled.set(status.filled)
        self._log_bytes.set(float(status.log_bytes))
        self._failing.set(float(bool(status.problem)))
        before = self._last
        # Work before the start of this worker was counted by another one; a smaller number means a new
        # writer, which counts from zero.
        if before is not None:
            if status.steps < before.steps:
                before = wire.Status(0)
            self._steps.inc(status.steps - before.steps)
            self._events.inc(status.events - before.events)
            self._seconds.inc(max(0.0, status.seconds - before.seconds))
        self._last = status

    async def _look(self) -> None:
        while True:
            await self.ask()
            await asyncio.sleep(_LOOK_S)
