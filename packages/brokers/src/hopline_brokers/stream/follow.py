"""Runs a stream from start to end: its parts, its progress, its port of metrics, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.live import Live
from rich.text import Text

from hopline.brokers.registry import open_sink, open_source
from hopline.config.folders import live_socket
from hopline.config.schema import Config
from hopline.errors import BadRequest
from hopline.graph.schema import GraphSchema
from hopline.observe.exposition import CONTENT_TYPE, OPEN_METRICS_TYPE, wants_open_metrics
from hopline.observe.metrics import Metrics
from hopline.process.parent import on_parent_end
from hopline.process.time_slice import lower_priority
from hopline_brokers.stream.consumer import Consumer, StreamOptions
from hopline_brokers.stream.dead_letters import (
    DeadLetters,
    Discard,
    FileDeadLetters,
    Refuse,
    SinkDeadLetters,
)
from hopline_brokers.stream.links import OwnWriter, SocketWriter, writer_listens
from hopline_brokers.stream.meters import StreamMetrics
from hopline_brokers.stream.rescore import RescoreOptions, Rescorer
from hopline_brokers.stream.writer import ServiceWait
from turnserve.http1.endpoint import HttpEndpoint
from turnserve.http1.messages import Request, Response

#: Seconds between two lines: on a terminal the line is replaced, else each is a line of the log.
_SCREEN_S, _LOG_S = 0.5, 10.0


class Pace:
    """Computes the progress since the last line from the counters."""

    def __init__(
        self,
        metrics: StreamMetrics,
        lag: Callable[[], Mapping[str, int]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._metrics = metrics
        self._lag = lag
        self._clock = clock
        self._at = clock()
        self._events = metrics.num_events
        self._counts = list(metrics.freshness.counts)

    def line(self) -> str:
        """Events a second, lag, freshness p99 and dead letters since the last line."""
        metrics, now = self._metrics, self._clock()
        rate = (metrics.num_events - self._events) / max(now - self._at, 1e-9)
        recent = [new - old for new, old in zip(metrics.freshness.counts, self._counts, strict=True)]
        self._at, self._events, self._counts = now, metrics.num_events, list(metrics.freshness.counts)
        lag = self._lag()
        applied, again = metrics.outcome("applied"), metrics.outcome("duplicate")
        num_letters = metrics.num_events - applied - again
        return (
            f"{rate:,.0f} events/s · lag {f'{sum(lag.values()):,}' if lag else '?'} · "
            f"freshness p99 {_p99(metrics.freshness.bounds, recent)} · {applied:,} applied, "
            f"{again:,} duplicates, {num_letters:,} dead letters"
        )


async def show(pace: Pace, quiet: bool = False) -> None:
    """Update the line until cancelled."""
    console = Console(stderr=True)
    if quiet:
        return
    if not console.is_terminal:
        while True:
            await asyncio.sleep(_LOG_S)
            print(pace.line(), file=sys.stderr, flush=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            live.update(Text(pace.line()), refresh=True)
            await asyncio.sleep(_SCREEN_S)


def _p99(bounds: tuple[float, ...], counts: list[int]) -> str:
    total = sum(counts)
    if not total:
        return "–"
    rank, before = 0.99 * total, 0
    edges = list(pairwise((0.0, *bounds)))
    for (low, high), count in zip(edges, counts, strict=False):
        if before + count >= rank:
            return f"{1e3 * (low + (high - low) * (rank - before) / count):,.0f} ms"
        before += count
    return f"> {bounds[-1]:g} s"


_TEXT = b"text/plain; charset=utf-8"
#: Bytes of a request's body: none is read.
_MAX_BODY_BYTES = 1024


@contextlib.asynccontextmanager
async def metrics_port(metrics: Metrics, host: str, port: int) -> AsyncIterator[int]:
    """A port with /metrics and /healthz, open while it is entered.

    Args:
        host, port: address; port 0 chooses a free port.
    Yields: the port.
    Raises: BadRequest: cannot listen on the port.
    """

    def answer(request: Request) -> Response:
        path = request.target.partition(b"?")[0]
        if request.method not in (b"GET", b"HEAD"):
            return Response(b"GET only\n", 405, _TEXT)
        if path == b"/metrics":
            is_open = wants_open_metrics(request.headers.get(b"accept"))
            kind = OPEN_METRICS_TYPE if is_open else CONTENT_TYPE
            return Response(metrics.render(open_metrics=is_open), content_type=kind)
        if path == b"/healthz":
            return Response(b"ok\n", content_type=_TEXT)
        return Response(b"/metrics and /healthz are here\n", 404, _TEXT)

    def refusal(status: int, text: str) -> Response:
        return Response(text.encode(), status, _TEXT)

    endpoint = HttpEndpoint(answer, refusal, max_body_bytes=_MAX_BODY_BYTES)
    loop = asyncio.get_running_loop()
    endpoint.tick(loop.time())
    try:
        server = await loop.create_server(endpoint, host, port)
    except OSError as error:
        raise BadRequest(f"--metrics-port {port}: cannot listen on {host}: {error.strerror}") from None

    async def tick() -> None:
        while True:
            await asyncio.sleep(1.0)
            endpoint.tick(loop.time())

    ticks = asyncio.create_task(tick())
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        ticks.cancel()
        server.close()
        endpoint.abort()
        await server.wait_closed()


logger = logging.getLogger("hopline.stream")

#: Seconds from the stop of a server's stream until messages that were taken are given up.
_END_S = 1.0
#: New objects after which the garbage collector runs: about a few batches' worth.
_YOUNG = 100_000


@dataclass(frozen=True, slots=True)
class Rescoring:
    """Nodes that are scored again, and the destination of results.

    Attributes:
        every_s: seconds between rounds; 0 means immediately.
        server: URL of the server that scores.
        results: address of a topic.
        node_type: None means the graph's only one.
    """

    every_s: float
    server: str
    model: str
    results: str
    node_type: str | None = None
    api_key: str | None = None
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Stream:
    """The stream to follow.

    Attributes:
        source: address of the events.
        config: the graph and its live folder.
        dead_letters: address of a topic, a file, "discard", or None stops at the first dead letter.
        metrics_host, metrics_port: -1 is off, 0 chooses a free port.
        setting: name of the setting with the source, for errors.
    """

    source: str
    config: Config
    dead_letters: str | None = None
    rescoring: Rescoring | None = None
    metrics_host: str = "127.0.0.1"
    metrics_port: int = -1
    quiet: bool = False
    options: StreamOptions = field(default_factory=StreamOptions)
    setting: str = "--from"


def run(work: Coroutine[Any, Any, None], nice: int) -> None:
    """Run a stream's work in this process, which the process of a server may interrupt."""
    lower_priority(nice)
    # Thousands of messages are allocated and freed, and none is part of a cycle.
    gc.freeze()
    gc.set_threshold(_YOUNG)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


async def follow(stream: Stream, on_current: Callable[[], object] | None = None) -> None:
    """Follow a stream until SIGTERM or SIGINT; messages that were taken are finished.

    Args:
        on_current: called once, when the graph has all that the broker has. Then this process belongs to a
            server, which has a writer, and ends with it.
    Raises: StreamStopped: an event at which the stream must stop. HoplineError: it cannot start or
        continue.
    """
    source = open_source(stream.source, stream.setting)
    dead_letters = _dead_letters(stream.dead_letters)
    path = live_socket(stream.config)
    registry = Metrics()
    metrics = StreamMetrics(registry)
    async with contextlib.AsyncExitStack() as stack:
        if stream.metrics_port >= 0:
            port = await stack.enter_async_context(
                metrics_port(registry, stream.metrics_host, stream.metrics_port)
            )
            logger.info("metrics at http://%s:%d/metrics", stream.metrics_host, port)
        if on_current is None and not writer_listens(path):
            await stack.enter_async_context(OwnWriter(stream.config))
        writer = SocketWriter(path)
        writer.start()
        stack.push_async_callback(writer.close)
        standing = await ServiceWait(metrics.waiting).until_done("writer", writer.standing)
        rescorer = None
        if stream.rescoring is not None:
            rescorer = await _rescorer(stream.rescoring, writer, metrics, standing.schema, stack)
            await rescorer.open(standing.positions, standing.sequence)
        consumer = Consumer(
            source,
            writer,
            dead_letters,
            metrics,
            stream.options,
            listener=rescorer,
            on_current=None if on_current is None else partial(_caught_up, writer, on_current),
        )
        loop = asyncio.get_running_loop()
        if on_current is not None:
            on_parent_end(consumer.stop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, consumer.stop)
        pace = Pace(metrics, lambda: consumer.intake.lag)
        background = [asyncio.create_task(show(pace, stream.quiet))]
        if rescorer is not None:
            background.append(asyncio.create_task(rescorer.run()))
        running = asyncio.create_task(consumer.run(standing))
        if on_current is not None:
            background.append(asyncio.create_task(_ended(consumer, running)))
        try:
            await asyncio.wait(
                [running, *([] if on_current else background[1:])], return_when=asyncio.FIRST_COMPLETED
            )
            if not running.done():  # scoring failed permanently: results would be missing
                consumer.stop()
            try:
                await running
            except asyncio.CancelledError:
                return  # a restart resumes at the positions that the graph has
            for task in background[1:]:
                if task.done():
                    await task
        finally:
            for task in [*background, running]:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task
        if rescorer is not None:
            await rescorer.catch_up()
            await consumer.commit()
        logger.info("stopped: %s", pace.line())


async def _ended(consumer: Consumer, running: asyncio.Task[None]) -> None:
    """Cancel what does not end soon after the stop: the writer may have ended first."""
    await consumer.stopping.wait()
    await asyncio.sleep(_END_S)
    running.cancel()


async def _caught_up(writer: SocketWriter, on_current: Callable[[], object]) -> None:
    await writer.caught_up()
    on_current()


def _dead_letters(address: str | None) -> DeadLetters:
    if address is None:
        return Refuse()
    if address == "discard":
        return Discard()
    if "://" in address:
        return SinkDeadLetters(open_sink(address, "--dead-letters"))
    return FileDeadLetters(Path(address))


async def _rescorer(
    wanted: Rescoring,
    writer: SocketWriter,
    metrics: StreamMetrics,
    schema: GraphSchema,
    stack: contextlib.AsyncExitStack,
) -> Rescorer:
    node_type = wanted.node_type
    if node_type is None and len(schema.node_types) == 1:
        node_type = next(iter(schema.node_types))
    if node_type not in schema.node_types:
        raise BadRequest(
            f"--node-type: {node_type!r} is not in the graph; name the node type that "
            f"{wanted.model!r} scores: {', '.join(schema.node_types)}"
        )
    from hopline.jobs.targets import ServerTarget

    scorer = await stack.enter_async_context(ServerTarget(wanted.server, wanted.api_key, wanted.token))
    sink = open_sink(wanted.results, "--results")
    options = RescoreOptions(wanted.model, node_type, wanted.every_s)
    rescorer = Rescorer(writer, scorer, sink, metrics, options)
    stack.push_async_callback(rescorer.close)
    return rescorer
