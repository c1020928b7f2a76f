"""Changes to the live graph that a worker receives over HTTP: read, checked, passed to the writer."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopline.config.schema import Config
from hopline.errors import BadRequest, DeadlineExceeded, RequestTooLarge
from hopline.events import arrow_rows
from hopline.events.decode import Decoder
from hopline.events.payloads import together
from hopline.graph.live.changes import Applied
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.version import version_name
from hopline.graph.live.view import LiveView
from hopline.live.link import WriterLink
from hopline.live.stream_sender import StreamSender
from hopline.live.watch import WriterWatch
from hopline.observe.metrics import Metrics

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
        self._stream = StreamSender(config.stream) if config.stream else None
        self._patience_until = time.monotonic() + config.catch_up_s
        self._decoder = Decoder(graph.schema, features_elsewhere=bool(settings.features.store))
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
        """True if the graph has had everything that its stream has, or this was waited for long enough."""
        if self._stream is None or self._graph.memory.is_caught_up:
            return True
        return time.monotonic() >= self._patience_until

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
            "refused": sorted(refused, key=_place)[:_MAX_LISTED],
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


def _place(refused: Mapping[str, Any]) -> int:
    return int(refused["index"])
