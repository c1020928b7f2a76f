"""The life of the process that writes a live graph: wait for the lock, recover, serve, drain.

Its orders come as one line of JSON on stdin. It reports when it is ready, and stops in order on SIGTERM or
when stdin ends: it does not outlive its parent. Exit codes: 0 stopped in order, 1 it could not start, 3
this process cannot write the graph any more (another one may recover), 4 another process writes instead.

If another process holds the lock of the folder:

        owner's lock says     I belong to a server               I belong to a stream
        it yields             request it over its socket         if it answers there, leave it the folder
        it does not           wait for its end, within a time    leave it the folder

A server's writer has the memory that workers read, so it has priority over the writer of a stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from hopline.brokers.registry import READERS
from hopline.errors import Conflict, HoplineError
from hopline.graph import Graph
from hopline.graph.edge_times import with_likely_unit
from hopline.graph.file_watch import open_compared
from hopline.graph.live.history import make_writer
from hopline.graph.live.home import LOCK, LiveHome
from hopline.graph.live.keeper import GraphKeeper
from hopline.graph.live.lock import Owner, read_owner, this_process
from hopline.graph.live.log import SEGMENT_BYTES
from hopline.graph.live.preflight import preflight
from hopline.graph.live.seen import CAPACITY
from hopline.live.link import WriterLink
from hopline.live.server import WriterCounts, WriterServer
from hopline.process.parent import on_parent_end, read_orders, say_ready
from hopline.process.time_slice import lower_priority

log = logging.getLogger(__name__)

#: Seconds between checks of the lock, and between requests to its owner.
_LOOK_S, _REQUEST_EVERY_S = 0.1, 0.5
#: An owner that yields may first have to read a graph, and to finish a batch and a snapshot.
_YIELDING_S = 60.0
#: Short timeouts, so that the process can stop meanwhile: unanswered requests are repeated.
_CONNECT_S, _ANSWER_S = 0.5, 1.0


class _Relieved(Exception):
    """Another process writes the folder, and continues to."""


async def _taken_over(orders: WriterOrders, base: Graph, stopping: asyncio.Event) -> LiveHome | None:
    """The live folder, once no other process writes there; None if stopped before.

    Raises:
        Relieved: this one yields, and the owner writes.
        Conflict: the owner did not end in time; the message names it.
        HoplineError: as `LiveHome.open`.
    """
    folder, yields, stand_by_s = Path(orders.folder), orders.yields, orders.stand_by_s
    attempt = partial(
        LiveHome.open,
        folder,
        base,
        segment_bytes=orders.segment_bytes,
        verify=orders.verify,
        owner=this_process(orders.run_by, orders.socket, yields),
    )
    began = next_at = time.monotonic()
    logged = answer = ""
    while not stopping.is_set():
        try:
            return await _started(stopping, attempt)
        except Conflict as error:
            conflict = str(error)
        owner = read_owner(folder / LOCK)
        if not logged:
            logged = conflict
            log.info("standing by: %s", logged)
        if yields:
            if not owner.yields or not await _failure(owner, "another writer", WriterLink.welcome):
                raise _Relieved(f"{conflict}; changes are sent to it")
            answer = "it is starting or stopping"
        elif not owner.yields:
            answer = "it does not yield; waiting for it"
        elif time.monotonic() >= next_at:
            answer = await _failure(owner, "the next writer", WriterLink.step_aside) or "it yields"
            next_at = time.monotonic() + _REQUEST_EVERY_S
        if f"{owner}: {answer}" != logged:
            logged = f"{owner}: {answer}"
            log.info("standing by for %s", logged)
        patience_s = max(stand_by_s, _YIELDING_S) if owner.yields else stand_by_s
        if stand_by_s and not yields and time.monotonic() - began >= patience_s:
            raise Conflict(
                f"{conflict}. It did not end within {patience_s:g} s ({answer}): stop it, use another "
                "live.folder, or wait for as long as it runs (live.stand_by_s = 0)"
            )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), _LOOK_S)
    return None


async def _failure(
    owner: Owner, name: str, call: Callable[[WriterLink], Coroutine[Any, Any, object]]
) -> str:
    """Send a request to an owner; return why it failed, "" if it did not."""
    link = WriterLink(Path(owner.socket), name, patience_s=_CONNECT_S, timeout_s=_ANSWER_S, quiet=True)
    link.start()
    try:
        await call(link)
    except HoplineError as error:
        return str(error)
    finally:
        await link.close()
    return ""


ENTRY = "hopline.live.process:main"
READY = "Hopline's live graph is ready"
#: Exit code: another process writes the graph, or will.
RELIEVED = 4
#: Seconds between ticks.
_TICK_S = 0.25
#: Seconds between log lines that report the work done.
_REPORT_EVERY_S = 60.0
P = ParamSpec("P")
ResultT = TypeVar("ResultT")


class WriterOrders(msgspec.Struct, frozen=True):
    """The orders of the process.

    Attributes:
        graph: folder of the graph that the live graph began with.
        folder: the live folder.
        socket: that it listens on.
        run_by: the command that started it, for the message of processes that find the folder in use.
        yields: it gives up the folder to a writer that does not yield.
        stand_by_s: seconds to wait for another writer that does not yield; 0 means for ever.
        memory_fd: descriptor of the memory that is shared with readers; -1 for private memory.
        spare_nodes, spare_edges, num_levels, reads_degrees: as for `make_plan`.
        seen_events: event ids that are remembered.
        segment_bytes: of one file of the log.
        snapshot_bytes, snapshot_s: as for `WriterServer`.
        verify: compare the hashes of the snapshot before using it.
        drain_s: seconds to answer batches that were accepted before SIGTERM.
        ready: descriptor on which it reports that it is ready; -1 for stdout.
        snapshots: address of the snapshots that the hosts of a fleet share; "" for none.
        follows: only a stream changes the graph, and names its versions.
        log_level: of its log, on stderr.
        nice: niceness, so that processes that answer requests run first.
    """

    graph: str
    folder: str
    socket: str
    run_by: str = ""
    yields: bool = False
    stand_by_s: float = 0.0
    memory_fd: int = -1
    spare_nodes: int = 100_000
    spare_edges: int = 1_000_000
    num_levels: int = 3
    reads_degrees: bool = False
    seen_events: int = CAPACITY
    segment_bytes: int = SEGMENT_BYTES
    snapshot_bytes: int = 256 * 2**20
    snapshot_s: float = 3600.0
    verify: bool = True
    drain_s: float = 10.0
    ready: int = -1
    follows: bool = False
    snapshots: str = ""
    log_level: str = "INFO"
    nice: int = 0


def main() -> None:
    """Entry point of the process."""
    import uvloop

    orders = msgspec.json.decode(read_orders(), type=WriterOrders)
    lower_priority(orders.nice)
    logging.basicConfig(
        level=orders.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(_live(orders))
    except HoplineError as error:
        log.error("%s", error)
        code = 1
    sys.exit(code)


async def _live(orders: WriterOrders) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    on_parent_end(stopping.set)
    base = await _started(stopping, open_compared, Path(orders.graph))
    shared = READERS.require("snapshots")(orders.snapshots, base.lineage) if orders.snapshots else None
    if shared is not None:
        await _started(stopping, shared.fetch, Path(orders.folder))
    try:
        home = await _taken_over(orders, base, stopping)
    except _Relieved as error:
        log.info("%s", error)
        return RELIEVED
    if home is None:
        return 0
    server: WriterServer | None = None
    try:
        began = time.perf_counter()
        keeper = await _started(stopping, _recovered, orders, home, base)
        server = WriterServer(
            keeper,
            home.lineage,
            with_likely_unit(base),
            snapshot_bytes=orders.snapshot_bytes,
            snapshot_s=orders.snapshot_s,
            clock=time.monotonic,
            yields=orders.yields,
            publish=None if shared is None else partial(shared.publish, Path(orders.folder)),
        )
        await server.listen(Path(orders.socket))
        log.info("version %d is ready after %.2f s", keeper.sequence, time.perf_counter() - began)
        if orders.ready >= 0:
            say_ready(orders.ready)
        else:  # the stdout of a server only reports the server's address
            print(f"{READY} at {orders.socket} (version {keeper.sequence})", flush=True)
        await _serve(server, stopping)
        if server.relieved.is_set():
            return RELIEVED
        return 3 if server.broken.is_set() else 0
    finally:
        if server is not None:
            await server.drain(orders.drain_s)
        home.close()


async def _started(
    stopping: asyncio.Event, call: Callable[P, ResultT], *args: P.args, **kwargs: P.kwargs
) -> ResultT:
    """Run a call in a thread and return its result.

    If the process is stopped meanwhile, it exits immediately: threads cannot be stopped, no client got a
    promise yet, and a restart handles half-finished work as after kill -9.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call, *args, **kwargs))
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if not work.done():
        log.info("stopped before the graph was ready")
        os._exit(0)
    return work.result()


def _recovered(orders: WriterOrders, home: LiveHome, base: Graph) -> GraphKeeper:
    """Recover the graph from the log, in the memory that readers map."""
    start, fd = home.start, orders.memory_fd
    writer, view = make_writer(
        start,
        home.lineage,
        fd if fd >= 0 else None,
        _now_ms,
        **{
            name: getattr(orders, name)
            for name in ("spare_nodes", "spare_edges", "num_levels", "reads_degrees")
        },
    )
    keeper = GraphKeeper(home, writer, view, _now_ms, orders.seen_events, follows=orders.follows)
    count = keeper.recover()
    plan = writer.memory.plan
    preflight(start.graph.schema, num_levels=plan.num_levels, reads_degrees=plan.reads_degrees)
    log.info("version %d: snapshot %d and %d changes", keeper.sequence, start.state.sequence, count)
    return keeper


async def _serve(server: WriterServer, stopping: asyncio.Event) -> None:
    reasons = (stopping, server.broken, server.relieved)
    ends = {asyncio.ensure_future(reason.wait()) for reason in reasons}
    reported = time.monotonic()
    while not any(reason.is_set() for reason in reasons):
        await asyncio.wait(ends, timeout=_TICK_S, return_when=asyncio.FIRST_COMPLETED)
        await server.tick()
        if time.monotonic() - reported >= _REPORT_EVERY_S:
            reported = time.monotonic()
            report(server)
    for end in ends:
        end.cancel()


def report(server: WriterServer) -> None:
    """Log the work since the last report, and reset the counts."""
    counts, server.counts = server.counts, WriterCounts()
    if counts.steps:
        log.info(
            "%d events in %d batches of %d clients, %d steps of %.2f ms on average, %.1f ms at most",
            counts.events,
            counts.batches,
            server.num_clients,
            counts.steps,
            counts.seconds / counts.steps * 1e3,
            counts.longest_s * 1e3,
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
