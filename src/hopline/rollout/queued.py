"""A version with a queue of its own: admission, batches, deadlines. Subclasses say what it computes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from hopline.config.schema import Config
from hopline.errors import DeadlineExceeded, HoplineError, RateLimited
from hopline.observe.metrics import Gauge, ModelMetrics
from hopline.rollout.counted import CountedVersion
from hopline.rollout.limits import ModelLimits
from hopline.rollout.served import Recorder
from hopline.scheduling.batcher import Batcher
from hopline.scheduling.policy import LANES, NORMAL, BatchPolicy, CostModel
from hopline.scheduling.rate import TokenBucket
from hopline.scheduling.turnstile import Turnstile
from hopline.types import Deliver, ModelInfo, ScoreRequest, ScoreResult


class QueuedRequest(msgspec.Struct, eq=False, gc=False):
    """A request in a version's queue; see `scheduling.item.Item`. To its sender, a `Ticket`."""

    request: ScoreRequest
    deliver: Deliver
    batcher: Batcher[Any, ScoreResult]
    rows: int
    num_bytes: int
    deadline: float
    lane: int = NORMAL
    num_seeds: int = 1
    enqueued: float = 0.0
    ended: bool = False

    @property
    def request_id(self) -> str:
        """For the log."""
        return self.request.request_id

    def cancel(self) -> None:
        """Withdraw the request; nothing is delivered any more."""
        self.batcher.withdraw(self)


ItemT = TypeVar("ItemT", bound=QueuedRequest)


class QueuedVersion(CountedVersion, Generic[ItemT]):
    """Args:
    name, version, graph_version: see `Served`.
    config: limits, batching and compute settings.
    metrics: of this model version.
    executor: runs dear batches.
    recorders: are told of every batch.
    row_bytes: of working memory, for each predicted row.
    limits: of this model; None takes those of `config`.
    turnstile: shared by all versions on this event loop, so that none holds it for long; None for a version
        that is alone there.
    """

    _item: ClassVar[type[QueuedRequest]] = QueuedRequest
    #: Whether requests may leave a batch and come back.
    _postpones = False
    #: Whether `_predict` knows more than the number of seeds.
    _predicts = False
    #: Predicted rows of a seed.
    _rows_per_seed = 1.0

    def __init__(
        self,
        name: str,
        version: str,
        graph_version: str,
        config: Config,
        metrics: ModelMetrics,
        executor: Executor,
        recorders: Sequence[Recorder] = (),
        *,
        row_bytes: int = 64,
        limits: ModelLimits | None = None,
        turnstile: Turnstile | None = None,
    ) -> None:
        if limits is None:
            limits = ModelLimits.of(config)
        if config.worker.isolated:
            limits = limits.inside()
        super().__init__(name, version, graph_version, config, metrics, recorders)
        self._limits = config.limits
        self._default_timeout_s = limits.timeout_ms / 1e3
        self._max_timeout_s = config.limits.max_timeout_ms / 1e3
        self._row_bytes = row_bytes
        self._lanes = lanes_of(limits)
        self._bucket = bucket_of(limits, config.worker.count)
        self.batcher: Batcher[ItemT, ScoreResult] = Batcher(
            self._run,
            BatchPolicy(
                max_rows=limits.max_batch_rows,
                max_bytes=config.batching.max_bytes,
                queue_delay_s=limits.queue_delay_ms / 1e3,
                max_queue_us=limits.max_queue_ms * 1e3,
                max_queue_rows=limits.max_queue_rows,
                inline_cost_us=config.compute.inline_cost_us,
                max_concurrency=limits.max_concurrency,
                slice_us=config.compute.slice_us,
            ),
            CostModel(),
            executor,
            self,
            turnstile=turnstile,
            share_lane=LANES[limits.priority],
            rows_of=self._rows_of,
        )
        self._gauges: tuple[tuple[Gauge, Callable[[], float]], ...] = (
            (metrics.queue_rows, lambda: self.batcher.queued_rows),
            (metrics.queue_requests, lambda: self.batcher.num_queued),
            (metrics.queue_cost, lambda: self.batcher.queued_s),
            (metrics.queue_age, lambda: self.batcher.oldest_wait_s()),
        )
        for gauge, read in self._gauges:
            gauge.set_function(read)

    # What subclasses say

    def _num_seeds(self, request: ScoreRequest) -> int:
        """How many rows a request asks for.

        Raises: BadRequest: it can never be answered.
        """
        raise NotImplementedError  # abstract

    def _with_cut(self, request: ScoreRequest) -> ScoreRequest:
        """A request that has `as_of`, with an integer there.

        Raises: BadRequest: it is of another unit than the graph's times.
        """
        return request

    def _run(self, batch: list[ItemT]) -> Sequence[ScoreResult | HoplineError | None]:
        """Compute a batch; see `Batcher`."""
        raise NotImplementedError  # abstract

    def _predict(self, item: ItemT) -> None:
        """Set the rows and bytes of a request by what it asks for."""

    def _rows_of(self, batch: Sequence[ItemT]) -> int:
        """Rows that the batch which has just run read."""
        return sum([item.rows for item in batch])

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """As `Served.info`."""
        raise NotImplementedError  # abstract

    def warm_up(self) -> None:
        """As `Served.warm_up`."""
        raise NotImplementedError  # abstract

    # Served

    def submit(self, request: ScoreRequest, deliver: Deliver) -> ItemT:
        """Check a request and queue it; `deliver` is called with its outcome.

        Raises:
            BadRequest, RequestTooLarge: it can never be answered; nothing was queued.
            RateLimited, DeadlineExceeded, Overloaded, Unavailable: it cannot be answered now.
        """
        try:
            if request.as_of is not None:
                request = self._with_cut(request)
            num_seeds = self._num_seeds(request)
            now = time.monotonic()
            deadline = request.deadline
            if deadline is None:
                deadline = now + self._default_timeout_s
            elif deadline <= now:
                raise DeadlineExceeded("the request's deadline had passed when it arrived")
            else:
                deadline = min(deadline, now + self._max_timeout_s)
            rows = int(num_seeds * self._rows_per_seed)
            item: Any = self._item(
                request, deliver, self.batcher, rows, rows * self._row_bytes, deadline,
                self._lanes[request.priority], num_seeds,
            )  # fmt: skip
            if self._predicts:
                self._predict(item)
            if self._bucket is not None and not self._is_rehearsing:
                take(self._bucket, now)
                self._submit_paid(item, self._bucket)
            else:
                self.batcher.submit(item)
        except HoplineError as error:
            self.outcome(error.code)
            self._tell([request], [error], [0.0], 0.0)
            raise
        return item  # type: ignore[no-any-return]

    def _submit_paid(self, item: ItemT, bucket: TokenBucket) -> None:
        """Queue a request that took a token, which it gets back where it is refused."""
        try:
            self.batcher.submit(item)
        except HoplineError:
            bucket.put()
            raise

    def turn_away(self) -> None:
        """Refuse the next request unread, where `submit` would refuse it whatever it says.

        Not where recorders are to be told what was asked.

        Raises: RateLimited, Overloaded.
        """
        if self._recorders:
            return
        try:
            if self._bucket is not None:
                check(self._bucket, time.monotonic())
            self.batcher.check_open()
        except HoplineError as error:
            self.outcome(error.code)
            raise

    @property
    def queued_rows(self) -> int:
        """Predicted rows that wait."""
        return self.batcher.queued_rows

    def close(self, why: str) -> None:
        """Take no more requests; those taken still finish."""
        self.batcher.close(why)

    async def join(self) -> None:
        """Wait until every request taken has its outcome."""
        await self.batcher.join()

    async def release(self) -> None:
        """Nothing is held but memory, which neither gauges nor the queue must keep."""
        for gauge, read in self._gauges:
            gauge.unset_function(read)
        self._gauges = ()
        self.bring_in()
        self.batcher.release()

    # Observer of the batcher

    def batch(
        self,
        items: Sequence[ItemT],
        outcomes: Sequence[ScoreResult | HoplineError | None],
        queue_s: Sequence[float],
        compute_s: float,
    ) -> None:
        """Take note of a batch that ran."""
        away_s: Sequence[float] = ()
        if self._postpones:
            items, outcomes, queue_s, away_s = self._settled(items, outcomes, queue_s, compute_s)
        stages = self._stages()
        self._note(len(items), queue_s, compute_s, stages, away_s)
        if self._recorders and items:
            self._tell([item.request for item in items], outcomes, queue_s, compute_s, stages, away_s)

    def late(self, item: ItemT, error: HoplineError) -> None:
        """Take note of a request whose deadline passed, or which gave way to another one."""
        if self._recorders:
            self._tell([item.request], [error], [time.monotonic() - item.enqueued], 0.0)

    def postponed(self, item: ItemT) -> None:
        """Only versions that wait for something have such items."""
        raise AssertionError(f"{self.name} postpones nothing")

    def larger(self, item: ItemT) -> None:
        """Remember a request that was larger than predicted; for versions that count rows."""

    def _settled(
        self,
        items: Sequence[ItemT],
        outcomes: Sequence[ScoreResult | HoplineError | None],
        queue_s: Sequence[float],
        compute_s: float,
    ) -> tuple[
        Sequence[ItemT],
        Sequence[ScoreResult | HoplineError | None],
        Sequence[float],
        Sequence[float],
    ]:
        """A batch without the requests that left it; what the others waited in the queue and elsewhere."""
        raise AssertionError(f"{self.name} postpones nothing")

    def _cpu_s(self) -> float:
        return self.batcher.cpu_s

    def _stages(self) -> dict[str, float]:
        """Seconds of the last batch by stage; {} where they are not told apart.

        The same stages each time. What is left of the batch's time is its stage "post": answers are split,
        encoded and sent.
        """
        return {}


def lanes_of(limits: ModelLimits) -> dict[str, int]:
    """Lane by what requests say: one that says nothing, or normal, has the model's own class."""
    return {**LANES, "normal": LANES[limits.priority]}


def bucket_of(limits: ModelLimits, num_workers: int) -> TokenBucket | None:
    """One worker's share of a model's rate; None where there is no limit."""
    if not limits.rate_per_s:
        return None
    burst = limits.burst or limits.rate_per_s
    return TokenBucket(limits.rate_per_s / num_workers, burst / num_workers, time.monotonic())


def take(bucket: TokenBucket, now: float) -> None:
    """Take a token.

    Raises: RateLimited: there is none; says when there will be.
    """
    wait_s = bucket.take(now)
    if wait_s:
        raise _limited(bucket, wait_s)


def check(bucket: TokenBucket, now: float) -> None:
    """See whether there is a token.

    Raises: RateLimited: there is none; says when there will be.
    """
    wait_s = bucket.wait_s(now)
    if wait_s:
        raise _limited(bucket, wait_s)


def _limited(bucket: TokenBucket, wait_s: float) -> RateLimited:
    return RateLimited(
        f"this model takes {bucket.rate:g} requests a second (rate_per_s); the next one in "
        f"{max(wait_s, 0.001):.3f} s",
        retry_after_s=wait_s,
    )
