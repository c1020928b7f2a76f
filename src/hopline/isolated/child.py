"""One life of a model's own process, as its server sees it: started, asked, ended."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

from hopline.errors import BadRequest, ModelNotReady
from hopline.isolated import wire
from hopline.isolated.starter import ProcessEnded, ProcessStarter, StartedChild
from hopline.process.child import exit_reason
from hopline.process.silence import Silence
from hopline.process.wire import WireError
from hopline.scheduling.work import Work
from hopline.types import UNREADABLE

if TYPE_CHECKING:
    from hopline.isolated.version import ProcessVersion

log = logging.getLogger(__name__)

#: Seconds until a process is ready, ends after it was asked to or closed its end of the socket, and reports
#: its last answers after their deadlines once it is replaced.
_READY_S, _END_S, _GRACE_S = 300.0, 5.0, 1.0


class ModelProcess(asyncio.Protocol):
    """See the module; made by `start`.

    Attributes:
        ready: what it said when it was.
        is_up: whether it can be asked.
        unanswered: number -> request, until the process has reported its end; also those whose senders have
            their answers, since the process may still be at work on them.
        idle: set whenever nothing is unanswered.
        silence: decides whether it hangs.
        num_batches, state_cache_hits, state_cache_misses, cpu_s: as it last said.
        why: why it was killed from here; "" where it was not.
    """

    def __init__(self, owner: ProcessVersion) -> None:
        self._owner = owner
        self.ready: wire.Ready | None = None
        self.is_up = False
        self.unanswered: dict[int, Work] = {}
        self.idle = asyncio.Event()
        self.idle.set()
        self.silence: Silence
        self.num_batches = 0
        self.state_cache_hits = self.state_cache_misses = self.cpu_s = 0.0
        self.why = ""
        self._process: StartedChild | None = None
        self._frames = wire.frames()
        self._transport: asyncio.Transport | None = None
        self._opened: asyncio.Future[wire.Ready] = asyncio.get_running_loop().create_future()
        self._leaving: asyncio.Task[None] | None = None
        self._next_number = 1
        self._boarding: list[Work] = []
        self._dropped: list[int] = []

    @classmethod
    async def start(
        cls, starter: ProcessStarter, orders: Mapping[str, Any], owner: ProcessVersion
    ) -> ModelProcess:
        """Start a process and wait until its model is ready.

        Args:
            starter: begins it.
            orders: as `main` reads them.
            owner: is notified of what happens from then on.

        Raises:
            HoplineError: why the model cannot be opened.
            ProcessEnded: the process ended instead.
            ModelNotReady: it took too long.
        """
        self = cls(owner)
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
        """Ask; goes out together with what else is asked in this turn of the loop."""
        work.number, self._next_number = self._next_number, self._next_number + 1
        self.unanswered[work.number] = work
        work.holder = self
        self.idle.clear()
        if not self._boarding and not self._dropped:
            asyncio.get_running_loop().call_soon(self._depart)
        self._boarding.append(work)

    def withdraw(self, work: Work) -> None:
        """As `Holder.withdraw`: the process is asked to drop the request."""
        self._owner.withdrawn(work)
        if work.number not in self.unanswered:
            return
        if not self._boarding and not self._dropped:
            asyncio.get_running_loop().call_soon(self._depart)
        self._dropped.append(work.number)

    def compare(self, message: wire.Compare) -> None:
        """Send copies; `ProcessVersion.compared` follows."""
        assert self._transport is not None
        self._transport.write(wire.frame(message))

    def settle(self, number: int) -> Work | None:
        """The process has reported the end of a request: it is answered."""
        work = self.unanswered.pop(number, None)
        if not self.unanswered:
            self.idle.set()
        return work

    # Kept

    def deadlines(self) -> Iterable[float]:
        """As `Kept.deadlines`."""
        return (work.deadline for work in self.unanswered.values())

    async def retire(self) -> None:
        """As `Kept.retire`."""
        last = max(self.deadlines(), default=0.0)
        try:
            async with asyncio.timeout(max(0.0, last - time.monotonic()) + _GRACE_S):
                await self.idle.wait()
        except TimeoutError:
            self.kill("hung")
        await self.end()

    def kill(self, why: str) -> None:
        """Kill it immediately; `ProcessVersion.lost` follows."""
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
            self.kill("told")
            await process.wait()
        if self._transport is not None:
            self._transport.abort()
        if self._leaving is not None:
            await self._leaving

    def _depart(self) -> None:
        boarding, self._boarding = self._boarding, []
        dropped, self._dropped = self._dropped, []
        if not self.is_up:
            return  # lost meanwhile: `ProcessVersion.lost` sees to them
        assert self._transport is not None
        asked = [
            (work.number, wire.pack_request(work.request, work.deadline))
            for work in boarding
            if not work.ended
        ]
        for work in boarding:
            if work.ended:  # withdrawn before it was sent
                self.settle(work.number)
        try:
            if asked:
                self._transport.write(wire.frame(wire.Ask(asked)))
        except (TypeError, ValueError, OverflowError, NotImplementedError):
            for number, fields in asked:
                try:
                    self._transport.write(wire.frame(wire.Ask([(number, fields)])))
                except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
                    unsent = self.settle(number)
                    assert unsent is not None
                    self._owner.refused(self, unsent, BadRequest(f"the request holds a value: {error}"))
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
        self._leaving = asyncio.ensure_future(self._see_off())

    def data_received(self, data: bytes) -> None:
        """Messages of the process."""
        try:
            for view in self._frames.feed(data):
                self._hear(wire.from_model.decode(view))
        except (WireError, *UNREADABLE) as error:
            log.error("model process %d sent an invalid message (%s); killing it", self.pid, error)
            self.kill("garbled")

    def _hear(self, message: wire.FromModel) -> None:
        if isinstance(message, wire.Tell):
            self.silence.reset(is_progress=bool(message.results))
            self._owner.told(self, message)
        elif isinstance(message, wire.Beat):
            self.silence.reset(is_progress=message.num_batches > self.num_batches)
            self._owner.beat(self, message)
        elif isinstance(message, wire.Compared):
            self.silence.reset()
            self._owner.compared(self, message)
        elif not self._opened.done():
            if isinstance(message, wire.Ready):
                self._opened.set_result(message)
            else:
                self._opened.set_exception(wire.unpack_error(message.error))

    async def _see_off(self) -> None:
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
            self._owner.lost(self, how)
