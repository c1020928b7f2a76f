"""A version in an isolated process, so that its crash, leak or slow batch affects no other model.

                 ┌── refused: limits, or no process now
accept ──────────┤                                 ┌─ answers, and what batches took
                 └─► outstanding ─► socket ─► model process
                          │
                          └─ deadlines and cancellation hold here, whatever the process does

process dies ────────────► its requests get ModelNotReady, and another is started, with ever longer pauses
more memory than allowed ► another is started and warmed up, traffic moves, the old one finishes and ends
it hangs ───────────────► it is killed, then as when it dies (`process/silence.py`)
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from hopline.answering.counted_version import CountedVersion
from hopline.answering.limits import ModelLimits
from hopline.answering.outcome_counts import OutcomeCounts
from hopline.answering.queued import admission_of
from hopline.answering.served import Recorder
from hopline.config.schema import Config
from hopline.errors import ConfigError, DeadlineExceeded, HoplineError, ModelNotReady, Overloaded
from hopline.isolated import wire
from hopline.isolated.child import ModelProcess
from hopline.isolated.starter import ProcessEnded, ProcessStarter
from hopline.observe.metrics import Metrics
from hopline.process.keeper import Keeper
from hopline.process.memory import anonymous_bytes
from hopline.process.wire import unpack_error
from hopline.scheduling.policy import LOW
from hopline.scheduling.work import Work
from hopline.types import ModelInfo, ScoreResult

log = logging.getLogger(__name__)

#: Requests that may be without an outcome, where `max_concurrency` says nothing.
_MAX_OUTSTANDING = 4096
#: Requests besides, which have their outcome, but whose process has not said yet that it dropped them.
_MAX_DROPPED = 4096
#: The earliest that deadlines are looked at again, so that many of them are looked at together.
_TOGETHER_S = 0.001


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """Program of a model's process.

    Attributes:
        factory: "module:attribute" of what makes the model there; see `main`. "" for that of the settings.
        arguments: for the factory; values that JSON has.
        nice: is added to the process's niceness: 19 gets only what others leave.
    """

    factory: str = ""
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    nice: int = 0


class ProcessVersion(CountedVersion):
    """See the module; `begin` starts it. `damage` and `identity` are as in `WatchedFiles`."""

    damage = identity = ""

    def __init__(
        self,
        name: str,
        version: str,
        config: Config,
        limits: ModelLimits,
        metrics: Metrics,
        recorders: Sequence[Recorder] = (),
        *,
        program: Program = Program(),
        starter: ProcessStarter | None = None,
    ) -> None:
        super().__init__(name, version, "", config, metrics.model(name, version), recorders)
        self._limits = limits
        self._orders = {
            "name": name,
            "version": version,
            "config": _config_inside(config).to_json(),
            "limits": dataclasses.asdict(limits),
            **dataclasses.asdict(program),
        }
        self._ready: wire.Loaded
        self._starter = starter or ProcessStarter()
        self._is_starter_own = starter is None
        self._restarts = metrics.model_process_restarts
        memory = metrics.gauge(
            "hopline_model_process_memory_bytes",
            "Memory of a model's own processes, without what they share.",
            ("model", "version"),
        )(name, version)
        self._keeper = Keeper(
            f"{name}/{version}", self._open, limits.hang_s, limits.memory_bytes, memory.set
        )
        self._max_outstanding = limits.max_concurrency or _MAX_OUTSTANDING
        self.admission = admission_of(f"{name}/{version}", limits, config, self._max_outstanding)
        self._live_rows = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._cpu_ended_s = 0.0
        self._has_stages = False
        self._gauges = (
            (self._metrics.queue_rows, lambda: float(self._live_rows)),
            (self._metrics.queue_requests, lambda: float(self.admission.num_open)),
            (self._metrics.queue_age, self._oldest_wait_s),
        )

    async def begin(self) -> ProcessVersion:
        """Start the first process, once; returns this version, ready.

        Raises:
            HoplineError: it cannot be opened, or the process ended instead; it must not take traffic.
            ConfigError: it takes more than `memory_bytes` already.
        """
        try:
            try:
                process = await self._keeper.start()
            except ProcessEnded as error:  # such as one that was killed with the fork server; once more
                log.warning("%s/%s: %s; starting another process", self.name, self.version, error)
                process = await self._keeper.start()
            limit, taken = self._limits.memory_bytes, anonymous_bytes(process.pid)
            if limit and taken > limit:
                raise ConfigError(
                    f"memory_bytes: model {self.name!r} takes {taken} bytes before its first request; "
                    f"{limit} are allowed"
                )
        except BaseException:
            await self._end()
            raise
        self.graph_version = self._ready.graph_version
        for gauge, read in self._gauges:
            gauge.set_function(read)
        return self

    async def _open(self, why: str) -> ModelProcess:
        if why:
            self._restarts(self.name, self.version, why).inc()
        process = await ModelProcess.start(self._starter, self._orders, self)
        assert process.ready is not None
        self._ready = process.ready
        self.damage, self.identity = "", process.ready.identity
        return process

    async def _end(self) -> None:
        await self._keeper.stop()
        if self._is_starter_own:
            await self._starter.close()

    @property
    def pid(self) -> int | None:
        """Of the process that requests go to; None while there is none."""
        process = self._keeper.process
        return None if process is None else process.pid

    # Version

    def accept(self, work: Work) -> None:
        """As `Scorer.accept`: sends it to the process.

        Raises:
            ModelNotReady: there is no process now; says why, and when to come back.
            RateLimited, DeadlineExceeded, Overloaded, Unavailable: it cannot be answered now.
        """
        try:
            self.admission.admit(work)
            process = self._process_for(work)
        except HoplineError as error:
            work.end()
            self.outcome(error.code)
            self._report([work.request], [error], [0.0], 0.0)
            raise
        self._live_rows += work.rows
        work.holder = self
        process.send(work)
        if work.deadline < self._timer_at:
            self._watch_deadline(work.deadline, work.entered)

    def reject_early(self) -> None:
        """As `Scorer.reject_early`: also while there is no process."""
        if self._recorders:
            return
        try:
            self._present()
            self.admission.check()
        except HoplineError as error:
            self.outcome(error.code)
            raise

    def info(self, versions: tuple[str, ...]) -> ModelInfo:
        """Description of the model, and the state of its process."""
        info, is_up = self._ready.info, self._keeper.process is not None
        return dataclasses.replace(
            info,
            versions=versions,
            version=self.version,
            graph_version=self.graph_version,
            state=info.state if is_up else "UNAVAILABLE",
            reason=info.reason if is_up else self._why_absent(),
        )

    def warm_up(self) -> None:
        """Nothing: a process is warm before it takes its first request, each of them."""

    @property
    def queued_rows(self) -> int:
        """Rows that wait or run."""
        return self._live_rows

    async def release(self) -> None:
        """End the processes."""
        self.admission.closed = self.admission.closed or "the model is unloaded"
        await self._end()
        if self._timer is not None:
            self._timer.cancel()
        for gauge, read in self._gauges:
            gauge.unset_function(read)

    def withdraw(self, work: Work) -> None:
        """As `Holder.withdraw`: the process drops the request."""
        self._ended(work, "cancelled")
        for process in self._keeper.processes():
            process.drop(work)

    # User of processes

    def answered(self, process: ModelProcess, outcomes: wire.Ended) -> None:
        """Deliver outcomes, then count them."""
        now = time.monotonic()
        ended: dict[int, tuple[Work, ScoreResult | HoplineError]] = {}
        num_ok = 0
        for number, fields in outcomes.results:
            work = process.settle(number)
            if work is not None and not work.ended:
                num_ok += 1
                result = wire.unpack_result(fields)
                self.graph_version = result.graph_version  # that of a live graph moves on
                ended[number] = work, result
                self.count_fallbacks((result,))
                self._ended(work, "")
                work.report(result)
        for number, packed in outcomes.errors:
            work = process.settle(number)
            if work is not None and not work.ended and packed is not None:
                error = unpack_error(packed)
                ended[number] = work, error
                self._ended(work, error.code)
                work.report(error)
        self.outcome("ok", num_ok)
        self._record(outcomes.batches, ended, now)

    def compare(
        self, copies: Sequence[bytes], tolerance: float, on_counts: Callable[[OutcomeCounts], object]
    ) -> None:
        """As `Compares.compare`."""

        def compared(tally: OutcomeCounts) -> None:
            self.outcome("ok", tally.answered)
            on_counts(tally)

        self._present().compare(wire.Compare([msgspec.Raw(copy) for copy in copies], tolerance), compared)

    def beat(self, process: ModelProcess, beat: wire.Beat) -> None:
        """Bring in what a process counted."""
        process.num_batches = beat.num_batches
        self._metrics.state_cache_hits.inc(beat.state_cache_hits - process.state_cache_hits)
        self._metrics.state_cache_misses.inc(beat.state_cache_misses - process.state_cache_misses)
        process.state_cache_hits = beat.state_cache_hits
        process.state_cache_misses = beat.state_cache_misses
        process.cpu_s = beat.cpu_s
        if process is self._keeper.process:
            self.damage, self.identity = beat.damage, beat.identity

    def lost(self, process: ModelProcess, how: str) -> None:
        """Fail what a process had, and have another one started if it was the one that serves."""
        self._cpu_ended_s += process.cpu_s
        process.cpu_s = 0.0
        unanswered = list(process.unanswered.values())
        process.unanswered.clear()
        process.idle.set()
        self._keeper.lost(process, how, renew=not self.admission.closed)
        while process.comparisons:  # what was sent to it is not compared
            process.comparisons.popleft()(OutcomeCounts())
        for work in unanswered:
            if not work.ended:
                self._fail(work, ModelNotReady(self._why_absent(), self._keeper.retry_after_s()))

    # Admission

    def _present(self) -> ModelProcess:
        """The process that serves.

        Raises: ModelNotReady: there is none now.
        """
        process = self._keeper.process
        if process is None or not process.is_up:
            raise ModelNotReady(self._why_absent(), self._keeper.retry_after_s())
        return process

    def _why_absent(self) -> str:
        return f"model {self.name!r}: {self._keeper.reason or 'its process ends'}"

    def _process_for(self, work: Work) -> ModelProcess:
        """The process of a request that was admitted; sets its rows."""
        process = self._present()
        num_open = self.admission.num_open - 1
        if work.lane == LOW and num_open >= (self._max_outstanding + 1) // 2:
            raise Overloaded(
                f"{num_open} requests wait or run; no more may of low priority (max_concurrency)",
                retry_after_s=0.1,
            )
        if len(process.unanswered) >= self._max_outstanding + _MAX_DROPPED:
            raise Overloaded(
                f"the model's process has not said what became of {len(process.unanswered)} requests; "
                "it is slow, or hangs",
                retry_after_s=0.1,
            )
        rows, most_rows = wire.num_items(work.request), self._limits.max_queue_rows
        if most_rows and self._live_rows and self._live_rows + rows > most_rows:
            raise Overloaded(
                f"{self._live_rows} rows wait or run; {rows} more would pass the limit of "
                f"{most_rows} (max_queue_rows)",
                retry_after_s=0.1,
            )
        self.admission.pay()
        work.rows = rows
        return process

    # Outcomes

    def _ended(self, work: Work, code: str) -> None:
        """A request ends; "" is counted elsewhere."""
        work.end()
        self._live_rows -= work.rows
        if code:
            self.outcome(code)

    def _fail(self, work: Work, error: HoplineError) -> None:
        self._ended(work, error.code)
        work.report(error)
        self._report([work.request], [error], [time.monotonic() - work.entered], 0.0)

    def _record(
        self,
        batches: Sequence[wire.Batch],
        ended: dict[int, tuple[Work, ScoreResult | HoplineError]],
        now: float,
    ) -> None:
        """Count what ran together, then what came to no batch."""
        for batch in batches:
            mine = [ended.pop(number) for number in batch.numbers if number in ended]
            if not mine:
                continue
            # seen from here: the way there and back counts as waiting
            queue_s = [max(0.0, now - work.entered - batch.compute_s) for work, _ in mine]
            self._has_stages = self._has_stages or bool(batch.stages)
            self._note(len(mine), queue_s, batch.compute_s, batch.stages)
            requests, outcomes = [work.request for work, _ in mine], [outcome for _, outcome in mine]
            self._report(requests, outcomes, queue_s, batch.compute_s, batch.stages)
        for work, outcome in ended.values():
            waited_s = now - work.entered
            if isinstance(outcome, ScoreResult) and not self._has_stages:
                self._note(1, [0.0], waited_s, {})
            self._report([work.request], [outcome], [waited_s], 0.0)

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
            for work in list(process.unanswered.values()):
                if work.ended:
                    continue
                if work.deadline > now:
                    later = min(later, work.deadline)
                    continue
                self._fail(work, DeadlineExceeded())
        if later < self._timer_at:
            self._watch_deadline(later, now)

    def _oldest_wait_s(self) -> float:
        waiting = (
            work.entered
            for process in self._keeper.processes()
            for work in process.unanswered.values()
            if not work.ended
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
        worker__state_cache_fd=-1,
        worker__rows_fd=-1,
        worker__isolated=True,
    )
