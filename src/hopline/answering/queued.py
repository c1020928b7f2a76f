"""A version with a queue: requests are admitted, batched and given to a computer."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, TypeAlias

from hopline.answering.computer import Computer, Fetch
from hopline.answering.counted_version import CountedVersion
from hopline.answering.limits import ModelLimits
from hopline.answering.served import Recorder, WatchedFiles
from hopline.config.schema import Config
from hopline.errors import HoplineError
from hopline.observe.metrics import Gauge, ModelMetrics
from hopline.scheduling.admission import Admission, Deadlines, open_limits
from hopline.scheduling.batcher import Batcher
from hopline.scheduling.limiter import Rate
from hopline.scheduling.policy import LANES, BatchPolicy, CostModel
from hopline.scheduling.turnstile import SHARES, Turnstile
from hopline.scheduling.work import Work
from hopline.types import AnyArray, ModelInfo, ScoreRequest, ScoreResult

if TYPE_CHECKING:
    from hopline.answering.lookup import LookUp
    from hopline.engine.model import Model
    from hopline.scheduling.shared_limiter import Bucket

_Outcomes: TypeAlias = Sequence[ScoreResult | HoplineError | None]


class QueuedVersion(CountedVersion):
    """A `Version` that gives a computer batches of requests.

    Args:
        computer: used by nothing else.
        config: limits, batching and compute settings.
        metrics: of this model version.
        executor: runs dear batches.
        recorders: see `Recorder`; called after every batch.
        limits: of this model; None takes those of `config`.
        turnstile: shared by all versions on this event loop, so that none holds it for long; None for a
            version that is alone there.
        clock: seconds, monotonic.

    Attributes:
        computer: as given.
        queue: of requests that were admitted.
        look_up: answers requests out of precomputed rows before they are queued; None where there are none.
        files: that the computer reads; None where they are not watched.
    """

    files: WatchedFiles | None = None

    def __init__(
        self,
        computer: Computer,
        config: Config,
        metrics: ModelMetrics,
        executor: Executor,
        recorders: Sequence[Recorder] = (),
        *,
        limits: ModelLimits | None = None,
        turnstile: Turnstile | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if limits is None:
            limits = ModelLimits.of(config)
        if config.worker.isolated:
            limits = limits.inside()
        super().__init__(
            computer.name, computer.version, computer.graph_version, config, metrics, recorders, clock
        )
        self.computer = computer
        self.look_up: LookUp | None = None
        self.admission = admission_of(f"{self.name}/{self.version}", limits, config, clock=clock)
        self.queue = Batcher(
            computer.run,
            BatchPolicy(
                max_rows=limits.max_batch_rows,
                max_bytes=config.batching.max_bytes,
                queue_delay_s=limits.queue_delay_ms / 1e3,
                max_queue_us=limits.max_queue_ms * 1e3,
                max_queue_rows=limits.max_queue_rows,
                inline_cost_us=config.compute.inline_cost_us,
                slice_us=config.compute.slice_us,
            ),
            CostModel(),
            executor,
            self,
            clock,
            turn=None if turnstile is None else turnstile.enter(SHARES[LANES[limits.priority]]),
            rows_of=computer.rows_of,
        )
        self.admission.retry_after_s = self.queue.retry_after_s
        computer.attach(self.queue)
        self._gauges: tuple[tuple[Gauge, Callable[[], float]], ...] = (
            (metrics.queue_rows, lambda: self.queue.queued_rows),
            (metrics.queue_requests, lambda: self.queue.num_queued),
            (metrics.queue_cost, lambda: self.queue.queued_s),
            (metrics.queue_age, lambda: self.queue.oldest_wait_s()),
        )
        for gauge, read in self._gauges:
            gauge.set_function(read)

    # Version

    def accept(self, work: Work) -> None:
        """As `Scorer.accept`.

        Raises:
            BadRequest, RequestTooLarge: it can never be answered; nothing was queued.
            RateLimited, DeadlineExceeded, Overloaded, Unavailable: it cannot be answered now.
        """
        if self.look_up is None or not self.look_up.takes(work):
            self.enqueue(work)

    def enqueue(self, work: Work) -> None:
        """Check a request, admit it and queue it; raises as `accept`."""
        computer, admission = self.computer, self.admission
        try:
            if work.request.as_of is not None or computer.excludes:
                work.request = computer.resolved(work.request)
            work.num_seeds = num_seeds = computer.num_seeds(work.request)
            if work.admission is None:  # a look-up may have admitted it
                admission.admit(work)
            work.rows = rows = int(num_seeds * computer.rows_per_seed)
            work.num_bytes = rows * computer.row_bytes
            request = work.request
            described = request.inline or request.context or request.edits
            if computer.predicts or described or request.exclude_seed_edges:
                computer.predict(work)
            if admission.has_rate and not self.is_in_preflight:
                self._put_paid(work)
            else:
                self.queue.put(work)
        except HoplineError as error:
            self.refuse(work, error)
            raise

    def _put_paid(self, work: Work) -> None:
        """Queue a request that takes a token, which is returned where the queue refuses it."""
        self.admission.pay()
        try:
            self.queue.put(work)
        except HoplineError:
            self.admission.refund()
            raise

    def reject_early(self) -> None:
        """As `Scorer.reject_early`; not where recorders get every request, or a look-up may answer."""
        if self._recorders or self.look_up is not None:
            return
        try:
            self.admission.check()
        except HoplineError as error:
            self.outcome(error.code)
            raise

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """As `Scorer.info`."""
        return self.computer.info(versions)

    def warm_up(self) -> None:
        """As `Version.warm_up`."""
        self.computer.warm_up()

    def examples(self, count: int) -> Sequence[ScoreRequest]:
        """As `SupportsPreflight.examples`."""
        return self.computer.examples(count)

    def preprocessed(self, request: ScoreRequest) -> Mapping[str, AnyArray] | None:
        """As `Preprocessing.preprocessed`."""
        return self.computer.preprocessed(request)

    def graph_model(self) -> Model | None:
        """As `ReadsGraph.graph_model`."""
        return self.computer.graph_model()

    @property
    def queued_rows(self) -> int:
        """Predicted rows that wait."""
        return self.queue.queued_rows

    async def join(self) -> None:
        """As `Version.join`; also until no batch computes for callers that have gone."""
        await super().join()
        await self.queue.join()
        if self.look_up is not None:
            self.look_up.flush()

    async def release(self) -> None:
        """As `Version.release`; neither gauges nor the queue must keep the computer's memory."""
        if self.look_up is not None:
            await self.look_up.stop()
        for gauge, read in self._gauges:
            gauge.unset_function(read)
        self._gauges = ()
        self.flush_metrics()
        self.queue.release()
        self.computer.release()
        if self.look_up is not None:
            self.look_up.release()
            self.look_up = None

    def flush_metrics(self) -> None:
        """The same, and what the computer and the look-up counted."""
        super().flush_metrics()
        self.computer.flush(self._metrics)
        if self.look_up is not None:
            self.look_up.count()

    # Observer of the queue

    def batch(
        self, batch: Sequence[Work], outcomes: _Outcomes, queue_s: Sequence[float], compute_s: float
    ) -> None:
        """Count a batch that ran."""
        computer = self.computer
        self.graph_version = computer.graph_version
        away_s: Sequence[float] = ()
        if computer.fetches:
            batch, outcomes, queue_s, away_s = _settled(batch, outcomes, queue_s, compute_s)
        self.count_fallbacks(outcomes)
        stages = computer.stages()
        self._note(len(batch), queue_s, compute_s, stages, away_s)
        if self._recorders and batch:
            self._report([work.request for work in batch], outcomes, queue_s, compute_s, stages, away_s)

    def postponed(self, work: Work) -> None:
        """Have the rows fetched that a request lacks."""
        fetch: Fetch = work.fetch
        fetch.since = self._clock()
        self.computer.fetch(work, self._resume)

    def _resume(self, work: Work) -> None:
        fetch: Fetch = work.fetch
        waited_s = self._clock() - fetch.since
        fetch.away_s += waited_s
        self._metrics.fetch.observe(waited_s)
        self.queue.resume(work)

    def larger(self, work: Work) -> None:
        """As `Computer.larger`."""
        self.computer.larger(work)

    def _cpu_s(self) -> float:
        return self.queue.cpu_s


def _settled(
    batch: Sequence[Work], outcomes: _Outcomes, queue_s: Sequence[float], compute_s: float
) -> tuple[Sequence[Work], _Outcomes, Sequence[float], Sequence[float]]:
    """A batch without the requests that left it for rows: those are counted once, with their answer.

    Returns: the others, and what each waited in the queue and elsewhere.
    """
    here, away_s = [], []
    for at, work in enumerate(batch):
        fetch: Fetch | None = work.fetch
        if fetch is None or fetch.absent is None:
            here.append(at)
            away_s.append(0.0 if fetch is None else fetch.away_s)
        else:
            fetch.away_s += compute_s
    return (
        [batch[at] for at in here],
        [outcomes[at] for at in here],
        [queue_s[at] - away for at, away in zip(here, away_s, strict=True)],
        away_s,
    )


def deadlines_of(limits: ModelLimits, config: Config) -> Deadlines:
    """The deadlines of one model's requests."""
    return Deadlines(limits.timeout_ms / 1e3, config.limits.max_timeout_ms / 1e3)


def admission_of(
    unit: str,
    limits: ModelLimits,
    config: Config,
    max_open: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Admission:
    """The admission of one version's requests, in one worker.

    Args:
        unit: "model/version"; workers share the bucket of its rate.
        max_open: in place of `limits.max_concurrency`.
        clock: seconds, monotonic.
    """
    return Admission(
        deadlines_of(limits, config),
        limits.priority,
        limits.max_concurrency if max_open is None else max_open,
        _bucket(unit, limits, config, int(clock() * 1e9)),
        clock,
    )


def _bucket(unit: str, limits: ModelLimits, config: Config, now_ns: int) -> Bucket | None:
    """The bucket of a version's rate; None where there is no limit."""
    rate = Rate.of(limits.rate_per_s, limits.burst or None)
    # A name that no client has: the buckets may be in one file.
    return None if rate is None else open_limits(config).bucket(f"requests to {unit}", rate, now_ns)
