"""One life of a model's own process, as its server sees it: started, given requests, ended."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, cast

from hopline.answering.outcome_counts import OutcomeCounts
from hopline.errors import BadRequest, ModelNotReady
from hopline.isolated import wire
from hopline.isolated.starter import ProcessEnded, ProcessStarter, StartedChild
from hopline.process.child import exit_reason
from hopline.process.silence import Silence
from hopline.process.wire import WireError, pack_error, unpack_error
from hopline.scheduling.work import Work
from hopline.types import UNREADABLE

log = logging.getLogger(__name__)

#: Seconds until a process is ready, ends after an order to or closed its end of the socket, and reports
#: its last answers after their deadlines once it is replaced.
_READY_S, _END_S, _GRACE_S = 300.0, 5.0, 1.0


class ProcessUser(Protocol):
    """Receiver of a process's reports. Called on the event loop."""

    def answered(self, process: ModelProcess, outcomes: wire.Ended) -> None:
        """Requests have ended: call `ModelProcess.settle` for each."""

    def beat(self, process: ModelProcess, beat: wire.Beat) -> None:
        """The process reports its counts; those of the beat before are still in its attributes."""

    def lost(self, process: ModelProcess, how: str) -> None:
        """The process has ended; what it had is still in its attributes."""


class ModelProcess(asyncio.Protocol):
    """See the module; made by `start`.

    Attributes:
        ready: its first message.
        is_up: true while it can be given requests.
        unanswered: number -> request, until the process has reported its end; also those whose senders have
            their answers, since the process may still be at work on them.
        idle: set whenever nothing is unanswered.
        comparisons: callbacks of copies that are compared, oldest first.
        silence: decides whether it hangs.
        num_batches, state_cache_hits, state_cache_misses, cpu_s, due: of its last beat.
        why: why it was killed from here; "" where it was not.
    """

    def __init__(self, user: ProcessUser) -> None:
        self._user = user
        self.ready: wire.Loaded | None = None
        self.is_up = False
        self.unanswered: dict[int, Work] = {}
        self.idle = asyncio.Event()
        self.idle.set()
        self.comparisons: deque[Callable[[OutcomeCounts], object]] = deque()
        self.silence: Silence
        self.num_batches = 0
        self.state_cache_hits = self.state_cache_misses = self.cpu_s = 0.0
        self.due = math.inf
        self.why = ""
        self._process: StartedChild | None = None
        self._frames = wire.frames()
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[wire.Loaded] = asyncio.get_running_loop().create_future()
        self._ending: asyncio.Task[None] | None = None
        self._next_number = 1
        self._outbox: list[Work] = []
        self._dropped: list[int] = []

    @classmethod
    async def start(
        cls, starter: ProcessStarter, orders: Mapping[str, Any], user: ProcessUser
    ) -> ModelProcess:
        """Start a process and wait until its model is ready.

        Raises:
            HoplineError: why the model cannot be opened.
            ProcessEnded: the process ended instead.
            ModelNotReady: it took too long.
        """
        self = cls(user)
        name = orders["name"]
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            async with asyncio.timeout(_READY_S):
                with theirs:
                    self._process = await starter.begin(orders, theirs)
                self.silence = Silence(self._process.pid, orders["limits"]["hang_s"])
                await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=ours)
                self.ready = await self._opened
        except BaseException as error:
            if self._process is not None:
                await self.end(0)
            if self._transport is None:
                ours.close()
            if isinstance(error, TimeoutError):
                raise ModelNotReady(
                    f"model {name!r}: its process was not ready in {_READY_S:g} s"
                ) from None
            raise
        self.is_up = True
        return self

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    def send(self, work: Work) -> None:
        """Send a request, together with the others of this turn of the loop."""
        work.number, self._next_number = self._next_number, self._next_number + 1
        self.unanswered[work.number] = work
        self.idle.clear()
        self._send_soon()
        self._outbox.append(work)

    def drop(self, work: Work) -> None:
        """Have the process drop a request that has ended, if it has that."""
        if self.unanswered.get(work.number) is work:
            self._send_soon()
            self._dropped.append(work.number)

    def _send_soon(self) -> None:
        if not self._outbox and not self._dropped:
            asyncio.get_running_loop().call_soon(self._flush)

    def compare(self, message: wire.Compare, on_counts: Callable[[OutcomeCounts], object]) -> None:
        """Send copies."""
        assert self._transport is not None
        self._transport.write(wire.frame(message))
        self.comparisons.append(on_counts)

    def settle(self, number: int) -> Work | None:
        """The process has reported the end of a request: it is answered."""
        work = self.unanswered.pop(number, None)
        if not self.unanswered:
            self.idle.set()
        return work

    # Kept

    def deadlines(self) -> Iterable[float]:
        """As `Kept.deadlines`."""
        yield self.due
        yield from (work.deadline for work in self.unanswered.values())

    async def retire(self) -> None:
        """As `Kept.retire`."""
        last = max((work.deadline for work in self.unanswered.values()), default=0.0)
        try:
            async with asyncio.timeout(max(0.0, last - time.monotonic()) + _GRACE_S):
                await self.idle.wait()
        except TimeoutError:
            self.kill("hung")
        await self.end()

    def kill(self, why: str) -> None:
        """Kill it immediately; `ProcessUser.lost` follows."""
        self.why = self.why or why
        if self._process is not None:
            self._process.kill()

    async def end(self, patience_s: float = _END_S) -> None:
        """Have it finish and end, within `patience_s` seconds; returns once it is gone."""
        self.is_up = False
        process = self._process
        assert process is not None
        process.stop()
        try:
            async with asyncio.timeout(patience_s):
                await process.wait()
        except TimeoutError:
            self.kill("ended")
            await process.wait()
        if self._transport is not None:
            self._transport.abort()
        if self._ending is not None:
            await self._ending

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        dropped, self._dropped = self._dropped, []
        if not self.is_up:
            return  # lost meanwhile: `ProcessUser.lost` fails them
        assert self._transport is not None
        for work in outbox:
            if work.ended:  # withdrawn before it was sent
                self.settle(work.number)
        packed = [
            (work.number, wire.pack_request(work.request, work.deadline))
            for work in outbox
            if not work.ended
        ]
        try:
            if packed:
                self._transport.write(wire.frame(wire.Submit(packed)))
        except wire.UNSENDABLE:
            for number, fields in packed:
                try:
                    self._transport.write(wire.frame(wire.Submit([(number, fields)])))
                except wire.UNSENDABLE as error:
                    refused = pack_error(BadRequest(f"the request holds a value: {error}"))
                    self._user.answered(self, wire.Ended([], [(number, refused)], []))
        numbers = [number for number in dropped if number in self.unanswered]
        if numbers:
            self._transport.write(wire.frame(wire.Drop(numbers)))

    # Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Before the process has even begun."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not derived from it

    def connection_lost(self, exc: Exception | None) -> None:
        """The process has ended, or is about to."""
        self.is_up = False
        self._ending = asyncio.ensure_future(self._wait_for_exit())

    def data_received(self, data: bytes) -> None:
        """Messages of the process."""
        try:
            for view in self._frames.feed(data):
                self._receive(wire.from_model.decode(view))
        except (WireError, *UNREADABLE) as error:
            log.error("model process %d sent an invalid message (%s); killing it", self.pid, error)
            self.kill("garbled")

    def _receive(self, message: wire.FromModel) -> None:
        if isinstance(message, wire.Ended):
            self.silence.reset(is_progress=bool(message.results))
            self._user.answered(self, message)
        elif isinstance(message, wire.Beat):
            self.silence.reset(is_progress=message.num_batches > self.num_batches)
            self._user.beat(self, message)
            self.due = message.due
        elif isinstance(message, wire.Compared):
            self.silence.reset()
            self.comparisons.popleft()(message.tally)
        elif not self._opened.done():
            if isinstance(message, wire.Loaded):
                self._opened.set_result(message)
            else:
                self._opened.set_exception(unpack_error(message.error))

    async def _wait_for_exit(self) -> None:
        """Wait for its exit status; one that only closed the socket is killed."""
        process = self._process
        assert process is not None
        try:
            async with asyncio.timeout(_END_S):
                code = await process.wait()
        except TimeoutError:
            self.kill("mute")
            code = await process.wait()
        how = exit_reason(code)
        if not self._opened.done():
            self._opened.set_exception(ProcessEnded(f"its process ended ({how}) before it was ready"))
        elif self.ready is not None:
            self._user.lost(self, how)
