"""The writer's end of the socket: applies batches of all clients in order, many in one step.

    connections ─► waiting batches ─► one thread: all that wait, a version each, one fdatasync ─► answers

While one step is made durable, the next batches gather: one sync of the disk serves all batches that came
meanwhile. That thread begins snapshots, and another one writes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hopline.errors import (
    BadRequest,
    ConfigError,
    Conflict,
    GraphError,
    HoplineError,
    LogDamaged,
    Unavailable,
)
from hopline.graph.live import codec
from hopline.graph.live.changes import Changes
from hopline.graph.schema import GraphSchema
from hopline.live import wire
from hopline.process.listeners import listen_at
from hopline.process.wire import Refusal, WireError, pack_error

if TYPE_CHECKING:
    from hopline.graph.live.keeper import GraphKeeper

log = logging.getLogger(__name__)

#: Batches and events of one step: more wait for the next step, so that the first are not delayed.
_MAX_BATCHES, _MAX_EVENTS = 256, 50_000
#: Bytes that may wait before connections are not read any more.
_MAX_WAITING_BYTES = 64 * 2**20
#: Prefix of the names of clients that follow a stream.
FOLLOWS = "hopline stream"
ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class _Waiting:
    """The batches of one message, waiting."""

    number: int
    batches: list[Changes]
    num_bytes: int
    writer: asyncio.StreamWriter

    @property
    def num_events(self) -> int:
        return sum(batch.num_events for batch in self.batches)


@dataclass(slots=True)
class WriterCounts:
    """Counts since the last report: steps, their batches and events, and seconds of steps."""

    steps: int = 0
    batches: int = 0
    events: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0


class WriterServer:
    """Serves the writer's socket: applies batches, answers queries and writes snapshots.

    Args:
        keeper: recovered already. One thread calls all of its methods except `write_snapshot`.
        lineage, schema: of the graph.
        snapshot_bytes: a snapshot is written when this many bytes would have to be read again; 0 means
            never.
        snapshot_s: and when the last one is this old, if anything changed; 0 means never.
        clock: monotonic seconds.
        yields: True if it gives up the folder when another writer asks.
        publish: called in a thread with each snapshot that was written; None for nothing.

    Attributes:
        counts: since the last report; replace it to reset. totals: since the writer started.
        broken: set when the graph cannot be written any more; the process must end.
        relieved: set when the folder was promised to another writer; the process must end.
    """

    def __init__(
        self,
        keeper: GraphKeeper,
        lineage: str,
        schema: GraphSchema,
        *,
        snapshot_bytes: int,
        snapshot_s: float,
        clock: Callable[[], float],
        yields: bool = False,
        publish: Callable[[Any], object] | None = None,
    ) -> None:
        self._publish = publish
        self.counts, self.totals = WriterCounts(), WriterCounts()
        self.broken, self.relieved = asyncio.Event(), asyncio.Event()
        self._yields = yields
        self._keeper = keeper
        self._welcome = wire.frame(wire.Welcome(lineage, schema))
        self._snapshot_bytes, self._snapshot_s = snapshot_bytes, snapshot_s
        self._clock = clock
        self._snapshot_at = clock()
        self._snapshot: asyncio.Task[None] | None = None
        self._problem = ""
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._arrived, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()
        self._thread = ThreadPoolExecutor(1, "live-graph")
        self._loop_task: asyncio.Task[None] | None = None
        self._listener: asyncio.Server | None = None
        self._path: Path | None = None
        self._talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._draining = False
        #: Clients that follow a stream.
        self._followers = 0

    @property
    def num_clients(self) -> int:
        """The number of connected clients."""
        return len(self._talks)

    async def listen(self, path: Path) -> None:
        """Accept clients.

        Raises: ConfigError: the path cannot be a socket, or another writer listens there.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"live graph: cannot listen at {path}: {error}") from None
        self._listener = await listen_at(path, self._talk, "live graph", "writer")
        self._path = path
        self._loop_task = asyncio.ensure_future(self._work())

    async def drain(self, timeout_s: float) -> None:
        """Accept no more clients and messages, and answer accepted ones within a time."""
        self._draining = True
        if self._listener is not None:
            self._listener.close()
            for _ in range(3):  # so that connections that were just accepted are handled
                await asyncio.sleep(0)
        for talk in list(self._talks):
            talk.cancel()  # stops reading; its batches keep the connection
        self._arrived.set()
        if self._loop_task is not None:
            await asyncio.wait({self._loop_task}, timeout=timeout_s)
            self._loop_task.cancel()
        if self._snapshot is not None:
            await asyncio.wait({self._snapshot}, timeout=timeout_s)
        ending = pack_error(Unavailable("the writer is ending"))
        for left in self._waiting:
            left.writer.write(wire.frame(wire.Failed(left.number, ending)))
        await asyncio.gather(*(_closed(writer) for writer in self._talks.values()))
        if self._talks:
            await asyncio.wait(self._talks, timeout=1.0)
        if self._path is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._thread.shutdown(wait=True)

    async def tick(self) -> None:
        """Do periodic work; call it at intervals. Begins a snapshot when one is due. If no batch waits,
        confirms that the graph is up to date, unless it follows a stream: its reader confirms that.
        """
        keeper, age = self._keeper, self._clock() - self._snapshot_at
        if not (self._waiting or self._followers or keeper.follows or self._draining):
            await self._in_thread(keeper.confirm)
        due = self._snapshot_bytes and keeper.bytes_since_snapshot >= self._snapshot_bytes
        due = due or bool(
            self._snapshot_s and age >= self._snapshot_s and keeper.sequence > keeper.snapshot_sequence
        )
        # A failed snapshot is not retried immediately.
        if due and (self._snapshot is None or self._snapshot.done()) and (not self._problem or age >= 10.0):
            self._snapshot = asyncio.ensure_future(self._write_snapshot())

    async def _write_snapshot(self) -> None:
        self._snapshot_at, began = self._clock(), self._clock()
        try:
            draft = await self._in_thread(self._keeper.begin_snapshot)
            if draft is None:
                return
            entry = await asyncio.to_thread(self._keeper.write_snapshot, draft)
            self._problem = ""
            log.info(
                "snapshot of version %d written in %.1f s",
                self._keeper.snapshot_sequence,
                self._clock() - began,
            )
        except GraphError as error:
            self._problem = str(error)
            log.error("no snapshot was written: %s; the log keeps growing", error)
            return
        if self._publish is not None:
            try:
                await asyncio.to_thread(self._publish, entry)
            except GraphError as error:
                log.error("%s; new hosts start from an older snapshot", error)

    async def _in_thread(self, call: Callable[..., ResultT], *args: Any) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client until it disconnects."""
        talk = asyncio.current_task()
        assert talk is not None
        if self._draining:
            writer.close()
            return
        self._talks[talk] = writer
        name, follows = "a client", False
        try:
            async with asyncio.timeout(5):
                hello = await wire.receive(reader, wire.from_client)
            if not isinstance(hello, wire.Hello):
                raise WireError("the first message is not a hello")
            name = hello.name
            if text := wire.WIRE.refusal(hello.protocol, "it", "the writer"):
                log.warning("%s was refused: %s", name, text)
                writer.write(wire.frame(Refusal(text)))
                return
            writer.write(self._welcome)
            follows = hello.name.startswith(FOLLOWS)
            self._followers += follows
            while True:
                await self._room.wait()
                await self._handle(await wire.receive(reader, wire.from_client), writer)
        except (EOFError, OSError, TimeoutError):
            pass  # the client disconnected; its batches are applied
        except WireError as error:
            log.error("the connection of %s is cut: %s", name, error)
        except asyncio.CancelledError:  # the drain: answers still follow
            return
        finally:
            self._followers -= follows
            if not self._draining:
                self._talks.pop(talk, None)
                writer.close()

    async def _handle(self, message: wire.FromClient, writer: asyncio.StreamWriter) -> None:
        if isinstance(message, wire.Hello):
            raise WireError("a second hello")
        if isinstance(message, wire.Call):
            try:
                answer = await self._answer(message)
            except HoplineError as error:
                answer = wire.Failed(message.number, pack_error(error))
            writer.write(wire.frame(answer))
            if message.what == "step_aside" and isinstance(answer, wire.Status):
                log.info("another writer takes over: finishing accepted batches")
                self.relieved.set()
            return
        try:
            batches = [codec.decode_changes(data) for data in message.batches]
        except BadRequest as error:
            writer.write(wire.frame(wire.Failed(message.number, pack_error(error))))
            return
        num_bytes = sum(map(len, message.batches))
        self._waiting.append(_Waiting(message.number, batches, num_bytes, writer))
        self._waiting_bytes += num_bytes
        if self._waiting_bytes > _MAX_WAITING_BYTES:
            self._room.clear()
        self._arrived.set()

    async def _answer(self, call: wire.Call) -> wire.FromWriter:
        if call.what == "affected":
            sequence, nodes = await self._in_thread(self._keeper.affected, call.since)
            return wire.Affected(call.number, sequence, {k: wire.pack_ids(ids) for k, ids in nodes.items()})
        if call.what == "step_aside" and not self._yields:
            raise Conflict("the writer belongs to a server and stops only with that server")
        if call.what == "caught_up":
            await self._in_thread(self._keeper.caught_up)
        if call.what == "snapshot":
            if self._snapshot is None or self._snapshot.done():
                self._snapshot = asyncio.ensure_future(self._write_snapshot())
            await asyncio.shield(self._snapshot)
            if self._problem:
                raise GraphError(self._problem)
        if call.what == "drop_history":
            if self._snapshot is not None:
                await asyncio.wait({self._snapshot})
            await self._in_thread(self._keeper.home.drop_history)
        return await self._in_thread(self._status, call.number)

    def _status(self, number: int) -> wire.Status:
        keeper = self._keeper
        return wire.Status(
            number,
            keeper.sequence,
            keeper.snapshot_sequence,
            keeper.bytes_since_snapshot,
            keeper.filled,
            dict(keeper.positions),
            self._problem,
            self.totals.steps,
            self.totals.events,
            self.totals.seconds,
        )

    async def _work(self) -> None:
        """Apply waiting batches, until the drain or until the graph cannot be written."""
        while not self.broken.is_set():
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting and not self.broken.is_set():
                await self._step(self._take())
            if self._draining:
                return

    def _take(self) -> list[_Waiting]:
        """The batches of the next step."""
        taken = [self._waiting.popleft()]
        num_batches, num_events = len(taken[0].batches), taken[0].num_events
        while self._waiting:
            num_batches += len(self._waiting[0].batches)
            num_events += self._waiting[0].num_events
            if num_batches > _MAX_BATCHES or num_events > _MAX_EVENTS:
                break
            taken.append(self._waiting.popleft())
        self._waiting_bytes -= sum(each.num_bytes for each in taken)
        if self._waiting_bytes <= _MAX_WAITING_BYTES:
            self._room.set()
        return taken

    async def _step(self, taken: list[_Waiting]) -> None:
        began = self._clock()
        try:
            outcomes = await self._in_thread(
                self._keeper.apply, [batch for each in taken for batch in each.batches]
            )
        except BadRequest as error:  # caused by one message: the others must not fail with it
            if len(taken) > 1:
                for each in taken:
                    await self._step([each])
                return
            self._fail(taken, error)
        except HoplineError as error:
            self._fail(taken, error)
            if isinstance(error, LogDamaged):
                log.error("the live graph cannot be written any more: %s", error)
                self.broken.set()
        except Exception as error:  # task boundary: clients wait for answers, and the memory may be wrong
            log.exception("a step failed; the writer ends, and the next one recovers what is durable")
            self._fail(taken, Unavailable(f"the writer failed: {type(error).__name__}: {error}"))
            self.broken.set()
        else:
            took, encoded = self._clock() - began, map(codec.encode_applied, outcomes)
            for counts in (self.counts, self.totals):
                counts.steps += 1
                counts.batches += sum(len(each.batches) for each in taken)
                counts.events += sum(each.num_events for each in taken)
                counts.seconds += took
                counts.longest_s = max(counts.longest_s, took)
            for each in taken:
                answer = wire.Outcomes(each.number, list(islice(encoded, len(each.batches))))
                if not each.writer.is_closing():
                    each.writer.write(wire.frame(answer))

    def _fail(self, taken: list[_Waiting], error: HoplineError) -> None:
        for each in taken:
            if not each.writer.is_closing():
                each.writer.write(wire.frame(wire.Failed(each.number, pack_error(error))))


async def _closed(writer: asyncio.StreamWriter) -> None:
    """Flush a connection, and close it."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(1.0):
            try:
                await writer.drain()
            finally:
                writer.close()
            await writer.wait_closed()
