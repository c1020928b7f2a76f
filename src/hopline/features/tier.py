"""One store as the client uses it: with a breaker, retries, and numbers of how it does.

Knows nothing of rows in flight and of other tiers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import numpy as np

from hopline.errors import FeatureSchemaMismatch, FeatureStoreUnavailable
from hopline.features.answer import Reason
from hopline.features.base import FeatureGroup, FeatureStore, FetchedRows
from hopline.features.breaker import BreakerPolicy, CircuitBreaker
from hopline.features.metrics import ClientMetrics, NoMetrics
from hopline.features.overdue import Overdue
from hopline.features.retry import RetryBudget, RetryPolicy
from hopline.types import ExternalIds

log = logging.getLogger(__name__)

#: Seconds between log lines about a failing store.
_LOG_EVERY_S = 10.0


class Tier:
    """See the module. Several clients (one for each group) may share one: the store is one.

    Args:
        name: label of metrics: "l2" or "origin".
        store: open.
        breaker, retry: see there.
        metrics: counts every call.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        name: str,
        store: FeatureStore,
        *,
        breaker: BreakerPolicy | None = None,
        retry: RetryPolicy | None = None,
        metrics: ClientMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.store = store
        self.breaker = CircuitBreaker(breaker)
        self.retries = RetryBudget(retry)
        self._metrics = metrics or NoMetrics()
        self._clock = clock
        self._was_closed = True
        self._silent_until = float("-inf")
        self._metrics.breaker(name, 0)

    async def ask(
        self,
        group: FeatureGroup,
        ids: ExternalIds,
        *,
        deadline: float,
        slow: Overdue[Verdict] | None = None,
        limit_s: float | None = None,
    ) -> FetchedRows | Reason:
        """Rows in the order asked for, or why there are none. Never raises for what the store does.

        Args:
            group, ids: as `FeatureStore.fetch`.
            deadline: on the clock; no retry would be in time after it.
            slow: calls `Verdict.too_late` for calls that take too long: they count as failed and continue.
            limit_s: seconds after which the store is not waited for, which counts as failed as well;
                None leaves that to the caller, who cancels.
        """
        if limit_s is None:
            return await self._ask(group, ids, deadline, slow, None)
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._ask(group, ids, deadline, slow, limit)
        except TimeoutError:
            return Reason.TIMEOUT

    async def _ask(
        self,
        group: FeatureGroup,
        ids: ExternalIds,
        deadline: float,
        slow: Overdue[Verdict] | None,
        limit: asyncio.Timeout | None,
    ) -> FetchedRows | Reason:
        num_tried = 0
        while True:
            began = self._clock()
            if not self.breaker.allow(began):
                return Reason.BREAKER_OPEN
            if num_tried == 0:
                self.retries.called(began)
            verdict = Verdict(self, began)
            if slow is not None:
                slow.add(verdict, asyncio.get_running_loop())
            try:
                return await self._call(group, ids, verdict, limit)
            except FeatureStoreUnavailable as error:
                wait_s = self.retries.take(num_tried, self._clock(), deadline)
                if wait_s is None:
                    self._complain("cannot be asked: %s", error)
                    return Reason.UNAVAILABLE
            num_tried += 1
            self._metrics.retried(self.name)
            await asyncio.sleep(wait_s)

    async def _call(
        self, group: FeatureGroup, ids: ExternalIds, verdict: Verdict, limit: asyncio.Timeout | None
    ) -> FetchedRows | Reason:
        """One call. Raises: FeatureStoreUnavailable: it may be tried again."""
        outcome = "refused"
        try:
            rows = await self.store.fetch(group, ids)
            # Late, but still right: the verdict was given when it became late.
            outcome = "timeout" if verdict.given else "ok"
            verdict.give(True)
        except FeatureStoreUnavailable:
            outcome = "unavailable"
            verdict.give(False)
            raise
        except asyncio.CancelledError:
            if limit is not None and limit.expired():
                verdict.give(False)
            outcome = "timeout" if verdict.given else "cancelled"
            verdict.withdraw()
            raise
        except FeatureSchemaMismatch as error:
            verdict.give(True)  # it answers; what it answers is another matter
            self._complain("has other rows: %s", error)
            return Reason.SCHEMA
        except Exception as error:  # the boundary to stores' own and third-party code
            verdict.give(False)
            self._complain("failed: %s: %s", type(error).__name__, error)
            return Reason.UNAVAILABLE
        finally:
            self._metrics.called(self.store.kind, self.name, outcome, self._clock() - verdict.began)
        if rows.problems:
            self._complain("%d of %d rows cannot be used: %s", rows.num_invalid, len(ids), rows.problems[0])
        if not _fits(rows, len(ids), group.dim):
            self._complain("answered arrays that are not %d rows of %d float32", len(ids), group.dim)
            return Reason.INVALID
        return rows

    def _note(self) -> None:
        """Report a breaker that opened or closed."""
        closed = self.breaker.state == "closed"
        self._was_closed = closed
        self._metrics.breaker(self.name, -1 if closed else 1)
        if closed:
            log.info("feature store %s (%s) answers again", self.store.kind, self.name)
            self._silent_until = float("-inf")
        else:
            log.warning("feature store %s (%s) fails too often: not asked", self.store.kind, self.name)

    def _complain(self, text: str, *values: object) -> None:
        now = self._clock()
        if now >= self._silent_until:
            self._silent_until = now + _LOG_EVERY_S
            log.warning("feature store %s (%s) " + text, self.store.kind, self.name, *values)


class Verdict:
    """Tells the breaker once how a call went.

    Attributes:
        began: when the call went out.
        given: whether the breaker has the verdict.
    """

    __slots__ = ("_tier", "began", "given")

    def __init__(self, tier: Tier, began: float) -> None:
        self._tier = tier
        self.began = began
        self.given = False

    def too_late(self) -> None:
        """The call has taken too long, if it has not ended."""
        self.give(False)

    def give(self, ok: bool) -> None:
        """The first verdict counts."""
        if not self.given:
            self.given = True
            tier = self._tier
            tier.breaker.record(ok, tier._clock(), self.began)
            if (tier.breaker.state == "closed") is not tier._was_closed:
                tier._note()

    def withdraw(self) -> None:
        """The call was cancelled: nothing is known, unless it was slow already."""
        if not self.given:
            self.given = True
            self._tier.breaker.abandon(self._tier._clock(), self.began)


def _fits(rows: FetchedRows, num_rows: int, dim: int) -> bool:
    """Whether arrays have the form that a store promises: never shift rows, whatever it does."""
    values, found = rows.values, rows.found
    return (
        values.shape == (num_rows, dim)
        and found.shape == (num_rows,)
        and values.dtype == np.float32
        and found.dtype == np.bool_
    )
