"""Tools of one worker, with which versions of all kinds are made: settings, metrics, threads, graphs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hopline.answering.computer import Computer
from hopline.answering.limits import ModelLimits
from hopline.answering.queued import QueuedVersion
from hopline.answering.regions import Regions
from hopline.answering.served import Recorder, Scorer
from hopline.config.schema import Config
from hopline.models.model_inputs import SharedInputs
from hopline.observe.metrics import Metrics
from hopline.process.populate import Populator
from hopline.scheduling.admission import open_limits
from hopline.scheduling.token_rate import TokenRates
from hopline.scheduling.turnstile import Turnstile

ResultT = TypeVar("ResultT")

#: Threads for batches that are too dear for the event loop; made when they are needed.
_MAX_THREADS = 64
#: Threads that load: that many units are opened in parallel. Those of `asyncio.to_thread` are for short
#: work.
_LOADING_THREADS = 4
#: Loads under way in a worker, half of them of graphs at addresses. Each has a thread to wait in.
MAX_LOADS = 16


class Tools:
    """See the module.

    Attributes:
        executor: threads for batches that are too dear for the event loop.
        inputs: graphs and feature stores that are open.
        turnstile: shares the event loop out between the queues of all units.
        regions: memory of state caches.
        share: bytes of a state cache of one unit, over all workers.
        token_rates: tokens of generative models that clients may use.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        recorders: Sequence[Recorder],
        resolve: Callable[[str, str | None], Scorer],
    ) -> None:
        self.config = config
        self.metrics = metrics
        self.recorders = recorders
        self.resolve = resolve
        self.executor = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="hopline-compute")
        self._threads = ThreadPoolExecutor(_LOADING_THREADS, thread_name_prefix="hopline-load")
        self._waiting_threads = ThreadPoolExecutor(MAX_LOADS, thread_name_prefix="hopline-wait")
        self.populator = Populator()
        self.inputs = SharedInputs(config, metrics, self._threads, self.populator, self._waiting_threads)
        self.turnstile = Turnstile()
        self.regions = Regions(config.worker.state_cache_fd, config.worker.index)
        self.share = config.state_cache.memory_bytes
        self.token_rates = TokenRates(config.generate.tokens_per_minute, lambda: open_limits(config))

    def queued(self, computer: Computer, limits: ModelLimits) -> QueuedVersion:
        """A version with a queue and batches over what computes its answers."""
        return QueuedVersion(
            computer,
            self.config,
            self.metrics.model(computer.name, computer.version),
            self.executor,
            self.recorders,
            limits=limits,
            turnstile=self.turnstile,
        )

    async def in_thread(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """The result of work that blocks."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def in_waiting_thread(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """The result of work that may wait for a repository or an address."""
        return await asyncio.get_running_loop().run_in_executor(self._waiting_threads, work, *arguments)

    async def close(self) -> None:
        """Close stores and threads."""
        await self.in_thread(self.populator.close)
        await self.inputs.close()
        for threads in (self.executor, self._threads, self._waiting_threads):
            threads.shutdown(wait=False, cancel_futures=True)
