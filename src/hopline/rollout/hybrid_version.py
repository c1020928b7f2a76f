"""A graph model with a table file: known nodes are looked up, new and changed ones computed.

What `ServedVersion` is, and what a request is wholly looked up for never comes to it (`direct.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from hopline.engine.final_rows import Cold, FinalRows
from hopline.errors import HoplineError, Unavailable
from hopline.observe.metrics import Counter
from hopline.rollout.direct import ANSWERED, Bringing, DirectAnswers
from hopline.rollout.queued import take
from hopline.rollout.served import Ran
from hopline.rollout.table_files import replaced
from hopline.rollout.version import ServedVersion
from hopline.types import Deliver, ScoreRequest, ScoreResult

log = logging.getLogger(__name__)

#: Answers whose times wait to be brought into the metrics.
_TOGETHER = 256
#: Seconds between looks whether a file has been replaced.
_LOOK_S = 2.0

Tables = Mapping[str, FinalRows]


class HybridVersion(ServedVersion):
    """See the module; made like `ServedVersion`, then given its tables."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._direct: DirectAnswers | None = None
        self._tables: Tables = {}
        self._rows_total: Callable[[str], Counter] | None = None
        self._readers: Executor | None = None
        self._bringing: set[Bringing] = set()
        self._quiet: asyncio.Event | None = None
        self._closing = ""
        self._following: asyncio.Task[None] | None = None
        #: What recorders are to be told after this turn of the loop.
        self._untold: tuple[list[ScoreRequest], list[ScoreResult | HoplineError | None], list[float]] = (
            [], [], [],
        )  # fmt: skip

    def use(self, tables: Tables, rows_total: Callable[[str], Counter], executor: Executor) -> None:
        """Look up what these tables have; after `warm_up`, which is there to compute.

        Args:
            rows_total: outcome -> counter of rows.
            executor: has threads that wait for disks.
        """
        self._rows_total = rows_total
        self._readers = executor
        self._put(tables)

    def follow(self, reopen: Callable[[], Tables]) -> None:
        """Take up files that replace those in use, from now on; `reopen` is called on a thread."""
        self._following = asyncio.ensure_future(self._follow(reopen))

    # Served

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Any:
        """As `Served.submit`; delivers before it returns where all rows can be looked up."""
        return self._submitted(request, deliver, may_bring=True)

    def turn_away(self) -> None:
        """Nobody is refused unread: a look-up takes no place in the queue."""

    def close(self, why: str) -> None:
        """Take no more requests; those whose rows are being read still go the ordinary way."""
        self._closing = why
        if not self._bringing:
            super().close(why)

    async def join(self) -> None:
        """Wait until every request taken has its outcome."""
        while self._bringing:
            self._quiet = asyncio.Event()
            await self._quiet.wait()
        await super().join()
        self._flush()

    async def release(self) -> None:
        """As `Served.release`."""
        if self._following is not None:
            self._following.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._following
        await super().release()
        direct, self._direct = self._direct, None
        if direct is not None:
            direct.close()
        self._tables = self._answerer.rows = {}

    def bring_in(self) -> None:
        """The same, and what was looked up."""
        super().bring_in()
        direct = self._direct
        if direct is None or self._rows_total is None:
            return
        for counts in (direct.counts, self._answerer.row_counts):
            for outcome, count in counts.items():
                if count:
                    counts[outcome] -= count
                    self._rows_total(outcome).inc(count)
        seconds, direct.seconds = direct.seconds, []
        if not seconds:
            return
        count, used_s = len(seconds), sum(seconds)
        metrics = self._metrics
        metrics.total.observe_all(seconds)
        metrics.stage("lookup").observe_all(seconds)
        metrics.queue.observe_all([0.0] * count)
        metrics.charge(self._prices, used_s)
        self.outcome("ok", count)
        self.num_batches += count
        self.success_s += used_s
        self.last_inference_ms = int(time.time() * 1e3)

    # Inside

    def _submitted(self, request: ScoreRequest, deliver: Deliver, *, may_bring: bool) -> Any:
        direct = self._direct
        if (
            direct is None
            or request.inline
            or request.as_of is not None
            or request.columns is not None
            or request.is_copy
            or (self._closing and may_bring)
            or len(request.nodes) > self._max_nodes
        ):
            return self._queued(request, deliver, is_new=may_bring)
        began = time.perf_counter()
        deadline = request.deadline
        if deadline is not None and deadline <= time.monotonic():
            return self._queued(request, deliver, is_new=may_bring)
        result = direct.answer(request, began)
        if type(result) is ScoreResult:
            if self._bucket is not None:
                self._take_token(request)
            direct.seconds.append(time.perf_counter() - began)
            deliver(result)
            if len(direct.seconds) >= _TOGETHER:
                self.bring_in()
            if self._recorders:
                self._tell_later(request, result, direct.seconds[-1] if direct.seconds else 0.0)
            return ANSWERED
        if result is None or not may_bring:
            return self._queued(request, deliver, is_new=may_bring)
        assert isinstance(result, list)
        return self._bring(request, deliver, result)

    def _queued(self, request: ScoreRequest, deliver: Deliver, *, is_new: bool) -> Any:
        if self._closing and is_new:
            self._refuse(request, Unavailable(self._closing))
        return super().submit(request, deliver)

    def _take_token(self, request: ScoreRequest) -> None:
        assert self._bucket is not None
        try:
            take(self._bucket, time.monotonic())
        except HoplineError as error:
            self._refuse(request, error)

    def _refuse(self, request: ScoreRequest, error: HoplineError) -> None:
        self.outcome(error.code)
        self._tell([request], [error], [0.0], 0.0)
        raise error

    def _bring(self, request: ScoreRequest, deliver: Deliver, cold: list[Cold]) -> Bringing:
        """Have the rows read, then go on."""
        began = time.monotonic()
        deadline = request.deadline
        if deadline is None:
            deadline = began + self._default_timeout_s
        deadline = min(deadline, began + self._max_timeout_s)

        def again() -> Any:
            try:
                return self._submitted(request, deliver, may_bring=False)
            except HoplineError as error:
                deliver(error)
            finally:
                self._brought(bringing)

        def expired(error: HoplineError) -> None:
            self.outcome(error.code)
            deliver(error)
            self._tell([request], [error], [time.monotonic() - began], 0.0)
            self._brought(bringing)

        def cancelled() -> None:
            self.outcome("cancelled")
            self._brought(bringing)

        bringing = Bringing(cold, deadline, self._readers, again, expired, cancelled)
        self._bringing.add(bringing)
        return bringing

    def _brought(self, bringing: Bringing) -> None:
        self._bringing.discard(bringing)
        if not self._bringing:
            if self._closing:
                super().close(self._closing)
            if self._quiet is not None:
                self._quiet.set()

    def _put(self, tables: Tables) -> None:
        self.bring_in()
        before, self._direct = self._direct, None
        if before is not None:
            before.close()
        self._tables = tables
        self._answerer.rows = tables
        if tables:
            self._direct = DirectAnswers(
                tables, self.model, self.name, self.version, self.default_outputs, self.output_names
            )

    async def _follow(self, reopen: Callable[[], Tables]) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            if not replaced(self._tables):
                continue
            try:
                tables = await asyncio.to_thread(reopen)
            except HoplineError as error:
                log.error("%s/%s keeps the table that it has: %s", self.name, self.version, error)
                await asyncio.sleep(30 * _LOOK_S)
                continue
            self._put(tables)
            log.info("%s/%s has a new table", self.name, self.version)

    def _tell_later(self, request: ScoreRequest, result: ScoreResult, seconds: float) -> None:
        requests, outcomes, times = self._untold
        if not requests:
            asyncio.get_running_loop().call_soon(self._flush)
        requests.append(request)
        outcomes.append(result)
        times.append(seconds)

    def _flush(self) -> None:
        requests, outcomes, times = self._untold
        if not requests:
            return
        self._untold = ([], [], [])
        mean_s = sum(times) / len(times)
        ran = Ran(self, requests, outcomes, [0.0] * len(requests), mean_s, {"lookup": mean_s}, time.time())
        for recorder in self._recorders:
            recorder.record(ran)
