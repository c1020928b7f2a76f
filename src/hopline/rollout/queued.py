"""A version with a queue of its own: admission, batches, deadlines, counts. Subclasses say what it computes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, ClassVar, Generic, TypeVar

import msgspec

from hopline.config import Config
from hopline.errors import DeadlineExceeded, HoplineError
from hopline.observe.metrics import ModelMetrics
from hopline.rollout.served import Ran, Recorder
from hopline.scheduling.batcher import Batcher
from hopline.scheduling.policy import BatchPolicy, CostModel
from hopline.types import Deliver, ModelInfo, ScoreRequest, ScoreResult

#: Batches whose figures wait to be brought into the metrics.
_RAN_TOGETHER = 64


class QueuedRequest(msgspec.Struct, eq=False, gc=False):
    """A request in a version's queue; see `scheduling.batcher.Item`. To its sender, a `Ticket`."""

    request: ScoreRequest
    deliver: Deliver
    batcher: Batcher[Any, ScoreResult]
    rows: int
    num_bytes: int
    deadline: float
    enqueued: float = 0.0
    ended: bool = False

    def cancel(self) -> None:
        """Withdraw the request; nothing is delivered any more."""
        self.batcher.withdraw(self)


ItemT = TypeVar("ItemT", bound=QueuedRequest)


class QueuedVersion(Generic[ItemT]):
    """Args:
    name, version, graph_version: see `Served`.
    config: limits, batching and compute settings.
    metrics: of this model version.
    executor: runs dear batches.
    recorders: are told of every batch.
    rows_per_seed, row_bytes: predict what a request costs.
    """

    _item: ClassVar[type[QueuedRequest]] = QueuedRequest

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
        rows_per_seed: float = 1.0,
        row_bytes: int = 64,
    ) -> None:
        self.name = name
        self.version = version
        self.graph_version = graph_version
        self._limits = config.limits
        self._default_timeout_s = config.limits.default_timeout_ms / 1e3
        self._max_timeout_s = config.limits.max_timeout_ms / 1e3
        self._metrics = metrics
        self._recorders = tuple(recorders)
        self._rows_per_seed = rows_per_seed
        self._row_bytes = row_bytes
        batching = config.batching
        self.batcher: Batcher[ItemT, ScoreResult] = Batcher(
            self._run,
            BatchPolicy(
                max_rows=batching.max_rows,
                max_bytes=batching.max_bytes,
                queue_delay_s=batching.queue_delay_ms / 1e3,
                max_queue_rows=batching.max_queue_rows,
                inline_cost_us=config.compute.inline_cost_us,
            ),
            CostModel(),
            executor,
            self,
        )
        self._ran: list[tuple[int, Sequence[float], float, float]] = []
        self.num_ok = self.num_failed = self.num_batches = 0
        self.success_s = self.queue_s = 0.0
        self.last_inference_ms = 0

    # What subclasses say

    def _num_seeds(self, request: ScoreRequest) -> int:
        """How many rows a request asks for.

        Raises: BadRequest: it can never be answered.
        """
        raise NotImplementedError  # abstract

    def _run(self, batch: list[ItemT]) -> Sequence[ScoreResult | HoplineError | None]:
        """Compute a batch; see `Batcher`."""
        raise NotImplementedError  # abstract

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
            DeadlineExceeded, Overloaded, Unavailable: it cannot be answered now.
        """
        try:
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
            item: Any = self._item(request, deliver, self.batcher, rows, rows * self._row_bytes, deadline)
            self.batcher.submit(item)
        except HoplineError as error:
            self.outcome(error.code)
            self._tell([request], [error], [0.0], 0.0)
            raise
        return item  # type: ignore[no-any-return]

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
        """Nothing is held but memory."""

    def statistics(self) -> dict[str, Any]:
        """Counters in the form of the protocol's ModelStatistics."""
        self.bring_in()
        success = {"count": self.num_ok, "ns": int(self.success_s * 1e9)}
        queue = {"count": self.num_ok, "ns": int(self.queue_s * 1e9)}
        return {
            "name": self.name,
            "version": self.version,
            "last_inference": self.last_inference_ms,
            "inference_count": self.num_ok,
            "execution_count": self.num_batches,
            "inference_stats": {
                "success": success,
                "fail": {"count": self.num_failed, "ns": 0},
                "queue": queue,
                "compute_input": {"count": 0, "ns": 0},
                "compute_infer": success,
                "compute_output": {"count": 0, "ns": 0},
            },
        }

    # Observer of the batcher

    def batch(
        self,
        items: Sequence[ItemT],
        outcomes: Sequence[ScoreResult | HoplineError | None],
        queue_s: Sequence[float],
        compute_s: float,
    ) -> None:
        """Take note of a batch that ran."""
        self._ran.append((len(items), queue_s, compute_s, time.time()))
        if len(self._ran) >= _RAN_TOGETHER:
            self.bring_in()
        if self._recorders:
            self._tell([item.request for item in items], outcomes, queue_s, compute_s)

    def late(self, item: ItemT, error: HoplineError) -> None:
        """Take note of a request whose deadline passed."""
        if self._recorders:
            self._tell([item.request], [error], [self._default_timeout_s], 0.0)

    def outcome(self, code: str, count: int = 1) -> None:
        """Count ended requests."""
        if code == "ok":
            self.num_ok += count
        else:
            self.num_failed += count
        if count:
            self._metrics.outcome(code, count)

    def postponed(self, item: ItemT) -> None:
        """Only versions that wait for something have such items."""
        raise AssertionError(f"{self.name} postpones nothing")

    def bring_in(self) -> None:
        """Bring the batches that ran since into the metrics: together they cost a third of one by one."""
        if not self._ran:
            return
        ran, self._ran = self._ran, []
        metrics = self._metrics
        for num_items, queue_s, compute_s, _ in ran:
            metrics.compute.observe(compute_s)
            metrics.batch_rows.observe(num_items)
            metrics.queue.observe_all(queue_s)
            metrics.total.observe_all([waited + compute_s for waited in queue_s])
            self.queue_s += sum(queue_s)
            self.success_s += num_items * compute_s
        self.num_batches += len(ran)
        self.last_inference_ms = int(ran[-1][3] * 1e3)

    def _stages(self) -> dict[str, float]:
        """Seconds of the last batch by stage; {} where they are not told apart."""
        return {}

    def _tell(
        self,
        requests: Sequence[ScoreRequest],
        outcomes: Sequence[ScoreResult | HoplineError | None],
        queue_s: Sequence[float],
        compute_s: float,
    ) -> None:
        if not self._recorders:
            return
        ran = Ran(self, requests, outcomes, queue_s, compute_s, self._stages(), time.time())
        for recorder in self._recorders:
            recorder.record(ran)
