"""Runs a watch: connects the parts, restores the saved state, and stops at SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from hopline.config.schema import LogConfig
from hopline.errors import HoplineError
from hopline.observe.logs import configure_logs
from hopline_mesh.changes import Context
from hopline_mesh.collect import QuerySet
from hopline_mesh.detect import DetectorSettings, MeshDetector
from hopline_mesh.incident import Verdict
from hopline_mesh.kubernetes.watcher import kubernetes_watch
from hopline_mesh.out.alerts import alerts_of
from hopline_mesh.out.board import Board
from hopline_mesh.out.metrics import MeshMetrics
from hopline_mesh.out.serve import Outputs
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.settings import MeshSettings
from hopline_mesh.snapshot import Gap, Snapshot
from hopline_mesh.state.keeper import Keeper
from hopline_mesh.watch import parts
from hopline_mesh.watch.judge import Judge
from hopline_mesh.watch.loop import Source, Watch
from hopline_mesh.watch.resume import resume
from hopline_mesh.watch.ticks import Ticks
from hopline_mesh.watch.trainer import Trainer

logger = logging.getLogger("hopline_mesh")

#: Seconds that the first verdict waits for the first lists of Kubernetes objects.
_LISTED_S = 5.0


@dataclass(frozen=True, slots=True)
class Started:
    """The report of a start.

    Attributes:
        lines: for people.
        page: URL of the page; "" if it is off.
    """

    lines: tuple[str, ...]
    page: str


class Feed(Protocol):
    """A mesh that replaces Prometheus and Kubernetes, with a separate clock, such as a simulated one.

    Attributes:
        name: for people.
        schema: of the snapshots.
        speed: seconds of its clock per second.
    """

    name: str
    schema: Schema
    speed: float

    def clock(self) -> float:
        """Return the time of its clock, Unix seconds."""
        ...

    def detector(self, settings: DetectorSettings) -> MeshDetector:
        """Return the detector; it may be fitted already."""
        ...

    async def collect(self, now_s: float) -> Snapshot:
        """Return the mesh in the interval that ends now."""
        ...

    def context(self, now_s: float) -> tuple[Context, tuple[Gap, ...]]:
        """Return planned changes and troubles, and gaps."""
        ...

    def on_verdict(self, verdict: Verdict) -> bool:
        """Receive each verdict; return True to stop the watch."""
        ...


def run(
    settings: MeshSettings,
    started: Callable[[Started], None] = lambda started: None,
    feed: Feed | None = None,
) -> None:
    """Watch until SIGTERM or SIGINT.

    Args:
        started: called when all ports are open.
        feed: the mesh to watch; None: that of Prometheus and Kubernetes.

    Raises:
        HoplineError: the watch cannot start; the message gives the reason.
    """
    log = LogConfig(level=settings.log.log_level, format=settings.log.log_format)
    configure_logs(log, ("hopline", "hopline_mesh", "turnserve"))
    asyncio.run(watch(settings, started, feed))


async def watch(
    settings: MeshSettings, started: Callable[[Started], None], feed: Feed | None = None
) -> None:
    """See `run`."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    interval_s = settings.source.interval_s
    async with contextlib.AsyncExitStack() as stack:
        queries = parts.queries_of(settings)
        schema = queries.schema() if feed is None else feed.schema
        shape = parts.shape_of(settings, schema)
        metrics = MeshMetrics()
        clock = time.time if feed is None else feed.clock
        board = Board(interval_s=interval_s, metrics=metrics, clock=clock)
        board.links = settings.alerts.links
        # First, because a port that is in use must be reported before a long restore.
        outputs = Outputs(board, settings.serve, settings.alerts.page_url)
        await outputs.start()
        stack.push_async_callback(outputs.stop)
        files = stack.enter_context(contextlib.ExitStack())
        folder, why_not = parts.folder_of(settings, files)
        fresh = partial(MeshDetector if feed is None else feed.detector, settings.detector)
        resumed = resume(folder, fresh, schema=schema, shape=shape, board=board)
        alerts = alerts_of(settings, metrics, outputs.link)
        stack.push_async_callback(alerts.close, 2.0)
        board.restore_marks(resumed.note.get("marks", {}))
        if "alerts" in resumed.note:
            try:
                alerts.restore(resumed.note["alerts"])
            except HoplineError as error:
                logger.warning("state: %s", error)
        keeper = Keeper(folder, why_not)
        trainer = Trainer(
            folder.folder,
            settings.detector,
            interval_s,
            trained=resumed.trained,
            outcome=lambda outcome: metrics.fine_tunes(outcome).inc(),
            abnormal=resumed.note.get("abnormal"),
            is_real=board.is_real,
        )
        judge = Judge(
            resumed.detector,
            keeper,
            shape=shape,
            checkpoint_s=settings.state.state_interval_s,
            learning=trainer,
            shown=board.export,
        )
        metrics.thresholds = lambda: judge.detector.thresholds
        source: Source
        if feed is None:
            source, context = await _measured(settings, queries, resumed.roster, metrics, stack)
        else:
            source, context = feed, feed.context
        one = Watch(
            judge,
            source,
            context,
            board,
            alerts,
            keeper,
            longest_s=parts.deadline_s(settings) + max(1.0, interval_s),
        )
        board.live = one.live
        started(_started(settings, feed, resumed.summary, outputs, why_not))
        try:
            if feed is None:
                await one.run(Ticks(interval_s, resumed.last_s), stop)
            else:
                ticks = Ticks(interval_s, wall=feed.clock, monotonic=feed.clock, speed=feed.speed)
                await one.run(ticks, stop, feed.on_verdict)
        finally:
            await one.close()


async def _measured(
    settings: MeshSettings,
    queries: QuerySet,
    roster: Roster,
    metrics: MeshMetrics,
    stack: contextlib.AsyncExitStack,
) -> tuple[Source, Callable[[float], tuple[Context, tuple[Gap, ...]]]]:
    """Return a source of snapshots from Prometheus, and one of planned changes from Kubernetes."""
    client = parts.prometheus_of(settings)
    stack.push_async_callback(client.close)
    collector = parts.collector_of(settings, client, queries, roster, on_report=metrics.collected)
    cluster = await stack.enter_async_context(kubernetes_watch(settings))
    await cluster.wait_listed(_LISTED_S)
    return collector, lambda now_s: (cluster.context(now_s), cluster.gaps())


def _started(
    settings: MeshSettings, feed: Feed | None, restored: str, outputs: Outputs, why_not: str
) -> Started:
    source = settings.source
    where = ", ".join(source.namespaces) or "all namespaces"
    alertmanagers = ", ".join(settings.alerts.alertmanager_urls)
    unlinked = "" if outputs.link else "; without links to the page: page_url is not set"
    watched = f"{source.mesh} in {where} of {source.prometheus_url}" if feed is None else feed.name
    lines = [
        f"watching {watched}, every {source.interval_s:g} s",
        f"page     {outputs.url or 'off'}",
        f"gRPC     {settings.serve.host}:{outputs.grpc_port}" if outputs.grpc_port else "gRPC     off",
        f"alerts   to {alertmanagers}{unlinked}"
        if alertmanagers
        else "alerts   none: no Alertmanager is configured",
        f"state    {why_not}" if why_not else f"state    {settings.state.state_dir}: {restored}",
    ]
    return Started(tuple(lines), outputs.url)
