"""One model's queue: admits, batches, runs, and gives every request exactly one outcome.

A batch is what waits when the model is free, in the order of `policy.py`. Cheap batches run on the event
loop, since a thread switch would cost more than they do; expensive ones run on a thread, while
the loop accepts. Either way one batch of a model runs at a time. Where other models share the loop, a
turnstile says whose batch is next and that it must be a short one.

A batch may postpone a request that lacks something (its outcome is None): the observer fetches it and puts
the request back with `resume`; its batch-mates do not wait for it.

A request ends exactly once: with its answer, with its own error, by its deadline, by being
cancelled, or by giving way to a more urgent one in a full queue. None of these touches its batch-mates: the
batch's answers are computed apart for each request, and when a whole batch fails, its requests are tried
again one by one.

What a request holds of the queue is stored with its place in a lane, and is released with that place:
however a request leaves, the queue has room for another one immediately.

       put ──► lane: request -> µs ──┬─► batch ──┬─► outcome
                    ▲                │           └─► postponed, or larger than predicted ──┐
                    │                └─► cancelled, expired, gave way                      │
                    └──────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from hopline.errors import DeadlineExceeded, HoplineError, Overloaded, RuntimeFailure
from hopline.scheduling.lanes import Lanes, came_first, displaced_by, first_of, next_lane
from hopline.scheduling.policy import LOW, BatchPolicy, CostModel
from hopline.scheduling.turnstile import Turn
from hopline.scheduling.work import (
    MANY_ROWS,
    LargerThanPredicted,
    Observer,
    Released,
    Work,
    predicted_rows,
    refuse_all,
)

log = logging.getLogger(__name__)
_OBSERVER_FAILED = "what observes the queue failed"

#: Of the batches on the loop, one in so many reports its cost to the cost model.
_TIMED_EVERY = 8
#: But the next one after a batch that kept the loop for this long, in seconds.
_LONG_S = 0.0005
#: Times the rows predicted for a batch that it may read before it is split, and a request put back.
_SURPRISE = 4.0


class Batcher:
    """See the module.

    Args:
        run: computes a batch off or on the loop; returns an outcome for each request: a result, an error or
            None to postpone it. Whatever it raises counts as a failure of the whole batch.
        policy, cost: what to admit, when and where.
        executor: runs dear batches.
        observer: for metrics.
        clock: seconds, monotonic.
        turn: of the turnstile that the batchers of one event loop share; None for a batcher that is alone.
        rows_of: rows that the batch read which has just run; by default those that were predicted.

    Attributes:
        cpu_s: processor seconds of the threads that ran batches: every batch of the executor's, and one in
            eight of the loop's (more where they are long), scaled up.
        queued_rows: predicted rows that wait.
    """

    def __init__(
        self,
        run: Callable[[list[Work]], Sequence[Any]],
        policy: BatchPolicy,
        cost: CostModel,
        executor: Executor,
        observer: Observer,
        clock: Callable[[], float] = time.monotonic,
        turn: Turn | None = None,
        rows_of: Callable[[list[Work]], int] = predicted_rows,
    ) -> None:
        self._run = run
        self._rows_of = rows_of
        self.policy = policy
        self.cost = cost
        # of lanes whose requests may wait for all of it
        self._max_queue_us = policy.max_queue_us
        self._max_queue_rows = policy.max_queue_rows or sys.maxsize
        self._executor = executor
        self._observer = observer
        self._clock = clock
        #: By lane: request -> the predicted microseconds that it holds of the queue, in order of arrival.
        self._lanes: Lanes = (OrderedDict(), OrderedDict(), OrderedDict())
        self._turn = turn
        self._running: list[Work] = []
        self.queued_rows = self._queued_us = 0
        #: Requests whose rows were counted, not predicted.
        self._counted: set[Work] = set()
        self._num_postponed = 0
        #: Requests that left without an answer, and their errors, which the loop's next turn delivers.
        self._leaving: list[tuple[Work, HoplineError]] = []
        self._scheduled: asyncio.Handle | None = None
        self._busy = False
        self._untimed, self._time_after = 0, 1
        self._was_split = False
        self.cpu_s = 0.0
        self._watch: asyncio.Handle | None = None
        self._watched_s = 0.0
        self._idle: asyncio.Event | None = None

    @property
    def num_waiting(self) -> int:
        """Requests that wait, run or are postponed."""
        return self.num_queued + len(self._running) + self._num_postponed + len(self._leaving)

    @property
    def queued_s(self) -> float:
        """Predicted processor seconds of what waits."""
        return self._queued_us / 1e6

    @property
    def num_queued(self) -> int:
        """Requests that wait for a batch."""
        high, normal, low = self._lanes
        return len(high) + len(normal) + len(low)

    @property
    def due(self) -> float:
        """Earliest deadline of the batch under way; infinite where none is."""
        return min([work.deadline for work in self._running], default=float("inf"))

    def oldest_wait_s(self) -> float:
        """Seconds that the oldest of them has waited; 0 where none does."""
        oldest = came_first(self._lanes)
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest)

    def put(self, work: Work) -> None:
        """Queue an admitted request.

        Raises: Overloaded: the queue is full; nothing was done.
        """
        lane, rows = work.lane, work.rows
        work.entered = self._clock()
        held_us = 1 + int(rows * self.cost.us_per_row)
        us_after, rows_after = self._queued_us + held_us, self.queued_rows + rows
        if us_after > self._max_queue_us or rows_after > self._max_queue_rows or lane == LOW:
            queued = self._queued_us, self.queued_rows
            for each in displaced_by(self._lanes, self.policy, queued, held_us, work, self.retry_after_s()):
                self._displace(each)
            us_after, rows_after = self._queued_us + held_us, self.queued_rows + rows
        self._lanes[lane][work] = held_us
        self._queued_us, self.queued_rows = us_after, rows_after
        work.holder = self
        if self._busy:
            self._watch_deadline(work.deadline)
        elif self._scheduled is None:
            self._schedule()
        elif self.policy.queue_delay_s > 0:
            if rows_after >= self.policy.max_rows:
                self._scheduled.cancel()
                self._schedule()
            else:
                self._watch_deadline(work.deadline)

    def resume(self, work: Work) -> None:
        """Put a postponed request back, at the end of the queue; it was admitted long ago."""
        self._num_postponed -= 1
        if work.ended:
            self._rest()
            return
        self._enter(work)
        if self._busy:
            self._watch_deadline(work.deadline)
        elif self._scheduled is None:
            self._schedule()

    def withdraw(self, work: Work) -> None:
        """As `Holder.withdraw`: the request is not computed, unless that has begun."""
        if not work.ended:
            self._end(work, "cancelled")
            self._rest()

    def is_counted(self, work: Work) -> bool:
        """True if a request's rows were counted when it was tried, not predicted."""
        return work in self._counted

    def larger(self, batch: Sequence[Work], rows: int) -> LargerThanPredicted | None:
        """Error to raise for a batch that reads that many rows; None: it continues.

        Asked by what computes, between its steps and on its thread. A request that was counted already, or
        was predicted to be so large, continues.
        """
        if len(batch) == 1 and batch[0] in self._counted:
            return None
        predicted = _SURPRISE * sum([work.rows for work in batch])
        return LargerThanPredicted(rows) if rows > max(predicted, self.policy.max_rows) else None

    def retry_after_s(self) -> float:
        """Seconds until there may be room: the predicted time of all that waits."""
        return max(0.05, self.cost.predict_us(self.queued_rows) / 1e6)

    def _enter(self, work: Work) -> None:
        """Let an admitted request wait, at the end of its lane, for whatever its rows cost now."""
        held_us = 1 + int(work.rows * self.cost.us_per_row)
        self._lanes[work.lane][work] = held_us
        self.queued_rows += work.rows
        self._queued_us += held_us

    def _end(self, work: Work, code: str) -> None:
        """A request has its outcome before it ran to its end: release all that it holds."""
        work.end()
        held_us = self._lanes[work.lane].pop(work, 0)
        if held_us:  # it waited; others run, or are postponed
            self._queued_us -= held_us
            self.queued_rows -= work.rows
        self._counted.discard(work)
        self._notify(self._observer.outcome, code)

    def _notify(self, observed: Callable[..., None], *args: Any) -> bool:
        """Notify the observer; return False if it failed, which must not cost a request its answer."""
        try:
            observed(*args)
        except Exception:
            log.exception(_OBSERVER_FAILED)
            return False
        return True

    def release(self) -> None:
        """Forget what runs batches and the observer; where there is time, after `join`.

        They hold the batcher, which holds them: what was loaded at start is looked at by no collector, so
        that without this its memory would never come back.
        """
        self._run, self._observer, self._rows_of = refuse_all, Released(), predicted_rows

    async def join(self) -> None:
        """Wait until nothing waits or runs."""
        while self.num_waiting:
            self._idle = asyncio.Event()
            await self._idle.wait()

    def _displace(self, work: Work) -> None:
        """A request leaves the queue for a more urgent one."""
        text = "the queue is full, and this request gave way to one of higher priority (max_queue_ms)"
        self._leave(work, Overloaded(text, retry_after_s=self.retry_after_s()))

    def _leave(self, work: Work, error: HoplineError) -> None:
        """A request ends without an answer.

        Its error is delivered in the loop's next turn: the receiver may put the next request immediately,
        which must not happen while a batch is chosen.
        """
        self._end(work, error.code)
        self._leaving.append((work, error))
        if len(self._leaving) == 1:
            asyncio.get_running_loop().call_soon(self._report_leaving)

    def _report_leaving(self) -> None:
        leaving, self._leaving = self._leaving, []
        for work, error in leaving:
            work.report(error)
            self._notify(self._observer.late, work, error)
        self._rest()

    def _schedule(self) -> None:
        loop = asyncio.get_running_loop()
        if self.policy.queue_delay_s > 0:
            oldest = came_first(self._lanes)
            assert oldest is not None
            delay = self.policy.wait_s(oldest, self.queued_rows, self._clock())
            if delay:
                self._scheduled = loop.call_later(delay, self._flush)
                self._watch_deadline(min(work.deadline for lane in self._lanes for work in lane))
                return
        if self._turn is not None:
            self._turn.wait()
        self._scheduled = loop.call_soon(self._flush)

    def _take(self, now: float, max_rows: int) -> tuple[list[Work], int]:
        """The next batch, without requests that are late; and its predicted rows."""
        batch: list[Work] = []
        rows = num_bytes = 0
        max_bytes = self.policy.max_bytes
        high, normal, low = self._lanes
        # most requests are of one lane: no call to find it
        while lane := next_lane(self._lanes) if high or low else normal:
            work = next(iter(lane))
            if work.deadline <= now:
                self._leave(work, DeadlineExceeded())
            elif batch and (rows + work.rows > max_rows or num_bytes + work.num_bytes > max_bytes):
                break
            else:
                self._queued_us -= lane.popitem(last=False)[1]
                rows += work.rows
                num_bytes += work.num_bytes
                batch.append(work)
        self.queued_rows -= rows
        return batch, rows

    def _flush(self) -> None:
        now = self._clock()
        max_rows, inline_cost_us = self.policy.max_rows, self.policy.inline_cost_us
        if self._turn is not None:
            if self._turn.must_wait():
                self._scheduled = asyncio.get_running_loop().call_soon(self._flush)
                return
            if self._turn.begin(now):
                inline_cost_us = min(inline_cost_us, self.policy.slice_us)
                lane = next_lane(self._lanes)
                if lane is not None:
                    slice_rows = self.policy.slice_rows(self.cost, first_of(lane).rows)
                    max_rows = min(max_rows, slice_rows or max_rows)
        self._scheduled = None
        batch, rows = self._take(now, max_rows)
        if not batch:
            self._rest()
            return
        self._running = batch
        is_cheap = self.cost.predict_us(rows) <= inline_cost_us
        if is_cheap and (rows < MANY_ROWS or not any(work.needs_thread for work in batch)):
            # Asking for processor time is two system calls: too much for every cheap batch.
            self._untimed += 1
            if self._untimed < self._time_after:
                outcomes = self._outcomes(batch)
            else:
                outcomes = self._timed_outcomes(batch, self._untimed)
                self._untimed = 0
            elapsed = self._finish(batch, now, outcomes)
            self._time_after = _TIMED_EVERY if elapsed < _LONG_S else 1
            if self._turn is not None:
                self._turn.end(elapsed)
            return
        self._busy = True
        loop = asyncio.get_running_loop()
        waiting = (work for lane in self._lanes for work in lane)
        self._watch_deadline(min(work.deadline for work in (*batch, *waiting)))
        computing = loop.run_in_executor(self._executor, self._timed_outcomes, batch)
        computing.add_done_callback(lambda done: self._finish(batch, now, done.result()))

    def _outcomes(self, batch: list[Work]) -> Sequence[Any]:
        """Run a batch; when it fails as a whole, each work alone. Never raises."""
        try:
            return self._run(batch)
        except LargerThanPredicted as found:
            self._was_split = True
            if len(batch) == 1:
                return [found]
            middle = len(batch) // 2  # those that are as small as predicted are answered now
            return [*self._outcomes(batch[:middle]), *self._outcomes(batch[middle:])]
        except Exception as error:  # the boundary: every waiting request gets an outcome
            if len(batch) == 1:
                if isinstance(error, HoplineError):
                    return [error]
                name = batch[0].request_id
                log.exception("request %s failed in the engine", name, extra={"request_id": name})
                return [RuntimeFailure(f"the engine failed: {type(error).__name__}: {error}")]
            self._was_split = True
            log.warning("a batch of %d failed (%s); trying its requests one by one", len(batch), error)
            return [self._outcomes([work])[0] for work in batch]

    def _timed_outcomes(self, batch: list[Work], stands_for: int = 1) -> Sequence[Any]:
        """The outcomes, and learn what they cost; the time represents as many untimed batches."""
        self._was_split = False
        began = time.thread_time()
        outcomes = self._outcomes(batch)
        used_s = time.thread_time() - began
        self.cpu_s += used_s * stands_for
        if not self._was_split:  # else it says nothing of any batch
            try:
                self.cost.observe(self._rows_of(batch), used_s * 1e6)
            except Exception:
                log.exception(_OBSERVER_FAILED)
        return outcomes

    def _finish(self, batch: list[Work], started: float, outcomes: Sequence[Any]) -> float:
        """Deal the outcomes out; returns the seconds since the batch began."""
        self._busy = False
        self._running = []
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        num_ok = 0
        reported = outcomes
        again: list[Work] = []
        for at, (work, outcome) in enumerate(zip(batch, outcomes, strict=True)):
            if work.ended:  # it had its outcome, or no caller wants one
                if reported is outcomes:
                    reported = list(outcomes)
                reported[at] = None  # type: ignore[index]
                continue
            if outcome is None:
                self._num_postponed += 1
                if self._notify(self._observer.postponed, work) or work.ended:
                    continue
                self._num_postponed -= 1
                outcome = RuntimeFailure("what the request lacks could not be fetched")
            if not isinstance(outcome, Exception):
                num_ok += 1
            elif isinstance(outcome, LargerThanPredicted):
                work.rows = max(work.rows, outcome.rows)
                self._counted.add(work)
                again.append(work)
                continue
            elif isinstance(outcome, HoplineError):
                self._notify(self._observer.outcome, outcome.code)
            work.finish(outcome)
        elapsed = self._clock() - started
        if self._counted:
            batch, reported = self._go_again(batch, reported, again)
        try:  # not through `_notify`, which costs a microsecond
            self._observer.outcome("ok", num_ok)
            self._observer.batch(batch, reported, [started - work.entered for work in batch], elapsed)
        except Exception:
            log.exception(_OBSERVER_FAILED)
        high, normal, low = self._lanes
        if normal or high or low:
            if self._scheduled is None:
                self._schedule()
        else:
            self._rest()
        return elapsed

    def _go_again(
        self, batch: list[Work], outcomes: Sequence[Any], again: list[Work]
    ) -> tuple[list[Work], Sequence[Any]]:
        """Put back what is larger than predicted; returns the batch without it."""
        self._counted.difference_update([work for work in batch if work not in again])
        for work in again:
            self._enter(work)
            self._notify(self._observer.larger, work)
        if not again:
            return batch, outcomes
        ran = [at for at, work in enumerate(batch) if work not in again]
        return [batch[at] for at in ran], [outcomes[at] for at in ran]

    def _rest(self) -> None:
        if self._idle is not None and not self.num_waiting:
            self._idle.set()
            self._idle = None

    def _watch_deadline(self, deadline: float) -> None:
        """While a thread computes, the loop is free: late requests get their error in time."""
        if deadline == float("inf"):
            return
        at_s = asyncio.get_running_loop().time() + max(0.0, deadline - self._clock())
        if self._watch is not None:
            if self._watched_s <= at_s:
                return
            self._watch.cancel()
        self._watch = asyncio.get_running_loop().call_at(at_s, self._expire_late)
        self._watched_s = at_s

    def _expire_late(self) -> None:
        self._watch = None
        now = self._clock()
        later = float("inf")
        for work in (*self._running, *(work for lane in self._lanes for work in lane)):
            if work.deadline <= now:
                if not work.ended:
                    self._leave(work, DeadlineExceeded())
            else:
                later = min(later, work.deadline)
        if self._busy or self._scheduled is not None:
            self._watch_deadline(later)
        self._rest()
