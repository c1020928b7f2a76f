"""Gets requests the feature rows that they lack, each request its own, while others are answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from hopline.engine.answer import Supply
from hopline.engine.source import Overlay, RowsAbsent
from hopline.features.near import Brought, NearRows


class Supplier:
    """Args:
    near: node type -> its rows.
    timeout_s: the longest that a request waits for rows, over all rounds.
    """

    def __init__(self, near: Mapping[str, NearRows], timeout_s: float) -> None:
        self._near = near
        self._timeout_s = timeout_s
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        absent: RowsAbsent,
        supply: Supply,
        until: float,
        resume: Callable[[Supply, float], Any],
    ) -> None:
        """Fetch, then call `resume` with what the request has now and the end of its patience.

        Args:
            absent: what it lacks.
            supply: what it had.
            until: time.monotonic() at which it goes on with what there is; 0 where it has not waited yet.
        """
        now = time.monotonic()
        until = until or now + self._timeout_s
        task = asyncio.ensure_future(self._bring(absent, supply, until, resume))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring(
        self,
        absent: RowsAbsent,
        supply: Supply,
        until: float,
        resume: Callable[[Supply, float], Any],
    ) -> None:
        overlays = {name: list(rows) for name, rows in supply.overlays.items()}
        why: dict[str, int] = {"failed": 1}
        try:
            why = await self.fetch(absent, overlays, max(0.0, until - time.monotonic()))
        finally:  # the boundary: whatever happens, the request must go on
            told = ", ".join(f"{count} {reason}" for reason, count in why.items())
            resume(Supply(overlays, bool(why) or time.monotonic() >= until, told), until)

    async def fetch(
        self, absent: RowsAbsent, overlays: dict[str, list[Overlay]], timeout_s: float
    ) -> dict[str, int]:
        """Add the rows that come in time to `overlays`; returns how many did not, by reason."""
        why: dict[str, int] = {}
        fetches = [self._near[name].bring(ids, timeout_s) for name, ids in absent.absent.items()]
        brought: list[Brought] = [await fetches[0]] if len(fetches) == 1 else await asyncio.gather(*fetches)
        for name, rows in zip(absent.absent, brought, strict=True):
            if rows.ids.shape[0]:
                overlays.setdefault(name, []).append(Overlay(rows.ids, rows.values))
            for reason, count in rows.why.items():
                why[reason] = why.get(reason, 0) + count
        return why
