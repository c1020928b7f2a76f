"""Gets requests the feature rows that they lack, each request its own, while others are answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hopline.engine.answer import Supply
from hopline.engine.source import Absent, Overlay
from hopline.features.near import Brought, NearRows
from hopline.rollout.sidecar import Sidecar, Told, Wanted
from hopline.types import IdArray


class Supplier:
    """Args:
    near: node type -> its rows.
    timeout_s: the longest that a request waits for rows, over all rounds.
    sidecar: is asked first; None where every process fetches by itself.
    """

    def __init__(
        self, near: Mapping[str, NearRows], timeout_s: float, sidecar: Sidecar | None = None
    ) -> None:
        self._near = near
        self._timeout_s = timeout_s
        self._sidecar = sidecar
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        absent: Absent,
        supply: Supply,
        until: float,
        resume: Callable[[Supply, float], Any],
        wanted: Callable[[], Wanted | None] | None = None,
    ) -> None:
        """Fetch, then call `resume` with what the request has now and the end of its patience.

        Args:
            absent: what it lacks.
            supply: what it had.
            until: time.monotonic() at which it goes on with what there is; 0 where it has not waited yet.
            wanted: tells what the request is about; None where that does not describe what it lacks.
        """
        now = time.monotonic()
        about, hold = None, bool(until)
        if self._sidecar is not None and wanted is not None and not hold:
            about = wanted()
        until = until or now + self._timeout_s
        task = asyncio.ensure_future(self._bring(absent, supply, until, resume, about, hold))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bring(
        self,
        absent: Absent,
        supply: Supply,
        until: float,
        resume: Callable[[Supply, float], Any],
        wanted: Wanted | None,
        hold: bool,
    ) -> None:
        overlays = {name: list(rows) for name, rows in supply.overlays.items()}
        why: dict[str, int] = {"failed": 1}
        try:
            left_s = max(0.0, until - time.monotonic())
            why = await self.fetch(absent, overlays, left_s, wanted, hold=hold)
        finally:  # the boundary: whatever happens, the request must go on
            told = ", ".join(f"{count} {reason}" for reason, count in why.items())
            resume(Supply(overlays, bool(why) or time.monotonic() >= until, told), until)

    async def fetch(
        self,
        absent: Absent,
        overlays: dict[str, list[Overlay]],
        timeout_s: float,
        wanted: Wanted | None = None,
        *,
        hold: bool = True,
    ) -> dict[str, int]:
        """Add the rows that come in time to `overlays`; returns how many did not, by reason.

        Args:
            wanted: what they are for, where the sidecar may resolve that.
            hold: copy also what the sidecar brings. The first time that is left in L1, where the request
                will read it; should it be displaced before, the second round holds it.
        """
        why: dict[str, int] = {}
        missing = absent.absent
        alone = False
        if self._sidecar is not None:
            end = time.monotonic() + timeout_s
            told = await self._sidecar.bring(missing, wanted, timeout_s)
            if told is not None:
                missing = self._take(missing, told, overlays if hold else None, why)
            timeout_s = max(0.0, end - time.monotonic())
            alone = self._sidecar.was_lost
        if not missing:
            return why
        fetches = [self._near[name].bring(ids, timeout_s, alone=alone) for name, ids in missing.items()]
        brought: list[Brought] = [await fetches[0]] if len(fetches) == 1 else await asyncio.gather(*fetches)
        for name, rows in zip(missing, brought, strict=True):
            if rows.ids.shape[0]:
                overlays.setdefault(name, []).append(Overlay(rows.ids, rows.values))
            for reason, count in rows.why.items():
                why[reason] = why.get(reason, 0) + count
        return why

    def _take(
        self,
        missing: Mapping[str, IdArray],
        told: Told,
        overlays: dict[str, list[Overlay]] | None,
        why: dict[str, int],
    ) -> dict[str, IdArray]:
        """Look at what the sidecar brought; returns the rows that are neither here nor given up."""
        left: dict[str, IdArray] = {}
        for name, ids in missing.items():
            near = self._near[name]
            if overlays is None:
                lost = near.cache.probe(ids, time.monotonic())
            else:
                rows = np.empty((ids.shape[0], near.group.dim), np.float32)
                lost = near.read(ids, rows)
                here = np.ones(ids.shape[0], np.bool_)
                here[lost] = False
                if here.any():
                    overlays.setdefault(name, []).append(Overlay(ids[here], rows[here]))
            if lost.shape[0]:
                gone = ids[lost]
                if told.lacking is not None:
                    gone = np.intersect1d(gone, told.lacking.get(name, ids[:0]))
                if gone.shape[0]:
                    why[told.reason] = why.get(told.reason, 0) + gone.shape[0]
                if gone.shape[0] < lost.shape[0]:  # displaced already, or not in the sidecar's plan
                    left[name] = np.setdiff1d(ids[lost], gone)
        return left
