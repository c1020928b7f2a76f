"""A version that lives in a process of its own, so that its crash, leak or slow batch is its own affair.

                 ┌── refused at once: limits, or no process now
submit ──────────┤                                 ┌─ answers, and what batches took
                 └─► outstanding ─► socket ─► model process
                          │
                          └─ deadlines and cancellation hold here, whatever the process does

process dies ────────────► its requests get ModelNotReady, and another is started, with ever longer pauses
more memory than allowed ► another is started and warmed up, traffic moves, the old one finishes and ends
no answer, deadlines pass ► it is killed, then as when it dies
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from hopline.config.schema import Config
from hopline.errors import (
    DeadlineExceeded,
    HoplineError,
    ModelNotReady,
    Overloaded,
    Unavailable,
)
from hopline.observe.metrics import Metrics
from hopline.rollout import process_wire as wire
from hopline.rollout.counted import CountedVersion
from hopline.rollout.limits import ModelLimits
from hopline.rollout.process_child import ModelProcess, ProcessRequest
from hopline.rollout.process_keeper import ProcessKeeper
from hopline.rollout.process_main import DEFAULT_FACTORY
from hopline.rollout.process_nursery import Nursery
from hopline.rollout.queued import bucket_of, check, lanes_of, take
from hopline.rollout.served import Recorder
from hopline.rollout.tally import Tally
from hopline.scheduling.policy import LOW
from hopline.types import Deliver, ModelInfo, ScoreRequest, ScoreResult

if TYPE_CHECKING:
    from hopline.rollout.unit import Unit

log = logging.getLogger(__name__)

#: Requests that may be without an outcome, where `max_concurrency` says nothing.
_MAX_OUTSTANDING = 4096
#: Requests besides, which have their outcome, but whose process has not said yet that it dropped them.
_MAX_DROPPED = 4096
#: The earliest that deadlines are looked at again, so that many of them are looked at together.
_TOGETHER_S = 0.001


class ProcessVersion(CountedVersion):
    """See the module; made by `start`, or with a factory of one's own by `begin` on a new one.

    Args:
        name, version: see `Served`.
        config: of the server.
        limits: of the model.
        metrics: of the server.
        recorders: are told of every batch.
        factory: "module:attribute" of what makes the model there; see `process_main`.
        arguments: for the factory; values that JSON has.
        nice: is added to the process's niceness: 19 gets only what others leave.
        nursery: begins processes; None for one of its own.
    """

    def __init__(
        self,
        name: str,
        version: str,
        config: Config,
        limits: ModelLimits,
        metrics: Metrics,
        recorders: Sequence[Recorder] = (),
        *,
        factory: str = DEFAULT_FACTORY,
        arguments: Mapping[str, Any] | None = None,
        nice: int = 0,
        nursery: Nursery | None = None,
    ) -> None:
        super().__init__(name, version, "", config, metrics.model(name, version), recorders)
        self._limits = limits
        orders = {
            "name": name,
            "version": version,
            "config": _config_inside(config).to_json(),
            "limits": dataclasses.asdict(limits),
            "factory": factory,
            "arguments": dict(arguments or {}),
            "nice": nice,
        }
        self._keeper = ProcessKeeper(orders, limits, metrics, self, nursery)
        self._lanes = lanes_of(limits)
        self._bucket = bucket_of(limits, config.worker.count)
        self._max_outstanding = limits.max_concurrency or _MAX_OUTSTANDING
        self._default_timeout_s = limits.timeout_ms / 1e3
        self._max_timeout_s = config.limits.max_timeout_ms / 1e3
        self._closed = ""
        self._num_live = self._live_rows = 0
        self._idle: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._cpu_ended_s = 0.0
        #: Whom to tell of comparisons that are under way, oldest first.
        self._told_of: deque[Callable[[Tally], object]] = deque()
        self._has_stages = False
        self._gauges = (
            (self._metrics.queue_rows, lambda: float(self._live_rows)),
            (self._metrics.queue_requests, lambda: float(self._num_live)),
            (self._metrics.queue_age, self._oldest_wait_s),
        )

    @classmethod
    async def start(
        cls,
        model: str,
        unit: Unit,
        config: Config,
        limits: ModelLimits,
        metrics: Metrics,
        recorders: Sequence[Recorder] = (),
        *,
        nice: int = 0,
        table_bytes: int | None = None,
        nursery: Nursery | None = None,
    ) -> ProcessVersion:
        """A unit of the repository in a process of its own, warm and ready.

        Args:
            model, unit: which one.
            config, limits, metrics, recorders, nice, nursery: as for the class.
            table_bytes: for its embedding tables, which it shares with nobody; None takes the server's own
                setting.

        Raises:
            HoplineError: it cannot be opened, or the process ended instead; it must not take traffic.
        """
        arguments = msgspec.to_builtins(unit)
        if table_bytes is not None:
            config = config.replace(table__memory_bytes=table_bytes)
        self = cls(
            model,
            unit.id,
            config,
            limits,
            metrics,
            recorders,
            factory=config.worker.model_factory or DEFAULT_FACTORY,
            arguments=arguments,
            nice=nice,
            nursery=nursery,
        )
        await self.begin()
        return self

    async def begin(self) -> None:
        """Start the first process; once.

        Raises:
            HoplineError: as `start`.
            ConfigError: it takes more than `memory_bytes` already.
        """
        await self._keeper.begin()
        assert self._keeper.ready is not None
        self.graph_version = self._keeper.ready.graph_version
        for gauge, read in self._gauges:
            gauge.set_function(read)

    @property
    def pid(self) -> int | None:
        """Of the process that requests go to; None while there is none."""
        process = self._keeper.process
        return None if process is None else process.pid

    # Served

    def submit(self, request: ScoreRequest, deliver: Deliver) -> ProcessRequest:
        """Check a request and send it; `deliver` is called with its outcome.

        Raises:
            ModelNotReady: there is no process now; says why, and when to come back.
            RateLimited, DeadlineExceeded, Overloaded, Unavailable: it cannot be answered now.
        """
        try:
            now = time.monotonic()
            process, rows, deadline = self._admitted(request, now)
        except HoplineError as error:
            self.outcome(error.code)
            self._tell([request], [error], [0.0], 0.0)
            raise
        item = ProcessRequest(request, deliver, self, process, rows, deadline, now)
        self._num_live += 1
        self._live_rows += rows
        process.send(item)
        if deadline < self._timer_at:
            self._watch_deadline(deadline, now)
        return item

    def turn_away(self) -> None:
        """As `QueuedVersion.turn_away`: also while there is no process.

        Raises: ModelNotReady, RateLimited.
        """
        if self._recorders:
            return
        try:
            self._present()
            if self._bucket is not None:
                check(self._bucket, time.monotonic())
        except HoplineError as error:
            self.outcome(error.code)
            raise

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """What the model says of itself, and whether its process lives."""
        keeper = self._keeper
        assert keeper.ready is not None
        info, is_up = keeper.ready.info, keeper.process is not None
        return dataclasses.replace(
            info,
            versions=versions,
            version=self.version,
            graph_version=self.graph_version,
            state=info.state if is_up else "UNAVAILABLE",
            reason=info.reason if is_up else keeper.reason,
        )

    def warm_up(self) -> None:
        """Nothing: a process is warm before it takes its first request, each of them."""

    @property
    def queued_rows(self) -> int:
        """Rows that wait or run."""
        return self._live_rows

    def close(self, why: str) -> None:
        """Take no more requests; those taken still finish."""
        self._closed = why

    async def join(self) -> None:
        """Wait until every request taken has its outcome."""
        while self._num_live:
            self._idle = asyncio.Event()
            await self._idle.wait()

    async def release(self) -> None:
        """End the processes."""
        self._closed = self._closed or "the model is unloaded"
        await self._keeper.stop()
        if self._timer is not None:
            self._timer.cancel()
        for gauge, read in self._gauges:
            gauge.unset_function(read)

    # Owner of processes

    def withdraw(self, item: ProcessRequest) -> None:
        """As `Owner.withdraw`."""
        if not item.ended:
            self._ended(item, "cancelled")
            item.process.drop(item)

    def refused(self, process: ModelProcess, item: ProcessRequest, error: HoplineError) -> None:
        """As `Owner.refused`."""
        self._fail(item, error)

    def told(self, process: ModelProcess, tell: wire.Tell) -> None:
        """Deal answers out, then count them."""
        now = time.monotonic()
        ended: dict[int, tuple[ProcessRequest, ScoreResult | HoplineError]] = {}
        num_ok = 0
        for number, fields in tell.results:
            item = process.settle(number)
            if item is not None and not item.ended:
                num_ok += 1
                result = wire.unpack_result(fields)
                self.graph_version = result.graph_version  # that of a live graph moves on
                ended[number] = item, result
                self._ended(item, "")
                _deliver(item, result)
        for number, packed in tell.errors:
            item = process.settle(number)
            if item is not None and not item.ended and packed is not None:
                error = wire.unpack_error(packed)
                if isinstance(error, DeadlineExceeded) and process.overdue_since is None:
                    process.overdue_since = now
                ended[number] = item, error
                self._ended(item, error.code)
                _deliver(item, error)
        if tell.results:
            process.overdue_since = None
        self.outcome("ok", num_ok)
        self._record(tell.batches, ended, now)

    def compare(self, copies: Sequence[bytes], tolerance: float, told: Callable[[Tally], object]) -> None:
        """As `Compares.compare`."""
        self._present().compare(wire.Compare([msgspec.Raw(copy) for copy in copies], tolerance))
        self._told_of.append(told)

    def compared(self, process: ModelProcess, message: wire.Compared) -> None:
        """As `Owner.compared`."""
        self.outcome("ok", message.tally.answered)
        self._told_of.popleft()(message.tally)

    def beat(self, process: ModelProcess, beat: wire.Beat) -> None:
        """Bring in what a process counted."""
        if beat.num_batches > process.num_batches:
            process.overdue_since = None
        process.num_batches = beat.num_batches
        self._metrics.table_hits.inc(beat.table_hits - process.table_hits)
        self._metrics.table_misses.inc(beat.table_misses - process.table_misses)
        process.table_hits, process.table_misses = beat.table_hits, beat.table_misses
        process.cpu_s = beat.cpu_s

    def lost(self, process: ModelProcess, how: str) -> None:
        """Fail what a process had, and have another one started if it was the one that serves."""
        self._cpu_ended_s += process.cpu_s
        process.cpu_s = 0.0
        unanswered = list(process.unanswered.values())
        process.unanswered.clear()
        process.idle.set()
        self._keeper.lost(process, how, renew=not self._closed)
        while self._told_of:  # what was sent to it is not compared
            self._told_of.popleft()(Tally())
        for item in unanswered:
            if not item.ended:
                self._fail(item, ModelNotReady(self._keeper.reason, self._keeper.retry_after_s()))

    # Admission

    def _present(self) -> ModelProcess:
        """The process that serves.

        Raises: ModelNotReady: there is none now.
        """
        process = self._keeper.process
        if process is None or not process.is_up:
            raise ModelNotReady(self._keeper.reason, self._keeper.retry_after_s())
        return process

    def _admitted(self, request: ScoreRequest, now: float) -> tuple[ModelProcess, int, float]:
        """The process, rows and deadline of a request that is let in."""
        if self._closed:
            raise Unavailable(self._closed)
        process = self._present()
        deadline = request.deadline
        if deadline is None:
            deadline = now + self._default_timeout_s
        elif deadline <= now:
            raise DeadlineExceeded("the request's deadline had passed when it arrived")
        else:
            deadline = min(deadline, now + self._max_timeout_s)
        num_open, is_low = self._num_live, self._lanes[request.priority] == LOW
        if num_open >= (self._max_outstanding + 1) // 2 and (is_low or num_open >= self._max_outstanding):
            raise Overloaded(
                f"{num_open} requests wait or run; no more may"
                f"{' of low priority' if is_low else ''} (max_concurrency)",
                retry_after_s=0.1,
            )
        if len(process.unanswered) >= self._max_outstanding + _MAX_DROPPED:
            raise Overloaded(
                f"the model's process has not said what became of {len(process.unanswered)} requests; "
                "it is slow, or hangs",
                retry_after_s=0.1,
            )
        rows, most_rows = wire.num_items(request), self._limits.max_queue_rows
        if most_rows and self._live_rows and self._live_rows + rows > most_rows:
            raise Overloaded(
                f"{self._live_rows} rows wait or run; {rows} more would pass the limit of "
                f"{most_rows} (max_queue_rows)",
                retry_after_s=0.1,
            )
        if self._bucket is not None:
            take(self._bucket, now)
        return process, rows, deadline

    # Outcomes

    def _ended(self, item: ProcessRequest, code: str) -> None:
        """A request has its outcome; "" is counted elsewhere."""
        item.ended = True
        self._num_live -= 1
        self._live_rows -= item.rows
        if code:
            self.outcome(code)
        if not self._num_live and self._idle is not None:
            self._idle.set()
            self._idle = None

    def _fail(self, item: ProcessRequest, error: HoplineError) -> None:
        self._ended(item, error.code)
        _deliver(item, error)
        self._tell([item.request], [error], [time.monotonic() - item.enqueued], 0.0)

    def _record(
        self,
        batches: Sequence[wire.Batch],
        ended: dict[int, tuple[ProcessRequest, ScoreResult | HoplineError]],
        now: float,
    ) -> None:
        """Count what ran together, then what came to no batch."""
        for batch in batches:
            mine = [ended.pop(number) for number in batch.numbers if number in ended]
            if not mine:
                continue
            # seen from here: the way there and back counts as waiting
            queue_s = [max(0.0, now - item.enqueued - batch.compute_s) for item, _ in mine]
            self._has_stages = self._has_stages or bool(batch.stages)
            self._note(len(mine), queue_s, batch.compute_s, batch.stages)
            requests, outcomes = [item.request for item, _ in mine], [outcome for _, outcome in mine]
            self._tell(requests, outcomes, queue_s, batch.compute_s, batch.stages)
        for item, outcome in ended.values():
            waited_s = now - item.enqueued
            if isinstance(outcome, ScoreResult) and not self._has_stages:
                self._note(1, [0.0], waited_s, {})
            self._tell([item.request], [outcome], [waited_s], 0.0)

    def _watch_deadline(self, deadline: float, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        wait_s = max(_TOGETHER_S, deadline - now)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire_late)

    def _expire_late(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        now = time.monotonic()
        later = float("inf")
        for process in self._keeper.processes():
            for item in list(process.unanswered.values()):
                if item.ended:
                    continue
                if item.deadline > now:
                    later = min(later, item.deadline)
                    continue
                if process.overdue_since is None:
                    process.overdue_since = now
                self._fail(
                    item, DeadlineExceeded("the request's deadline passed before its answer was ready")
                )
        if later < self._timer_at:
            self._watch_deadline(later, now)

    def _oldest_wait_s(self) -> float:
        waiting = (
            item.enqueued
            for process in self._keeper.processes()
            for item in process.unanswered.values()
            if not item.ended
        )
        oldest = min(waiting, default=None)
        return 0.0 if oldest is None else time.monotonic() - oldest

    def _cpu_s(self) -> float:
        return self._cpu_ended_s + sum(process.cpu_s for process in self._keeper.processes())


def _config_inside(config: Config) -> Config:
    """A server's config for a process that runs one model for it, and shares the page cache with it."""
    return config.replace(
        graph__memory="mapped",
        features__prefetcher="",
        features__shared_file="",
        worker__index=0,
        worker__count=1,
        worker__metrics_dir="",
        worker__table_fd=-1,
        worker__rows_fd=-1,
        worker__isolated=True,
    )


def _deliver(item: ProcessRequest, outcome: object) -> None:
    try:
        item.deliver(outcome)
    except Exception:  # the boundary: a receiver's failure must not cost the others their answers
        log.exception("an answer could not be delivered")
