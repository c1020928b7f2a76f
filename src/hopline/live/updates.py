"""Changes to the live graph that a worker receives over HTTP: read, checked, passed on.

They go to the writer of this host; if the graph follows a stream, they are sent to that stream, so that all
servers of the fleet apply them at the same place. The answer names the version that has them. Inline nodes
that a score request keeps take the same way. The first worker also exports the writer's status as metrics.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hopline.brokers.base import Outgoing, Sink
from hopline.brokers.registry import open_sink
from hopline.config.schema import Config
from hopline.errors import (
    BadRequest,
    BrokerError,
    BrokerUnavailable,
    Conflict,
    DeadlineExceeded,
    HoplineError,
    NodeNotFound,
    Overloaded,
    RequestTooLarge,
    RuntimeFailure,
    WriterUnavailable,
)
from hopline.events import arrow_rows
from hopline.events.decode import Decoded, Decoder, events_of
from hopline.events.payloads import together
from hopline.events.rows import Refused
from hopline.graph.edge_times import time_cut, with_likely_unit
from hopline.graph.live.changes import Applied, Changes
from hopline.graph.live.codec import encode_changes
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.version import StreamOffset, lineage_of, offset_at, version_name
from hopline.graph.live.view import LiveView
from hopline.live import wire
from hopline.live.link import WriterLink
from hopline.observe.metrics import Metrics
from hopline.process.wire import pack_error, unpack_error
from hopline.scheduling.work import Work
from hopline.types import ModelInfo, ScoreRequest

log = logging.getLogger(__name__)

#: Seconds between status requests.
_LOOK_S = 2.0
#: Timeout of an answer in seconds: a step of the writer takes milliseconds.
_PATIENCE_S = 5.0


class WriterWatch:
    """Polls the writer's status and exports it as metrics."""

    def __init__(self, link: WriterLink, metrics: Metrics) -> None:
        self._link = link
        self._last: wire.Status | None = None
        gauge = partial(metrics.gauge, merge="max")
        self._up = gauge("hopline_graph_writer_up", "Whether the writer of the live graph answers.")()
        self._filled = gauge(
            "hopline_graph_memory_filled", "Share of the live graph's memory that is in use, 0 to 1."
        )()
        self._log_bytes = gauge("hopline_graph_log_bytes", "Changes that a start has to read again.")()
        self._failing = gauge(
            "hopline_graph_snapshot_failing", "Whether the last snapshot could not be written."
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

    async def run(self) -> None:
        """Poll until it is cancelled."""
        while True:
            await self.poll()
            await asyncio.sleep(_LOOK_S)


_UNKNOWN = "the events may or may not be in the stream: send them again with the same event ids"


class _StreamSender:
    """Sends events to the stream that the graph follows."""

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


#: Refused events that an answer lists, and requests of a worker whose nodes are being added.
_MAX_LISTED, _MAX_KEPT = 1_000, 1_000
_BY_EVENTS = "send events to /v1/graph/events, and then ask for the nodes by their ids, with min_version"
#: Ids in paths that are integers: each has one spelling.
_INTEGER = re.compile("0|-?[1-9][0-9]{0,18}")
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
        self._features_elsewhere = bool(settings.features.store)
        self._decoder = Decoder(with_likely_unit(graph), features_elsewhere=self._features_elsewhere)
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
        self._polling: asyncio.Task[None] | None = None
        self._keeping = set[asyncio.Task[None]]()

    def start(self) -> None:
        """Connect to the writer, now and whenever the connection is lost."""
        arrow_rows.load()
        self._link.start()
        if self._watch is not None:
            self._polling = asyncio.ensure_future(self._watch.run())

    async def close(self) -> None:
        """Close the connection to the writer, and the memory."""
        if self._polling is not None:
            self._polling.cancel()
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
        changes, refused = decoded.changes, list(decoded.refused)
        if changes.num_events == 0:
            if len(refused) == 1 and refused[0].index < 0:
                if refused[0].code == "too_large":
                    raise RequestTooLarge(refused[0].reason)
                raise BadRequest(f"the events cannot be read: {refused[0].reason}")
            if not refused:
                raise BadRequest("the body holds no event")
            with self._graph as graph:
                return self._outcome(Applied(graph.memory.version, 0), graph.version, [], refused)
        if self._stream is not None:
            if refused:
                payload = together(payload, decoded.index.tolist())
            offset = await self._stream.send(payload, deadline)
            version = version_name(self._graph.memory.plan.lineage, 0, offset)
            return self._outcome(Applied(0, 0), version, [], refused, accepted=changes.num_events)
        applied, version = await self._applied(changes, deadline)
        places, ids = decoded.index, changes.event_ids or [""] * changes.num_events
        refused += [
            Refused(0, int(places[each.order]), each.code, each.reason, ids[each.order])
            for each in applied.rejected[:_MAX_LISTED]
        ]
        duplicates = places[np.asarray(applied.duplicates, np.int64)].tolist()
        num_more = max(0, len(applied.rejected) - _MAX_LISTED)
        return self._outcome(applied, version, duplicates, refused, num_more)

    async def remove_node(self, node_type: str, node: str, deadline: float | None = None) -> dict[str, Any]:
        """Remove a node with all its edges; otherwise as `apply`.

        Args:
            node: its id as text, also where ids are integers.
        Raises: NodeNotFound: the graph has none. BadRequest: no such type, or such an id. Conflict.
        """
        schema = self._decoder.schema.node_types.get(node_type)
        is_number = schema is not None and schema.id_kind != "string" and _INTEGER.fullmatch(node)
        event = {"op": "remove_node", "node_type": node_type, "node": int(node) if is_number else node}
        answer = await self.apply(msgspec.json.encode([event]), deadline)
        for refused in answer["refused"]:
            raise _refusal(refused["code"], refused["reason"], event["node"])
        return answer

    def keep(self, work: Work, info: ModelInfo, accept: Callable[[Work], object]) -> None:
        """Add the inline and context nodes of a request to the graph, then pass it on with their ids.

        In this order an answer is that of a later request by id. One about the inline form may differ:
        lists longer than a fanout are sampled by place, and known nodes do not read the new ones.

        Args:
            info: of the model. accept: takes the request by ids. Raises: HoplineError.
        Raises: BadRequest: it has no nodes that the model could score in the live graph. Overloaded.
        """
        request, types, why = work.request, info.properties.get("node_types", {}), ""
        node_type = request.node_type or (next(iter(types)) if len(types) == 1 else "")
        if not request.inline:
            why = "the request has no inline nodes"
        elif self._stream is not None:
            why = f"the graph follows a stream, whose order decides which changes apply; {_BY_EVENTS}"
        elif self._features_elsewhere:
            why = f"features are in a feature store, where their rows come first; {_BY_EVENTS}"
        elif info.kind != "node":
            why = f"model {info.name!r} is of kind {info.kind!r}; only models of nodes score inline nodes"
        elif node_type not in types:
            why = f"node_type {request.node_type or 'is missing'}: the model has {', '.join(types)}"
        elif lineage_of(info.graph_version) != self._graph.memory.plan.lineage:
            why = f"model {info.name!r} answers about graph {info.graph_version}, not about the live graph"
        if why:
            raise BadRequest(f"keep: {why}")
        if len(self._keeping) >= _MAX_KEPT:
            raise Overloaded(f"{_MAX_KEPT} requests wait until their nodes are in the graph")
        work.holder = self
        task = asyncio.ensure_future(self._keep(work, node_type, accept))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    def withdraw(self, work: Work) -> None:
        """As `Holder.withdraw`; nodes that were sent to the writer are added."""
        work.end()

    async def _keep(self, work: Work, node_type: str, accept: Callable[[Work], object]) -> None:
        request = work.request
        try:
            version = await self._add_nodes(request, node_type)
            if work.ended:
                return
            ids = [*np.asarray(request.nodes, object).tolist(), *(node.id for node in request.inline)]
            work.request = msgspec.structs.replace(request, nodes=ids, inline=(), context=(), keep=False)
            work.deliver, work.holder = partial(_deliver, work.deliver, version), None
            accept(work)
        except Exception as error:  # task boundary: the caller waits
            if not isinstance(error, HoplineError):
                log.exception("the nodes of a request could not be added")
                error = RuntimeFailure(f"{type(error).__name__}: {error}")
            if work.request is not request or not work.ended:  # not withdrawn while it waited here
                work.ended = True
                work.report(error)

    async def _add_nodes(self, request: ScoreRequest, node_type: str) -> str:
        """Add the nodes of a request with their edges, all of them or nothing; a version that has them.

        Raises:
            BadRequest, NodeNotFound, Conflict, RequestTooLarge: they cannot be added.
            DeadlineExceeded, WriterUnavailable, LogFull, LogFailed: as `apply`.
        """
        events, places, decoded = await asyncio.to_thread(self._events_of, request, node_type)
        faults = [(each.index, each.code, each.reason) for each in decoded.refused]
        if not faults:
            applied, version = await self._applied(_whole(decoded.changes, request.key), request.deadline)
            faults = [(each.order, each.code, each.reason) for each in applied.rejected]
        if not faults:
            self._outcome(applied, version, applied.duplicates, [])
            return version
        at, code, reason = min(faults)
        self._count["refused"].inc(len(events))
        text = f"{places[at]}: {reason}. Nothing was added to the graph"
        if code == "node_exists":
            text += ": keep adds new nodes; ask for this one by its id"
        raise _refusal(code, text, events[at].dst if reason.startswith("dest") else events[at].src)

    def _events_of(self, request: ScoreRequest, node_type: str) -> tuple[list[Any], list[str], Decoded]:
        """Events that add the nodes of a request, the place of each, and what they change."""
        schema = self._decoder.schema
        time = None if request.as_of is None else time_cut(request.as_of, schema.time_unit, None)
        events, places = events_of(request, node_type, schema, time)
        return events, places, self._decoder.check(events)

    async def _applied(self, changes: Changes, deadline: float | None) -> tuple[Applied, str]:
        """Have the writer apply changes: the outcome, and the version that has it."""
        left_s = None if deadline is None else deadline - time.monotonic()
        if left_s is not None and left_s <= 0:
            raise DeadlineExceeded("the deadline passed before the events were sent to the writer")
        (applied,) = await self._link.apply([changes], timeout_s=left_s)
        return applied, version_name(self._graph.memory.plan.lineage, applied.sequence)

    def describe(self) -> dict[str, Any]:
        """The present state: version, counts, age."""
        with self._graph as graph:
            return {
                "graph_version": graph.version,
                "sequence": graph.clock.version,
                "age_ms": self._age_ms(),
                "nodes": {name: part.ids.num_nodes for name, part in graph.nodes.items()},
                "edges": {key: part.num_edges for key, part in graph.edges.items()},
                "writer": "up" if self._link.is_up else "away",
            }

    def _outcome(
        self,
        applied: Applied,
        version: str,
        duplicates: Sequence[int],
        refused: Sequence[Refused],
        num_more: int = 0,
        accepted: int = 0,
    ) -> dict[str, Any]:
        num_refused = len(refused) + num_more
        self._count["applied"].inc(applied.num_applied)
        self._count["duplicate"].inc(len(duplicates))
        self._count["refused"].inc(num_refused)
        self._count["accepted"].inc(accepted)
        listed = [
            {"index": each.index, "id": each.event_id, "code": each.code, "reason": each.reason}
            for each in heapq.nsmallest(_MAX_LISTED, refused, key=lambda each: each.index)
        ]
        answer: dict[str, Any] = {"sequence": applied.sequence, "graph_version": version}
        answer |= {"applied": applied.num_applied, "duplicates": duplicates, "refused": listed}
        if self._stream is not None:  # what was applied is known when the stream is read
            answer = {"graph_version": version, "accepted": accepted, "refused": listed}
        if num_refused > _MAX_LISTED:
            answer["num_refused"] = num_refused
        return answer

    def _age_ms(self) -> int | None:
        """Time since the graph contained all events; None until the writer has answered once."""
        with self._graph as graph:
            return max(0, int(time.time() * 1e3) - graph.through_ms) if graph.through_ms else None


def _refusal(code: str, text: str, node: Any) -> HoplineError:
    """The error of a request whose only event, or one of them, was refused, about a node."""
    if code == "unknown_node":
        return NodeNotFound(text, [node])
    return Conflict(text) if code in ("node_exists", "full") else BadRequest(text)


def _whole(changes: Changes, key: str) -> Changes:
    """The changes as a batch of which all is applied, or nothing; events have ids where there is a key.

    The ids depend on the content too: callers may have one key for all of their requests.
    """
    ids: list[str] = []
    if key:
        content = hashlib.blake2b(encode_changes(changes), key=hashlib.sha256(key.encode()).digest())
        ids = [f"keep-{content.hexdigest()[:32]}-{at}" for at in range(changes.num_events)]
    return replace(changes, event_ids=ids, is_whole=True)


def _deliver(deliver: Callable[[Any], object], version: str, outcome: object) -> None:
    """Deliver an outcome; an error says that the nodes are in the graph."""
    if isinstance(outcome, HoplineError):
        name, text, attributes = pack_error(outcome)
        text += f". The inline nodes are in the graph since version {version}: ask for them by their ids"
        outcome = unpack_error((name, text, attributes))
    deliver(outcome)
