"""Changes to the live graph that a worker receives over HTTP: read, checked, passed on.

They go to the writer of this host; if the graph follows a stream, they are sent to that stream, so that all
servers of the fleet apply them at the same place. The answer names the version that has them. The first
worker also exports the writer's status as metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import time
from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from hopline.brokers.base import Outgoing, Sink
from hopline.brokers.registry import open_sink
from hopline.config.schema import Config
from hopline.errors import (
    BadRequest,
    BrokerError,
    BrokerUnavailable,
    DeadlineExceeded,
    HoplineError,
    RequestTooLarge,
    WriterUnavailable,
)
from hopline.events import arrow_rows
from hopline.events.decode import Decoder
from hopline.events.payloads import together
from hopline.graph.edge_times import with_likely_unit
from hopline.graph.live.changes import Applied
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.version import StreamOffset, offset_at, version_name
from hopline.graph.live.view import LiveView
from hopline.live import wire
from hopline.live.link import WriterLink
from hopline.observe.metrics import Metrics

#: Seconds between status requests.
_LOOK_S = 2.0
#: Timeout of an answer in seconds: a step of the writer takes milliseconds.
_PATIENCE_S = 5.0


class WriterWatch:
    """Polls the writer's status and exports it as metrics.

    Args:
        link: to the writer.
        metrics: of the server.
    """

    def __init__(self, link: WriterLink, metrics: Metrics) -> None:
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

    async def poll(self) -> None:
        """Read the status once."""
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
            await self.poll()
            await asyncio.sleep(_LOOK_S)


_UNKNOWN = "the events may or may not be in the stream: send them again with the same event ids"


class _StreamSender:
    """Sends events to the stream that the graph follows.

    Args:
        address: of the stream.
    """

    def __init__(self, address: str) -> None:
        self._sink: Sink = open_sink(address, "live.stream")
        self._opened: asyncio.Task[None] | None = None

    async def send(self, payload: bytes, deadline: float | None) -> StreamOffset:
        """Send one message; returns its place in the stream.

        Raises:
            DeadlineExceeded: nothing was sent.
            WriterUnavailable: the message may or may not have been sent.
            BadRequest: the broker refuses the message.
        """
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded("the deadline passed before the events were sent to the stream")
        if self._opened is None:
            self._opened = asyncio.ensure_future(self._sink.open())
        try:
            async with asyncio.timeout(left_s):
                await asyncio.shield(self._opened)
                # not cancelled: the driver's state must not depend on a caller's patience
                (placed,) = await asyncio.shield(self._sink.send([Outgoing(payload)]))
        except TimeoutError:
            raise WriterUnavailable(f"the stream did not answer in time; {_UNKNOWN}") from None
        except BrokerUnavailable as error:
            raise WriterUnavailable(f"{error}; {_UNKNOWN}", error.retry_after_s) from None
        except BrokerError as error:
            raise BadRequest(f"{error}; send fewer events in one request") from None
        return offset_at(placed.position)

    async def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            await self._opened
            await self._sink.close()


#: Refused events that an answer lists.
_MAX_LISTED = 1_000
#: JSON of this size takes less than two milliseconds to read, whatever its content.
_SMALL_BYTES = 8 * 1024


class LiveUpdates:
    """Applies changes that a worker receives to the live graph.

    Args:
        graph: a view that only this object uses.
        socket: of the writer.
        worker: number of this process.
        metrics: of the server.
        settings: of the server; if the graph follows a stream, changes are sent there.
    """

    def __init__(
        self, graph: LiveView, socket: Path, worker: int, metrics: Metrics, settings: Config
    ) -> None:
        config = settings.live
        self._graph = graph
        self._stream = _StreamSender(config.stream) if config.stream else None
        self._patience_until = time.monotonic() + config.catch_up_s
        self._decoder = Decoder(with_likely_unit(graph), features_elsewhere=bool(settings.features.store))
        self._link = WriterLink(socket, f"worker {worker}")
        count = metrics.counter(
            "hopline_graph_events_total", "Events that clients sent to the live graph.", ("outcome",)
        )
        self._count = {name: count(name) for name in ("applied", "duplicate", "refused", "accepted")}
        sequence = metrics.gauge("hopline_graph_sequence", "Version of the live graph.", merge="max")
        sequence().set_function(lambda: float(graph.memory.version))
        age = metrics.gauge(
            "hopline_graph_age_seconds",
            "How long ago the live graph had everything that had happened.",
            merge="max",
        )
        age().set_function(lambda: (self._age_ms() or 0) / 1e3)

        self._watch = WriterWatch(self._link, metrics) if worker == 0 else None

    def start(self) -> None:
        """Connect to the writer, now and whenever the connection is lost."""
        arrow_rows.load()
        self._link.start()
        if self._watch is not None:
            self._watch.start()

    async def close(self) -> None:
        """Close the connection to the writer, and the memory."""
        if self._watch is not None:
            await self._watch.close()
        await self._link.close()
        if self._stream is not None:
            await self._stream.close()
        self._graph.close()

    @property
    def memory(self) -> LiveMemory:
        """Of the graph."""
        return self._graph.memory

    @property
    def is_current(self) -> bool:
        """True if the graph can be changed and had all of its stream, or this was waited for long enough.

        Without a stream, the writer must have answered once: a later pause of it does not stop scoring.
        """
        begun = self._link.has_answered if self._stream is None else self._graph.memory.is_caught_up
        return begun or time.monotonic() >= self._patience_until

    async def apply(self, payload: bytes, deadline: float | None = None) -> dict[str, Any]:
        """Apply events; returns when they are durable and all workers of the host see them.

        Args:
            payload: one event, a list of events, one a line, or an Arrow IPC stream.
            deadline: on time.monotonic()'s clock; the call does not wait longer for the writer.

        Returns: the outcome: `sequence`, `graph_version`, `applied`, `duplicates`, and for each of the
            `refused` events its place in the payload, the code and the reason.
        Raises:
            BadRequest: the payload holds no event, or cannot be read.
            RequestTooLarge: more events, or more memory for them, than one request may take.
            DeadlineExceeded: none was applied.
            WriterUnavailable, LogFull, LogFailed: none was applied, or (if the message says that) the
                outcome is unknown.
        """
        if len(payload) <= _SMALL_BYTES and not payload.startswith(arrow_rows.MAGIC):
            decoded = self._decoder.decode([payload])
        else:  # in a thread, so that score requests do not wait
            decoded = await asyncio.to_thread(self._decoder.decode, [payload])
        num_refused = len(decoded.refused)
        refused = [
            {"index": each.index, "id": each.event_id, "code": each.code, "reason": each.reason}
            for each in heapq.nsmallest(_MAX_LISTED, decoded.refused, key=lambda each: each.index)
        ]
        count = decoded.changes.num_events
        if count == 0:
            if num_refused == 1 and decoded.refused[0].index < 0:
                whole = decoded.refused[0]
                if whole.code == "too_large":
                    raise RequestTooLarge(whole.reason)
                raise BadRequest(f"the events cannot be read: {whole.reason}")
            if not refused:
                raise BadRequest("the body holds no event")
            nothing = Applied(self._graph.memory.version, 0)
            return self._outcome(nothing, self.graph_version, [], refused, num_refused)
        if self._stream is not None:
            if num_refused:
                payload = together(payload, decoded.index.tolist())
            offset = await self._stream.send(payload, deadline)
            version = version_name(self._graph.memory.plan.lineage, 0, offset)
            return self._outcome(Applied(0, 0), version, [], refused, num_refused, accepted=count)
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded("the deadline passed before the events were sent to the writer")
        (applied,) = await self._link.apply([decoded.changes], timeout_s=left_s)
        places = decoded.index
        rejected = applied.rejected
        num_refused += len(rejected)
        refused += [
            {
                "index": int(places[each.order]),
                "id": decoded.changes.event_ids[each.order] if decoded.changes.event_ids else "",
                "code": each.code,
                "reason": each.reason,
            }
            for each in heapq.nsmallest(_MAX_LISTED, rejected, key=lambda each: each.order)
        ]
        duplicates = places[np.asarray(applied.duplicates, np.int64)].tolist()
        version = version_name(self._graph.memory.plan.lineage, applied.sequence)
        return self._outcome(applied, version, duplicates, refused, num_refused)

    @property
    def graph_version(self) -> str:
        """The newest version."""
        with self._graph as graph:
            return graph.version

    def describe(self) -> dict[str, Any]:
        """The present state: version, counts, age."""
        with self._graph as graph:
            return {
                "graph_version": graph.version,
                "sequence": graph.clock.version,
                "age_ms": self._age_ms(),
                "nodes": {name: part.num_nodes for name, part in graph.nodes.items()},
                "edges": {key: part.num_edges for key, part in graph.edges.items()},
                "writer": "up" if self._link.is_up else "away",
            }

    def _outcome(
        self,
        applied: Applied,
        version: str,
        duplicates: Sequence[int],
        refused: list[dict[str, Any]],
        num_refused: int,
        accepted: int = 0,
    ) -> dict[str, Any]:
        self._count["applied"].inc(applied.num_applied)
        self._count["duplicate"].inc(len(duplicates))
        self._count["refused"].inc(num_refused)
        self._count["accepted"].inc(accepted)
        answer: dict[str, Any] = {
            "sequence": applied.sequence,
            "graph_version": version,
            "applied": applied.num_applied,
            "duplicates": duplicates,
            "refused": sorted(refused, key=itemgetter("index"))[:_MAX_LISTED],
        }
        if self._stream is not None:  # what was applied is known when the stream is read
            answer = {
                "graph_version": version,
                "accepted": accepted,
                "refused": answer["refused"],
            }
        if num_refused > _MAX_LISTED:
            answer["num_refused"] = num_refused
        return answer

    def _age_ms(self) -> int | None:
        """Time since the graph contained all events; None until the writer has answered once."""
        with self._graph as graph:
            return max(0, int(time.time() * 1e3) - graph.through_ms) if graph.through_ms else None
