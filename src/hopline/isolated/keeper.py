"""Keeps a model's process there: starts it, watches it, replaces it.

it ended ──► failed ── pause ──► started ──► serves
it takes too much memory ──► another is started ──► serves; this one finishes what it has, and ends
it hangs ──► killed ──► it ended
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from typing import Any

from hopline.answering.limits import ModelLimits
from hopline.errors import ConfigError, HoplineError
from hopline.isolated import wire
from hopline.isolated.child import ModelProcess, Owner
from hopline.isolated.memory import anonymous_bytes
from hopline.isolated.starter import ProcessEnded, ProcessStarter
from hopline.observe.metrics import Metrics
from hopline.process.silence import look_s
from hopline.retry import Backoff

log = logging.getLogger(__name__)

#: Until a process must be ready.
_READY_S = 300.0
#: For a process that was replaced to tell the last of its answers after their deadlines.
_GRACE_S = 1.0


class ProcessKeeper:
    """See the module.

    Args:
        orders: for every process.
        limits: of the model.
        metrics: of the server.
        owner: gets the messages of processes.
        starter: starts processes; None creates one.

    Attributes:
        process: that requests go to; None while there is none.
        reason: why there is none.
        ready: what the last one said of itself.
    """

    def __init__(
        self,
        orders: Mapping[str, Any],
        limits: ModelLimits,
        metrics: Metrics,
        owner: Owner,
        starter: ProcessStarter | None = None,
    ) -> None:
        self.process: ModelProcess | None = None
        self.ready: wire.Ready | None = None
        self._backoff = Backoff(0.1, 10.0, spread=0.0)
        self._orders = orders
        self._limits = limits
        self._owner = owner
        self._starter = starter or ProcessStarter()
        self._is_starter_own = starter is None
        self._name, self._version = orders["name"], orders["version"]
        self.reason = f"model {self._name!r}: its process has not been started"
        self._restarts = metrics.model_process_restarts
        self._memory = metrics.gauge(
            "hopline_model_process_memory_bytes",
            "Memory of a model's own processes, without what they share.",
            ("model", "version"),
        )(self._name, self._version)
        self._retiring: dict[ModelProcess, asyncio.Task[None]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._start_s = 0.0
        self._adopted_at = 0.0

    async def begin(self) -> None:
        """Start the first process; once.

        Raises:
            HoplineError: it cannot be opened.
            ConfigError: it takes more than `memory_bytes` already.
        """
        try:
            process = await self._first()
        except BaseException:
            if self._is_starter_own:
                await self._starter.close()
            raise
        self._adopt(process)
        self._looking = asyncio.ensure_future(self._look())

    async def _first(self) -> ModelProcess:
        try:
            process = await self._started()
        except ProcessEnded as error:  # such as one that was killed with the fork server; once more
            log.warning("%s/%s: %s; starting another process", self._name, self._version, error)
            process = await self._started()
        limit, taken = self._limits.memory_bytes, anonymous_bytes(process.pid)
        if limit and taken > limit:
            await process.end()
            raise ConfigError(
                f"memory_bytes: model {self._name!r} takes {taken} bytes before its first request; "
                f"{limit} are allowed"
            )
        return process

    def processes(self) -> list[ModelProcess]:
        """All that live, the one that serves last."""
        return [*self._retiring, *([self.process] if self.process is not None else [])]

    def retry_after_s(self) -> float:
        """Until another process is likely to be ready."""
        return self._backoff.wait_s + max(1.0, self._start_s)

    def lost(self, process: ModelProcess, how: str, *, renew: bool) -> None:
        """A process has ended; another is started if it was the one that served."""
        if process is not self.process:
            return
        self.process = None
        doing = "gave no answer, was killed" if process.why == "hung" else "ended"
        self.reason = f"model {self._name!r}: its process {doing} ({how}) and is being started again"
        log.error("%s/%s: process %d ended (%s)", self._name, self._version, process.pid, how)
        if renew:
            self._renew(process.why or "died")

    async def stop(self) -> None:
        """End all processes; none is started any more."""
        tasks = [task for task in (self._looking, self._renewing, *self._retiring.values()) if task]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        processes, self.process = self.processes(), None
        await asyncio.gather(*(process.end() for process in processes))
        if self._is_starter_own:
            await self._starter.close()
        self._memory.set(0.0)

    async def _started(self) -> ModelProcess:
        began = time.monotonic()
        process = await ModelProcess.start(self._starter, self._orders, self._owner, _READY_S)
        self._start_s = time.monotonic() - began
        return process

    def _adopt(self, process: ModelProcess) -> None:
        """Send requests to it from now on; the one before finishes what it has, and ends."""
        old, self.process = self.process, process
        self.ready = process.ready
        self._adopted_at = time.monotonic()
        if old is not None:
            self._retiring[old] = asyncio.ensure_future(self._retire(old))

    async def _retire(self, process: ModelProcess) -> None:
        last = max((item.deadline for item in process.unanswered.values()), default=0.0)
        try:
            async with asyncio.timeout(max(0.0, last - time.monotonic()) + _GRACE_S):
                await process.idle.wait()
        except TimeoutError:
            process.kill("hung")
        await process.end()
        del self._retiring[process]

    def _renew(self, reason: str) -> None:
        """Start another process, unless that is under way."""
        if self._renewing is None:
            self._restarts(self._name, self._version, reason).inc()
            pause_s = self._backoff.next(time.monotonic() - self._adopted_at)
            self._renewing = asyncio.ensure_future(self._renewed(pause_s))

    async def _renewed(self, pause_s: float) -> None:
        while True:
            await asyncio.sleep(pause_s)
            try:
                process = await self._started()
            except (HoplineError, OSError) as error:
                log.error("%s/%s: a process could not be started: %s", self._name, self._version, error)
                self.reason = f"model {self._name!r}: its process could not be started again: {error}"
                pause_s = self._backoff.next()
                continue
            self._renewing = None
            self._adopt(process)
            log.info("%s/%s: process %d serves", self._name, self._version, process.pid)
            return

    async def _look(self) -> None:
        """Watch memory, and kill a process that hangs."""
        while True:
            await asyncio.sleep(look_s(self._limits.hang_s))
            taken = {process: anonymous_bytes(process.pid) for process in self.processes()}
            self._memory.set(float(sum(taken.values())))
            process = self.process
            if process is None:
                continue
            deadlines = (work.deadline for work in process.unanswered.values())
            if process.silence.look(deadlines, time.monotonic()):
                process.kill("hung")
            limit = self._limits.memory_bytes
            if limit and taken[process] > limit and self._renewing is None:
                log.warning(
                    "%s/%s: process %d takes %d bytes (memory_bytes: %d) and is replaced",
                    self._name, self._version, process.pid, taken[process], limit,
                )  # fmt: skip
                self._renew("memory")
