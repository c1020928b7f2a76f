"""Rows of one feature group for all callers of a process: tiers, single flight, and an answer in time.

    fetch() ─┐                                    ┌─► L2 ── missing rows ───► origin
    fetch() ─┼─ rows that no flight has ─► flight ┤                             │
    fetch() ─┘   (one for each loop turn)         └──── rows ◄── write back ◄───┘

- A row that is being fetched is not requested again: later callers wait for the same flight.
- A caller waits for at most `timeout_s` and gets the rows that have arrived. The flight continues for a
  bounded time, so that its rows still reach `on_rows`. A caller that is cancelled does not affect the
  others.
- Missing rows of the store are cached for a short time.

This file does not depend on the L1 feature cache or on models.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopline.features.answer import ClientRows, Reason
from hopline.features.base import FeatureGroup, FeatureStore, FetchedRows
from hopline.features.breaker import BreakerPolicy
from hopline.features.flight import Absences, Flight, Waiter, picked
from hopline.features.inflight import MAX_FLIGHT_ROWS, InFlight
from hopline.features.metrics import ClientMetrics
from hopline.features.overdue import Overdue
from hopline.features.retry import RetryPolicy
from hopline.features.skew import SchemaWatch
from hopline.features.stamped import stamped, stamped_group, times_of
from hopline.features.tier import Tier, Verdict, WriteBack
from hopline.types import ExternalIds, FloatArray, IdArray

log = logging.getLogger(__name__)

_FOUND = Reason.FOUND.label

#: Receives fetched rows: global ids int64 [n], values float32 [n, dim], read-only, and when the origin had
#: them at the latest, on the client's clock: float64 [n], or one time for all.
OnRows = Callable[[IdArray, FloatArray, float | NDArray[np.float64]], object]


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits of the client's work and memory.

    Attributes:
        ttl_s: age from which on a row is too old; L2's copies of that age are not used.
        linger: a flight without callers ends after this many timeouts.
        l2_share: share of the timeout for L2 before the origin is asked instead.
        negative_ttl_s: how long a missing row is not requested again. A new row also stays invisible for
            this time, so keep it below your allowed recovery time.
        max_negative_rows: limit of cached missing rows.
        max_call_rows: limit of rows that callers of one loop turn share a call for; one caller may have
            more.
        max_write_back_rows: limit of rows that wait to be copied to L2.
        recheck_s: seconds between comparisons of schemas.
    """

    ttl_s: float = math.inf
    linger: float = 5.0
    l2_share: float = 0.5
    negative_ttl_s: float = 0.5
    max_negative_rows: int = 65_536
    max_call_rows: int = 65_536
    max_write_back_rows: int = 65_536
    recheck_s: float = 30.0


@dataclass(frozen=True, slots=True)
class CallPolicy:
    """Rules for retries and pauses of calls to a store.

    Attributes:
        breaker, retry: the policies; None for the defaults.
    """

    breaker: BreakerPolicy | None = None
    retry: RetryPolicy | None = None


class FeatureClient:
    """Fetches rows of one group; see the module docstring. For one event loop; it opens no stores.

    Args:
        group: the feature group.
        origin: the store with all rows. A `Tier` instead of a store shares its breaker and retries with
            other clients: use one for each store.
        l2: a faster store in front of the origin.
        timeout_s: longest wait of a caller.
        calls: breaker and retries of each store that is not a `Tier`. A `Tier` has its own, and its own
            metrics of calls.
        limits: see `ClientLimits`.
        metrics: counts calls and rows.
        clock: seconds, monotonic.

    Attributes:
        on_rows: called with arrived rows before the callers get them; also with late rows. May be set at
            any time.
        wall_clock: seconds, for the copies in L2; the same on all hosts. May be set before the first fetch.
        group, timeout_s: the arguments.
    """

    def __init__(
        self,
        group: FeatureGroup,
        origin: FeatureStore | Tier,
        l2: FeatureStore | Tier | None = None,
        *,
        timeout_s: float = 0.02,
        calls: CallPolicy | None = None,
        limits: ClientLimits | None = None,
        metrics: ClientMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        def tier(name: str, store: FeatureStore | Tier) -> Tier:
            if isinstance(store, Tier):
                return store
            policy = calls or CallPolicy()
            return Tier(
                name, store, breaker=policy.breaker, retry=policy.retry, metrics=metrics, clock=clock
            )

        self.group = group
        self.timeout_s = timeout_s
        self.on_rows: OnRows | None = None
        self._dim = group.dim
        self._origin = tier("origin", origin)
        self._l2 = None if l2 is None else tier("l2", l2)
        self._limits = limits or ClientLimits()
        self._metrics = metrics or ClientMetrics()
        self._clock = clock
        self.wall_clock: Callable[[], float] = time.time
        self._copies = stamped_group(group)
        self._write_back = (
            None
            if self._l2 is None
            else WriteBack(self._l2, self._copies, self._limits.max_write_back_rows, self._metrics)
        )
        self._watch: SchemaWatch | None = None
        self._closed = False
        self._in_flight = InFlight()
        self._flights: dict[int, Flight | Absences] = {}
        self._next_number = 1
        self._outbox: Flight | None = None
        self._late_callers = Overdue(timeout_s, Waiter.wake)
        self._late_calls = Overdue(timeout_s, Verdict.mark_late)
        self._late_flights = Overdue(timeout_s * self._limits.linger, self._give_up)
        self._remembered: deque[Absences] = deque()
        self._num_remembered = 0
        #: Cancelled tasks that have not ended yet.
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """L2, if any, and the origin."""
        return (self._origin,) if self._l2 is None else (self._l2, self._origin)

    @property
    def refusal(self) -> str:
        """Why all rows are refused ("schema"): how the origin's rows differ; "" if they do not."""
        return "" if self._watch is None else self._watch.refusal

    async def check_schema(self, expected: FeatureGroup) -> None:
        """Compare with the stores' schemas now, and then every `recheck_s` in the background.

        If the origin's rows change later, all rows are refused until they match again, since rows in L2 may
        be copies of changed ones. If L2's rows change, L2 is skipped.

        Raises:
            FeatureSchemaMismatch: lists each difference.
            FeatureStoreError: the origin does not respond now, or has no such group.
        """
        if self._watch is not None:
            await self._watch.close()
        l2 = None if self._l2 is None else self._l2.store
        self._watch = SchemaWatch(expected, self._origin.store, l2, self._limits.recheck_s)
        await self._watch.start()

    async def fetch(
        self, global_ids: IdArray, external_ids: ExternalIds, timeout_s: float | None = None
    ) -> ClientRows:
        """Fetch rows in request order, within the timeout, independent of the state of the stores.

        Args:
            global_ids: int64 [n], none negative; duplicates allowed.
            external_ids: the stores' ids of the same n rows. A list must not be changed later.
            timeout_s: replaces the client's own timeout.

        Returns: the rows that have arrived, and a `Reason` for each other row. A store that is down, slow
            or wrong never raises an error here.
        """
        num_rows = len(global_ids)
        if len(external_ids) != num_rows:
            raise ValueError(f"{num_rows} global ids, but {len(external_ids)} external ids")
        if num_rows > MAX_FLIGHT_ROWS:
            raise ValueError(f"{num_rows} rows; one fetch may have at most {MAX_FLIGHT_ROWS}")
        if self._closed or num_rows == 0:
            return ClientRows.nothing(num_rows, self._dim, Reason.UNAVAILABLE)
        if self._watch is not None and self._watch.refusal:
            self._metrics.rows(self._origin.name, Reason.SCHEMA.label, num_rows)
            return ClientRows.nothing(num_rows, self._dim, Reason.SCHEMA)
        if self._remembered:
            self._forget(self._clock())
        loop = asyncio.get_running_loop()
        waiter = Waiter(num_rows, loop.create_future())
        self._claim(waiter, global_ids, external_ids, loop)
        if waiter.waits:
            timer = None
            if timeout_s is None:
                self._late_callers.add(waiter, loop)
            else:
                timer = loop.call_later(timeout_s, waiter.wake)
            try:
                await waiter.future
            finally:
                if timer is not None:
                    timer.cancel()
                waiter.leave()
        return waiter.answer(self._dim)

    async def join(self) -> None:
        """Wait until no fetch and no copy to L2 is in progress."""
        while True:
            tasks = [flight.task for flight in self._flights.values() if isinstance(flight, Flight)]
            if not tasks:
                break
            await asyncio.wait([task for task in tasks if task is not None])
        if self._write_back is not None:
            await self._write_back.join()

    async def close(self) -> None:
        """Cancel all fetches; waiting callers get the reason UNAVAILABLE."""
        self._closed = True
        self._outbox = None
        for flight in list(self._flights.values()):
            if isinstance(flight, Flight):
                self._end(flight, Reason.UNAVAILABLE)
        for overdue in (self._late_callers, self._late_calls, self._late_flights):
            overdue.clear()
        if self._ending:
            await asyncio.wait(self._ending, timeout=1.0)
        if self._watch is not None:
            await self._watch.close()
        if self._write_back is not None:
            await self._write_back.close()

    def _claim(
        self, waiter: Waiter, ids: IdArray, external_ids: ExternalIds, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Find each row's flight; rows without one join the next flight."""
        # Copies: callers' arrays are often views of reused buffers.
        ids = np.array(ids, np.int64)
        num_rows = ids.shape[0]
        flight = self._outbox
        if flight is not None and flight.num_rows + num_rows > self._limits.max_call_rows:
            flight = None
        number, first = (self._next_number, 0) if flight is None else (flight.number, flight.num_rows)
        entries, fresh = self._in_flight.claim(ids, number, first)
        num_fresh = fresh.shape[0]
        if num_fresh:
            if flight is None:
                flight = self._new_flight(loop)
            if num_fresh == num_rows:
                own = external_ids.copy() if isinstance(external_ids, np.ndarray) else external_ids
                flight.add(ids, own)
                waiter.want(flight, None, slice(first, first + num_rows))
                return
            flight.add(ids[fresh], picked(external_ids, fresh))
        numbers, rows = self._in_flight.split(entries)
        if (numbers == numbers[0]).all():
            waiter.want(self._flights[int(numbers[0])], None, rows)
            numbers = numbers[:0]
        for each in np.unique(numbers).tolist():
            where = np.flatnonzero(numbers == each)
            waiter.want(self._flights[each], where, rows[where])
        num_remembered = waiter.num_remembered()
        if num_remembered:
            self._metrics.rows("memory", Reason.MISSING.label, num_remembered)

    def _new_flight(self, loop: asyncio.AbstractEventLoop) -> Flight:
        flight = Flight(self._next_number)
        self._next_number += 1
        self._flights[flight.number] = flight
        self._outbox = flight
        # A task starts in the next turn of the loop: requests until then join the flight.
        flight.task = loop.create_task(self._fly(flight, loop))
        return flight

    async def _fly(self, flight: Flight, loop: asyncio.AbstractEventLoop) -> None:
        """Start the flight, and request its rows from the tiers in order."""
        if self._outbox is flight:
            self._outbox = None
        flight.close()
        try:
            if all(waiter.future.done() for waiter in flight.waiters):  # all callers are gone
                return
            self._late_flights.add(flight.number, loop)
            deadline = self._clock() + self.timeout_s
            lacking = None
            if self._l2 is not None and not (self._watch is not None and self._watch.l2_refusal):
                lacking = await self._fetch_l2(flight, self._l2, deadline)
            if lacking is None or lacking.shape[0]:
                await self._fetch_origin(flight, lacking, deadline)
        except Exception:  # the boundary: waiting callers must get an answer
            log.exception("a fetch of feature group %r failed", self.group.name)
        finally:
            self._land(flight, Reason.UNAVAILABLE)

    async def _fetch_l2(self, flight: Flight, l2: Tier, deadline: float) -> IdArray | None:
        """Fetch rows from L2; return the positions of missing rows, None for all."""
        limit_s = self.timeout_s * self._limits.l2_share
        answer = await l2.read(self._copies, flight.external_ids, deadline=deadline, limit_s=limit_s)
        if isinstance(answer, Reason):
            self._metrics.rows(l2.name, answer.label, flight.num_rows)
            return None
        ages = self.wall_clock() - times_of(answer.values)
        # No copy that would expire on the way; a time in the future is of a host whose clock is wrong.
        answer.found = answer.found & (np.abs(ages) < self._limits.ttl_s - self.timeout_s)
        num_found = self._count(l2, answer)
        if flight.delivered or num_found == 0:
            return None
        flight.values = answer.values = np.ascontiguousarray(answer.values[:, :-2])
        stamps = self._clock() - np.maximum(ages, 0.0)
        flight.oldest = float(stamps[answer.found].min())
        self._deliver(flight.ids, answer, num_found, stamps)
        if num_found == flight.num_rows:
            flight.complete = True
            return np.empty(0, np.int64)
        flight.decide(answer.found, Reason.FOUND)
        for waiter in flight.wakes():
            waiter.settle()
        return np.flatnonzero(~answer.found)

    async def _fetch_origin(self, flight: Flight, lacking: IdArray | None, deadline: float) -> None:
        """Fetch the rows `lacking` (None: all) from the origin."""
        if flight.delivered:
            return
        ids, external_ids = flight.ids, flight.external_ids
        if lacking is not None:
            ids, external_ids = ids[lacking], picked(external_ids, lacking)
        requested_at = self._clock()
        answer = await self._origin.read(self.group, external_ids, deadline=deadline, slow=self._late_calls)
        if flight.delivered:  # it has ended, but the store ignored the cancellation
            return
        if self._watch is not None and self._watch.refusal:  # the rows have changed meanwhile
            answer = Reason.SCHEMA
        at = slice(None) if lacking is None else lacking
        if isinstance(answer, Reason):
            self._metrics.rows(self._origin.name, answer.label, len(ids))
            flight.decide(at, answer)
            return
        num_found = self._count(self._origin, answer)
        if num_found == len(ids):
            flight.complete = True
        else:
            flight.decide(at, _reasons(answer))
        if lacking is None:
            flight.values = answer.values
        else:
            # Not into the old array: a caller with a timeout may still read it.
            flight.values = np.array(flight.values)
            flight.values[lacking] = answer.values
        stamp = requested_at - answer.age_s
        flight.oldest = min(flight.oldest, stamp)
        self._deliver(ids, answer, num_found, stamp)
        if self._write_back is not None and not (self._watch is not None and self._watch.l2_refusal):
            time_s = self.wall_clock() - (self._clock() - stamp)
            if num_found == len(ids):
                self._write_back.add(external_ids, stamped(answer.values, time_s))
            elif num_found:
                kept = np.flatnonzero(answer.found)
                self._write_back.add(picked(external_ids, kept), stamped(answer.values[kept], time_s))

    def _land(self, flight: Flight, rest: Reason) -> None:
        """End the flight: undecided rows get the reason `rest`, and waiting callers are woken."""
        if flight.delivered:
            return
        flight.delivered = True
        del self._flights[flight.number]
        if flight.complete:
            flight.reasons = None
            self._in_flight.release(flight.ids, flight.number)
        else:
            self._settle(flight, rest)
        for waiter in flight.wakes():
            waiter.settle()

    def _settle(self, flight: Flight, rest: Reason) -> None:
        """Set the reason of each row of an incomplete flight; cache missing rows."""
        if flight.reasons is None:
            flight.decide(slice(None), rest)
        reasons = flight.reasons
        assert reasons is not None
        reasons[reasons == Reason.TIMEOUT] = rest
        absent = (reasons == Reason.MISSING) | (reasons == Reason.INVALID)
        if self._limits.negative_ttl_s > 0 and absent.any():
            self._in_flight.release(flight.ids[~absent], flight.number)
            self._remember(flight, absent)
        else:
            self._in_flight.release(flight.ids, flight.number)

    def _give_up(self, number: int) -> None:
        """End a flight whose time is over."""
        flight = self._flights.get(number)
        if isinstance(flight, Flight):
            self._end(flight, Reason.TIMEOUT)

    def _end(self, flight: Flight, reason: Reason) -> None:
        """End a flight and free its rows, even if its task does not end yet."""
        if flight.delivered:
            return
        if not flight.ids.shape[0]:  # it has not started
            flight.close()
        reasons, num_open = flight.reasons, flight.num_rows
        if reasons is not None:
            num_open = int(np.count_nonzero(reasons == Reason.TIMEOUT))
        self._metrics.rows(self._origin.name, reason.label, num_open)
        task = flight.task
        if task is not None and not task.done():
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        self._land(flight, reason)

    def _remember(self, flight: Flight, absent: NDArray[np.bool_]) -> None:
        assert flight.reasons is not None
        expires = self._clock() + self._limits.negative_ttl_s
        left = Absences(flight.number, flight.ids[absent], flight.reasons, expires)
        self._flights[left.number] = left
        self._remembered.append(left)
        self._num_remembered += left.ids.shape[0]
        while self._num_remembered > self._limits.max_negative_rows:
            self._forget_oldest()

    def _forget(self, now: float) -> None:
        while self._remembered and self._remembered[0].expires <= now:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        left = self._remembered.popleft()
        self._num_remembered -= left.ids.shape[0]
        self._in_flight.release(left.ids, left.number)
        del self._flights[left.number]

    def _deliver(
        self, ids: IdArray, answer: FetchedRows, num_found: int, stamps: float | NDArray[np.float64]
    ) -> None:
        """Pass found rows to the callback."""
        if self.on_rows is None or num_found == 0:
            return
        try:
            if num_found == len(ids):
                self.on_rows(ids, answer.values, stamps)
            else:
                found = answer.found
                of_found = stamps if isinstance(stamps, float) else stamps[found]
                self.on_rows(ids[found], answer.values[found], of_found)
        except Exception:  # the boundary: callers get their rows even if the cache is full
            log.exception("rows of feature group %r could not be cached", self.group.name)

    def _count(self, tier: Tier, answer: FetchedRows) -> int:
        """Count rows in the metrics; return how many were found."""
        num_found = int(np.count_nonzero(answer.found))
        if num_found:
            self._metrics.rows(tier.name, _FOUND, num_found)
        num_missing = len(answer.found) - num_found - answer.num_invalid
        if num_missing:
            self._metrics.rows(tier.name, Reason.MISSING.label, num_missing)
        if answer.num_invalid:
            self._metrics.rows(tier.name, Reason.INVALID.label, answer.num_invalid)
        return num_found


def _reasons(answer: FetchedRows) -> NDArray[np.uint8]:
    """Return the reasons, uint8 [n]. If a store does not report which rows are invalid, all are missing."""
    reasons = np.where(answer.found, np.uint8(Reason.FOUND), np.uint8(Reason.MISSING))
    if answer.invalid is not None:
        reasons[answer.invalid] = Reason.INVALID
    elif answer.num_invalid and answer.num_invalid == np.count_nonzero(~answer.found):
        reasons[~answer.found] = Reason.INVALID
    return reasons
