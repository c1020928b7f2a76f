"""A feature store that fails as it is told to, while it runs: for tests of what stands in front of it."""

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

#: "rows": a few rows that cannot be used, which the store notices. "short", "wide": arrays of the wrong
#: form, from a store that breaks its promises.
Garbage = Literal["", "rows", "short", "wide"]


class FaultyStore(FeatureStore):
    """Passes calls on to another store, unless told otherwise. Counts every call that reaches it.

    Attributes:
        latency_s: a fetch takes so much longer.
        error: raised by fetches, writes and `describe`; None for none.
        error_share: of the calls that `error` meets.
        missing_share: of the ids that have no row; the same ones each time.
        garbage: see `Garbage`; half of the rows for "rows".
        hanging: calls do not end until `heal`, or until they are cancelled.
        deaf: hanging calls ignore that they are cancelled.
        described: what `describe` answers in place of the truth.
        num_fetches, num_rows, num_writes, num_written: calls and rows that came in.
        asked: how often each id was asked for.
    """

    kind: ClassVar[str] = "faulty"

    def __init__(self, inner: FeatureStore, seed: int = 0) -> None:
        self._inner = inner
        self._rng = random.Random(seed)
        self._healthy = asyncio.Event()
        self.reset_counts()
        self.heal()

    def heal(self) -> None:
        """Be as the inner store from now on; calls that hang go on."""
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
        """Be away: every call fails at once."""
        self.error = FeatureStoreUnavailable("faulty: told to be away")

    def reset_counts(self) -> None:
        """Count from zero."""
        self.num_fetches = self.num_rows = self.num_writes = self.num_written = 0
        self.asked: Counter[ExternalId] = Counter()

    async def open(self) -> None:
        """As the inner store."""
        await self._inner.open()

    async def close(self) -> None:
        """As the inner store."""
        await self._inner.close()

    async def describe(self, group: str) -> FeatureGroup:
        """As the inner store, or `described`."""
        await self._suffer()
        return self.described or await self._inner.describe(group)

    async def create(self, group: FeatureGroup) -> None:
        """As the inner store."""
        await self._suffer()
        await self._inner.create(group)

    async def write(self, group: FeatureGroup, ids: ExternalIds, values: FloatArray) -> None:
        """As the inner store, after the faults."""
        self.num_writes += 1
        self.num_written += len(ids)
        await self._suffer()
        await self._inner.write(group, ids, values)

    async def fetch(self, group: FeatureGroup, ids: ExternalIds) -> FetchedRows:
        """As the inner store, after the faults."""
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
        """Latency, errors and hanging, as they are set when the call comes in."""
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
