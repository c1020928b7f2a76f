"""Keeps a process there for a worker: opens it, watches it, opens another one.

it was lost ──► pause ──► opened ──► serves; after a failure again, with ever longer pauses
it hangs ──► killed ──► it was lost
it takes too much memory ──► another is opened ──► serves; this one finishes what it has, and ends

To open is to start a process, or to connect to one that another worker has started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from hopline.errors import HoplineError
from hopline.process.memory import anonymous_bytes
from hopline.process.silence import Silence, look_s
from hopline.retry import Backoff

log = logging.getLogger(__name__)


class Kept(Protocol):
    """A process that is kept.

    Attributes:
        silence: decides whether it hangs.
        why: why it was killed from here; "" where it was not.
    """

    silence: Silence
    why: str

    def deadlines(self) -> Iterable[float]:
        """Deadlines of what it has not ended, on the clock of `time.monotonic`."""

    def kill(self, why: str) -> None:
        """Kill it immediately; `Keeper.lost` follows."""

    async def retire(self) -> None:
        """Let it finish what it has, and end it."""

    async def end(self) -> None:
        """End it; returns once it is gone or released."""


KeptT = TypeVar("KeptT", bound=Kept)


class Keeper(Generic[KeptT]):
    """See the module. Used from one event loop.

    Args:
        name: of what the process serves, for logs.
        opens: opens a process. It gets the reason why the last one is missing, such as "hung", once for
            each loss: for the metric of a worker that starts another one.
        hang_s: as for `Silence`.
        memory_bytes: a process with more is replaced; 0 for any.
        on_memory: gets the bytes of all processes at each look; None does not measure them.

    Attributes:
        process: serves; None while there is none.
        reason: why there is none; "" while there is one.
    """

    def __init__(
        self,
        name: str,
        opens: Callable[[str], Awaitable[KeptT]],
        hang_s: float,
        memory_bytes: int = 0,
        on_memory: Callable[[float], object] | None = None,
    ) -> None:
        self.process: KeptT | None = None
        self.reason = "its process has not been started"
        self._name = name
        self._open = opens
        self._hang_s = hang_s
        self._memory_bytes = memory_bytes
        self._on_memory = on_memory
        self._backoff = Backoff(0.1, 10.0, spread=0.0)
        self._retiring: dict[KeptT, asyncio.Task[None]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._start_s = self._adopted_at = 0.0

    async def start(self) -> KeptT:
        """Open the first process. Raises: HoplineError, OSError: it cannot be opened."""
        process = await self._opened("")
        self._looking = asyncio.ensure_future(self._look())
        return process

    def processes(self) -> list[KeptT]:
        """All that live, the one that serves last."""
        return [*self._retiring, *([self.process] if self.process is not None else [])]

    def retry_after_s(self) -> float:
        """Seconds until another process is likely to be ready."""
        return self._backoff.wait_s + max(1.0, self._start_s)

    def lost(self, process: KeptT, how: str, *, renew: bool = True) -> None:
        """A process has ended; another is opened if it was the one that served."""
        if process is not self.process:
            return
        self.process = None
        doing = "gave no answer and was killed" if process.why == "hung" else "ended"
        self.reason = f"its process {doing} ({how}); another one is started"
        log.error("%s: process %d: %s", self._name, process.silence.pid, self.reason)
        if renew:
            self._renew(process.why or "died")

    async def stop(self) -> None:
        """End all processes; none is opened any more."""
        tasks = [task for task in (self._looking, self._renewing, *self._retiring.values()) if task]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        processes, self.process = self.processes(), None
        await asyncio.gather(*(process.end() for process in processes))
        if self._on_memory is not None:
            self._on_memory(0.0)

    async def _opened(self, why: str) -> KeptT:
        """Open a process that serves from now on; the one before finishes what it has, and ends."""
        began = time.monotonic()
        process = await self._open(why)
        old, self.process, self.reason = self.process, process, ""
        self._adopted_at = time.monotonic()
        self._start_s = self._adopted_at - began
        if old is not None:
            self._retiring[old] = asyncio.ensure_future(self._retire(old))
        return process

    async def _retire(self, process: KeptT) -> None:
        await process.retire()
        del self._retiring[process]

    def _renew(self, why: str) -> None:
        """Open another process, unless that is under way."""
        if self._renewing is None:
            pause_s = self._backoff.next(time.monotonic() - self._adopted_at)
            self._renewing = asyncio.ensure_future(self._renewed(why, pause_s))

    async def _renewed(self, why: str, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            try:
                process = await self._opened(why)
            except (HoplineError, OSError) as error:
                log.error("%s: a process could not be started: %s", self._name, error)
                self.reason = f"its process could not be started again: {error}"
                why, pause_s = "", self._backoff.next()
                continue
            self._renewing = None
            log.info("%s: process %d serves", self._name, process.silence.pid)
            return

    async def _look(self) -> None:
        """Watch memory, and kill a process that hangs."""
        while True:
            await asyncio.sleep(look_s(self._hang_s))
            process = self.process
            if process is not None and process.silence.look(process.deadlines(), time.monotonic()):
                log.error("%s: process %d gives no answer and is killed", self._name, process.silence.pid)
                process.kill("hung")
                process.silence.reset()
            if self._on_memory is None:
                continue
            taken = {each: anonymous_bytes(each.silence.pid) for each in self.processes()}
            self._on_memory(float(sum(taken.values())))
            limit = self._memory_bytes
            if limit and process is not None and taken[process] > limit and self._renewing is None:
                log.warning(
                    "%s: process %d takes %d bytes (memory_bytes: %d) and is replaced",
                    self._name, process.silence.pid, taken[process], limit,
                )  # fmt: skip
                self._renew("memory")
