"""One store as used by the client: with a breaker, retries, and metrics; and the copies of rows in L2.

This file does not depend on rows in flight or on other tiers.
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
from hopline.features.flight import joined
from hopline.features.metrics import ClientMetrics
from hopline.features.overdue import Overdue
from hopline.features.retry import RetryBudget, RetryPolicy
from hopline.features.rows import not_finite
from hopline.types import ExternalIds, FloatArray

log = logging.getLogger(__name__)

#: Rows per write: enough to save round trips, few enough not to delay readers of the store.
_ROWS_AT_ONCE = 4096
#: No caller waits for a write, so its timeout is longer than a fetch's.
_WRITE_TIMEOUT_S = 1.0


class WriteBack:
    """Writes copies to L2, one write at a time; its task exists only while there is work.

    A failed write drops its rows, since L2 is a copy. Writes do not affect the breaker, since a store that
    refuses them (full, read-only) may still be readable. While the breaker is not closed, nothing is
    written.
    """

    def __init__(self, tier: Tier, group: FeatureGroup, max_rows: int, metrics: ClientMetrics) -> None:
        self._tier = tier
        self._group = group
        self._max_rows = max_rows
        self._metrics = metrics
        self._waiting: list[tuple[ExternalIds, FloatArray]] = []
        self._num_waiting = 0
        self._task: asyncio.Task[None] | None = None
        self._complained = False

    def add(self, external_ids: ExternalIds, values: FloatArray) -> None:
        """Add copies, float32 [n, dim + 2], without waiting."""
        num_rows = len(external_ids)
        if self._tier.breaker.state != "closed" or self._num_waiting + num_rows > self._max_rows:
            self._metrics.rows(self._tier.name, "write_dropped", num_rows)
            return
        self._waiting.append((external_ids, values))
        self._num_waiting += num_rows
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())

    async def join(self) -> None:
        """Wait until no rows wait."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def close(self) -> None:
        """Drop waiting rows."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=_WRITE_TIMEOUT_S)
        self._drop_waiting()

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                if self._tier.breaker.state != "closed":
                    self._drop_waiting()
                else:
                    await self._write_some()
        finally:
            self._task = None

    async def _write_some(self) -> None:
        num_rows = num_parts = 0
        for external_ids, _ in self._waiting:
            if num_parts and num_rows + len(external_ids) > _ROWS_AT_ONCE:
                break
            num_rows += len(external_ids)
            num_parts += 1
        parts, self._waiting = self._waiting[:num_parts], self._waiting[num_parts:]
        ids = joined([external_ids for external_ids, _ in parts])
        values = parts[0][1] if num_parts == 1 else np.concatenate([values for _, values in parts])
        result = "write_dropped"
        try:
            async with asyncio.timeout(_WRITE_TIMEOUT_S):
                await self._tier.store.write(self._group, ids, values)
            result = "written"
            self._complained = False
        except Exception as error:  # the boundary: a failed copy does not affect answers
            if not self._complained:
                self._complained = True
                log.warning(
                    "feature store %s (%s): write-back failed: %s: %s",
                    self._tier.store.kind, self._tier.name, type(error).__name__, error,
                )  # fmt: skip
        finally:
            self._num_waiting -= num_rows
            self._metrics.rows(self._tier.name, result, num_rows)

    def _drop_waiting(self) -> None:
        if self._num_waiting:
            self._metrics.rows(self._tier.name, "write_dropped", self._num_waiting)
        self._waiting, self._num_waiting = [], 0


#: Seconds in which a store has at most `_MOST` log messages, all different, each of as many rows.
_LOG_EVERY_S, _MOST = 10.0, 10


class Tier:
    """One store with its breaker and retries. Several clients (one per group) may share a tier.

    Args:
        name: label of metrics: "l2" or "origin".
        store: opened.
        breaker, retry: their policies.
        metrics: counts all calls.
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
        self._metrics = metrics or ClientMetrics()
        self._clock = clock
        self._was_closed = True
        self._silent_until = float("-inf")
        self._said: set[str] = set()
        self._metrics.breaker(name, 0)

    async def read(
        self,
        group: FeatureGroup,
        ids: ExternalIds,
        *,
        deadline: float,
        slow: Overdue[Verdict] | None = None,
        limit_s: float | None = None,
    ) -> FetchedRows | Reason:
        """Return rows in request order, or the reason of a failure. Never raises errors of the store.

        Args:
            group, ids: see `FeatureStore.fetch`.
            deadline: on the clock; no retry is in time after it.
            slow: calls `Verdict.mark_late` for slow calls: they count as failed, but continue.
            limit_s: timeout of the store in seconds, which also counts as a failure; None if the caller
                cancels.
        """
        if limit_s is None:
            return await self._read(group, ids, deadline, slow, None)
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._read(group, ids, deadline, slow, limit)
        except TimeoutError:
            return Reason.TIMEOUT

    async def _read(
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
                    self._complain("is unavailable: %s", error)
                    return Reason.UNAVAILABLE
            num_tried += 1
            self._metrics.retried(self.name)
            await asyncio.sleep(wait_s)

    async def _call(
        self, group: FeatureGroup, ids: ExternalIds, verdict: Verdict, limit: asyncio.Timeout | None
    ) -> FetchedRows | Reason:
        """Call the store once. Raises: FeatureStoreUnavailable: the call may be retried."""
        outcome = "refused"
        try:
            rows = await self.store.fetch(group, ids)
            # For a late call the verdict was already given, and this one is ignored.
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
            verdict.give(True)  # the store responds, only its rows differ
            self._complain("has other rows: %s", error)
            return Reason.SCHEMA
        except Exception as error:  # the boundary to third-party code
            verdict.give(False)
            self._complain("failed: %s: %s", type(error).__name__, error)
            return Reason.UNAVAILABLE
        finally:
            self._metrics.called(self.store.kind, self.name, outcome, self._clock() - verdict.began)
        if rows.problems:
            what = "; ".join(rows.problems[:_MOST])
            self._complain("%d of %d rows cannot be used: %s", rows.num_invalid, len(ids), what)
        if not _fits(rows, len(ids), group.dim):
            self._complain("returned arrays that are not %d rows of %d float32", len(ids), group.dim)
            return Reason.INVALID
        if not np.isfinite(rows.values).all():
            self._refuse_not_finite(rows, ids, group)
        return rows

    def _refuse_not_finite(self, rows: FetchedRows, ids: ExternalIds, group: FeatureGroup) -> None:
        """Make rows that have NaN or infinity invalid: no model was trained on them, and they spread."""
        bad = rows.found & ~np.isfinite(rows.values).all(1)
        where = np.flatnonzero(bad)
        if not where.shape[0]:
            return
        if rows.num_invalid and rows.invalid is None:
            rows.invalid = ~rows.found  # which of these are invalid, and which missing, is not known
        rows.invalid = bad if rows.invalid is None else rows.invalid | bad
        rows.num_invalid += where.shape[0]
        rows.found = rows.found & ~bad
        what = "; ".join(not_finite(group, ids, rows.values, row) for row in where[:_MOST].tolist())
        self._complain("%d of %d rows cannot be used: %s", where.shape[0], len(ids), what)
        rows.values = np.where(rows.found[:, None], rows.values, np.float32(0))

    def _note(self) -> None:
        """Report a breaker that opened or closed."""
        closed = self.breaker.state == "closed"
        self._was_closed = closed
        self._metrics.breaker(self.name, -1 if closed else 1)
        if closed:
            log.info("feature store %s (%s) responds again", self.store.kind, self.name)
            self._silent_until = float("-inf")
        else:
            log.warning(
                "feature store %s (%s) fails too often: requests are paused", self.store.kind, self.name
            )

    def _complain(self, text: str, *values: object) -> None:
        now = self._clock()
        if now >= self._silent_until:
            self._silent_until = now + _LOG_EVERY_S
            self._said.clear()
        if len(self._said) < _MOST and (said := text % values) not in self._said:
            self._said.add(said)
            log.warning("feature store %s (%s) %s", self.store.kind, self.name, said)


class Verdict:
    """Reports the result of a call to the breaker, once.

    Attributes:
        began: when the call was sent.
        given: True if the breaker has the result.
    """

    __slots__ = ("_tier", "began", "given")

    def __init__(self, tier: Tier, began: float) -> None:
        self._tier = tier
        self.began = began
        self.given = False

    def mark_late(self) -> None:
        """Record a failure if the call has not ended."""
        self.give(False)

    def give(self, ok: bool) -> None:
        """Record the result; only the first one is used."""
        if not self.given:
            self.given = True
            tier = self._tier
            tier.breaker.record(ok, tier._clock(), self.began)
            if (tier.breaker.state == "closed") is not tier._was_closed:
                tier._note()

    def withdraw(self) -> None:
        """Record that the call was cancelled: its result is unknown, unless it was already slow."""
        if not self.given:
            self.given = True
            self._tier.breaker.abandon(self._tier._clock(), self.began)


def _fits(rows: FetchedRows, num_rows: int, dim: int) -> bool:
    """Return True if arrays have the promised form, so that rows are never shifted."""
    values, found = rows.values, rows.found
    return (
        values.shape == (num_rows, dim)
        and found.shape == (num_rows,)
        and values.dtype == np.float32
        and found.dtype == np.bool_
    )
