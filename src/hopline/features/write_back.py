"""Write-back: copies rows of the origin to L2 in the background; excess rows are dropped and counted."""

from __future__ import annotations

import asyncio
import logging

import numpy as np

from hopline.features.base import FeatureGroup
from hopline.features.flight import joined
from hopline.features.metrics import ClientMetrics
from hopline.features.tier import Tier
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

    Args:
        tier: L2.
        group: group of the copies, see `stamped.py`.
        max_rows: limit of waiting rows.
        metrics: counts rows "written" and "write_dropped".
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
