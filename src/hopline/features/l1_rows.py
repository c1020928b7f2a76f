"""One node type's feature rows in a process: the L1 feature cache, and fetching of missing rows.

If another process of the host is fetching a row, this process waits until the row appears in the shared
memory.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable

import numpy as np

from hopline.features.base import FeatureGroup
from hopline.features.client import FeatureClient
from hopline.features.l1 import L1FeatureCache
from hopline.features.metrics import Distribution
from hopline.types import ExternalIds, FloatArray, IdArray, StampArray

#: Seconds between checks for rows of another process: the first and the longest pause.
_FIRST_LOOK_S, _LAST_LOOK_S = 0.0003, 0.002
#: One of this many reads measures the age of its rows.
_AGED_EVERY = 64


class FetchResult:
    """The result of `L1Rows.fetch`.

    Attributes:
        ids: int64 [n], found and fetched by this process. values: float32 [n, dim].
        is_complete: True if all requested rows are in this result or in the L1 feature cache.
        why: number of missing rows by reason.
        oldest: when the origin had the oldest of the values at the latest; inf for rows without an age.
    """

    __slots__ = ("ids", "is_complete", "oldest", "values", "why")

    def __init__(
        self, ids: IdArray, values: FloatArray, why: dict[str, int], oldest: float = math.inf
    ) -> None:
        self.ids = ids
        self.values = values
        self.why = why
        self.oldest = oldest
        self.is_complete = not why


class L1Rows:
    """Rows of one node type; a `RowSource` for the engine. See the module docstring.

    Args:
        group: the feature group.
        cache: the L1 feature cache.
        client: fetches rows; they are written to the cache.
        external: converts global ids int64 [n] to the store's ids.
        mean: computes the replacement of a missing row, float32 [dim]; called once.
        ages: metric of ages; None for no measurement.
        shared: True if other processes map the cache.
        clock: seconds, monotonic; that of the client, and of all processes that map the cache.

    Attributes:
        key: name for a prefetcher, if it is not that of the node type.
    """

    def __init__(
        self,
        group: FeatureGroup,
        cache: L1FeatureCache,
        client: FeatureClient,
        external: Callable[[IdArray], ExternalIds],
        mean: Callable[[], FloatArray],
        ages: Distribution | None = None,
        *,
        shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group = group
        self.cache = cache
        self.client = client
        self.num_fetched = 0
        self.key = ""
        self._external = external
        self._make_mean = mean
        self._mean: FloatArray | None = None
        self._ages = ages
        self._until_aged = _AGED_EVERY
        self._shared = shared
        self._clock = clock
        self.ttl_s = cache.ttl_s
        client.on_rows = cache.write

    @property
    def row_bytes(self) -> int:
        """Size of a row in its store."""
        return self.group.row_bytes

    def read(self, ids: IdArray, out: FloatArray, *, stale: bool = False) -> tuple[IdArray, StampArray]:
        """See `RowSource.read`."""
        now = self._clock()
        found = self.cache.read(ids, out, now, stale)
        self._until_aged -= 1
        if self._until_aged == 0:
            self._until_aged = _AGED_EVERY
            if self._ages is not None:
                for age in self.cache.ages(ids[:64], now):
                    if age == age:  # not NaN: the row is present
                        self._ages.observe(float(age))
        return found

    def probe(self, ids: IdArray) -> IdArray:
        """Positions of the rows that `read` would not find, int64 [m]."""
        return self.cache.probe(ids, self._clock())

    def age_s(self, stamp: float) -> float:
        """See `RowSource.age_s`."""
        return self._clock() - stamp

    def mean(self) -> FloatArray:
        """See `RowSource.mean`."""
        if self._mean is None:
            self._mean = self._make_mean()
        return self._mean

    async def fetch(self, ids: IdArray, timeout_s: float, *, alone: bool = False) -> FetchResult:
        """Fetch rows into the L1 feature cache.

        Args:
            ids: int64 [n] distinct global ids.
            timeout_s: time limit, seconds.
            alone: ignore the claims of other processes, which may have died.

        Returns: the rows; late rows still reach the L1 feature cache.
        """
        if alone or not self._shared:
            # Rows may have arrived since the caller's check.
            ids = ids[self.probe(ids)]
            return await self._fetch(ids, timeout_s) if ids.shape[0] else self._joined([])
        end = self._clock() + timeout_s
        now = end - timeout_s
        mine = self.cache.claim(ids, now, timeout_s)
        if mine.all():
            return await self._fetch(ids, timeout_s)
        others = asyncio.ensure_future(self._await_others(ids[~mine], end))
        try:
            fetched = await self._fetch(ids[mine], timeout_s) if mine.any() else None
            also = await others
        finally:
            others.cancel()
        return self._joined([*also, *([] if fetched is None else [fetched])])

    async def _fetch(self, ids: IdArray, timeout_s: float) -> FetchResult:
        self.num_fetched += ids.shape[0]
        rows = await self.client.fetch(ids, self._external(ids), timeout_s)
        why = rows.why
        if not self.age_s(rows.oldest) < self.ttl_s and rows.oldest < math.inf:
            why = {**why, "expired": 1}  # they took too long: asking again would not help
        if rows.complete:
            return FetchResult(ids, rows.values, why, rows.oldest)
        found = rows.found
        if self._shared:
            self.cache.release(ids[~found])
        return FetchResult(ids[found], rows.values[found], why, rows.oldest)

    async def _await_others(self, ids: IdArray, end: float) -> list[FetchResult]:
        """Wait for rows that other processes fetch; fetch rows whose claims have ended."""
        pause = _FIRST_LOOK_S
        parts: list[FetchResult] = []
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_LOOK_S)
            now = self._clock()
            ids = ids[self.cache.probe(ids, now)]
            if not ids.shape[0]:
                break
            if now >= end:
                parts.append(self._joined([], {"timeout": ids.shape[0]}))
                break
            free = ~self.cache.pending(ids, now)
            if free.any():
                mine = self.cache.claim(ids[free], now, end - now)
                taken = ids[free][mine]
                if taken.shape[0]:
                    parts.append(await self._fetch(taken, end - now))
                    ids = np.setdiff1d(ids, taken)
                    if not ids.shape[0]:
                        break
        return parts

    def _joined(self, parts: list[FetchResult], why: dict[str, int] | None = None) -> FetchResult:
        reasons = dict(why or {})
        for part in parts:
            for reason, count in part.why.items():
                reasons[reason] = reasons.get(reason, 0) + count
        ids = np.concatenate([np.empty(0, np.int64), *(part.ids for part in parts)])
        none = np.empty((0, self.group.dim), np.float32)
        values = np.concatenate([none, *(part.values for part in parts)])
        return FetchResult(ids, values, reasons, min((part.oldest for part in parts), default=math.inf))
