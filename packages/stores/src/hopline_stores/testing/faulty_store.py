"""A feature store with faults that tests switch on and off, for tests of its callers."""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import Counter
from typing import ClassVar, Literal

import numpy as np

from hopline.errors import FeatureStoreUnavailable
from hopline.features.base import MAX_PROBLEMS, FeatureGroup, FeatureStore, FetchedRows
from hopline.features.ids import listed
from hopline.types import ExternalId, ExternalIds, FloatArray

#: "rows": a few invalid rows, which the store reports. "short", "wide": arrays of the wrong shape, from a
#: store that violates its contract.
Garbage = Literal["", "rows", "short", "wide"]


class FaultyStore(FeatureStore):
    """Forwards calls to another store, with configurable faults. Counts all calls.

    Attributes:
        latency_s: delay added to each fetch.
        error: raised by fetches, writes and `describe`; None: no error.
        error_share: share of calls that raise `error`.
        missing_share: share of ids without a row; always the same ids.
        garbage: see `Garbage`; "rows" affects half of the rows.
        hanging: calls wait until `heal`, or until they are cancelled.
        deaf: hanging calls ignore cancellation.
        described: result of `describe` in place of the real one.
        num_fetches, num_rows, num_writes, num_written: received calls and rows.
        asked: number of requests for each id.
    """

    kind: ClassVar[str] = "faulty"

    def __init__(self, inner: FeatureStore, seed: int = 0) -> None:
        self._inner = inner
        self._rng = random.Random(seed)
        self._healthy = asyncio.Event()
        self.reset_counts()
        self.heal()

    def heal(self) -> None:
        """Remove all faults; hanging calls continue."""
        self.latency_s = 0.0
        self.error: Exception | None = None
        self.error_share = 1.0
        self.missing_share = 0.0
        self.garbage: Garbage = ""
        self.hanging = False
        self.deaf = False
        self.described: FeatureGroup | None = None
        self._healthy.set()
        self._healthy = asyncio.Event()

    def kill(self) -> None:
        """Become unavailable: every call fails immediately."""
        self.error = FeatureStoreUnavailable("faulty: set to be unavailable")

    def reset_counts(self) -> None:
        """Reset all counts to zero."""
        self.num_fetches = self.num_rows = self.num_writes = self.num_written = 0
        self.asked: Counter[ExternalId] = Counter()

    async def open(self) -> None:
        """See `FeatureStore.open`."""
        await self._inner.open()

    async def close(self) -> None:
        """See `FeatureStore.close`."""
        await self._inner.close()

    async def describe(self, group: str) -> FeatureGroup:
        """See `FeatureStore.describe`; returns `described` if set."""
        await self._suffer()
        return self.described or await self._inner.describe(group)

    async def create(self, group: FeatureGroup) -> None:
        """See `FeatureStore.create`."""
        await self._suffer()
        await self._inner.create(group)

    async def write(self, group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> None:
        """See `FeatureStore.write`; applies the faults first."""
        self.num_writes += 1
        self.num_written += len(ids)
        await self._suffer()
        await self._inner.write(group, ids, values)

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """See `FeatureStore.fetch`; applies the faults first."""
        self.num_fetches += 1
        self.num_rows += len(ids)
        self.asked.update(listed(ids))
        await self._suffer()
        rows = await self._inner.fetch(group, ids)
        if self.missing_share:
            rows = self._without(rows, ids)
        if self.garbage:
            rows = self._spoilt(rows, ids)
        return rows

    async def _suffer(self) -> None:
        """Apply latency, errors and hanging, as set when the call arrives."""
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        if self.error is not None and self._rng.random() < self.error_share:
            raise self.error
        if self.hanging:
            healthy, deaf = self._healthy, self.deaf
            while not healthy.is_set():
                try:
                    await healthy.wait()
                except asyncio.CancelledError:
                    if not deaf:
                        raise

    def _without(self, rows: FetchedRows, ids: ExternalIds) -> FetchedRows:
        marks = np.array([zlib.crc32(str(id).encode()) % 1000 for id in listed(ids)], np.int64)
        found = rows.found & (marks >= 1000 * self.missing_share)
        return FetchedRows(np.where(found[:, None], rows.values, np.float32(0)), found)

    def _spoilt(self, rows: FetchedRows, ids: ExternalIds) -> FetchedRows:
        if self.garbage == "short":
            return FetchedRows(rows.values[1:], rows.found[1:])
        if self.garbage == "wide":
            return FetchedRows(np.repeat(rows.values, 2, axis=1), rows.found)
        spoilt = rows.found & (np.arange(len(ids)) % 2 == 0)
        kept = rows.found & ~spoilt
        names = listed(ids)
        problems = tuple(
            f"the row of {names[at]!r} has the wrong length" for at in np.flatnonzero(spoilt)[:MAX_PROBLEMS]
        )
        values = np.where(kept[:, None], rows.values, np.float32(0))
        return FetchedRows(values, kept, problems, int(np.count_nonzero(spoilt)), spoilt)
