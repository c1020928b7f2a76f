"""Gets requests the feature rows and edges that they lack, each its own, while others are answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

import numpy as np

from hopline.engine.source import Absent, FetchedInputs, FetchedRows, RowSource
from hopline.errors import GraphStoreUnavailable, HoplineError
from hopline.features.l1_rows import FetchResult, L1Rows
from hopline.graph.store_columns import FetchedEdges
from hopline.rollout.edge_fetcher import EdgeFetcher
from hopline.rollout.prefetcher import Prefetcher, Told, Wanted
from hopline.types import IdArray


class FetchesRows(RowSource, Protocol):
    """Rows of one node type, and how missing ones are fetched."""

    async def fetch(self, ids: IdArray, timeout_s: float, *, alone: bool = False) -> FetchResult:
        """See `L1Rows.fetch`."""
        ...


class FeatureFetcher:
    """Fetches feature rows and edges for waiting requests.

    Args:
        l1_rows: node type -> its rows.
        timeout_s: the longest that a request waits for rows, over all rounds.
        prefetcher: asked first; None where every process fetches its own rows.
        edges: fetches edges of a graph store; None where edges lie in the process.
    """

    def __init__(
        self,
        l1_rows: Mapping[str, FetchesRows],
        timeout_s: float,
        prefetcher: Prefetcher | None = None,
        edges: EdgeFetcher | None = None,
    ) -> None:
        self._l1_rows = l1_rows
        self._edges = edges
        self._timeout_s = timeout_s
        self._prefetcher = prefetcher
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self,
        absent: Absent,
        supply: FetchedInputs,
        until: float,
        resume: Callable[[FetchedInputs, float], Any],
        wanted: Callable[[], Wanted | None] | None = None,
    ) -> None:
        """Fetch, then call `resume` with what the request has now and the end of its patience.

        Args:
            absent: what it lacks.
            supply: what it had.
            until: time.monotonic() at which it continues with the present rows; 0 where it has not waited
            yet.
            wanted: describes what the request is about; None where that does not describe what it lacks.
        """
        now = time.monotonic()
        about, hold = None, bool(until)
        if self._prefetcher is not None and wanted is not None and not hold:
            about = wanted()
        if absent.edges:
            task = asyncio.ensure_future(self._fetch_edges(absent, supply, until, resume))
        else:
            until = until or now + self._timeout_s
            task = asyncio.ensure_future(self._fetch(absent, supply, until, resume, about, hold))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch(
        self,
        absent: Absent,
        supply: FetchedInputs,
        until: float,
        resume: Callable[[FetchedInputs, float], Any],
        wanted: Wanted | None,
        hold: bool,
    ) -> None:
        fetched_rows = {name: list(rows) for name, rows in supply.fetched_rows.items()}
        why: dict[str, int] = {"failed": 1}
        try:
            left_s = max(0.0, until - time.monotonic())
            why = await self.fetch(absent, fetched_rows, left_s, wanted, hold=hold)
        finally:  # the boundary: whatever happens, the request must continue
            told = ", ".join(f"{count} {reason}" for reason, count in why.items())
            is_last = bool(why) or time.monotonic() >= until
            resume(FetchedInputs(fetched_rows, is_last, told, supply.fetched_edges), until)

    async def _fetch_edges(
        self,
        absent: Absent,
        supply: FetchedInputs,
        until: float,
        resume: Callable[[FetchedInputs, float], Any],
    ) -> None:
        """Edges of one hop. The patience for rows, `until`, begins when rows are fetched."""
        fetched_edges = {key: list(edges) for key, edges in supply.fetched_edges.items()}
        failed: HoplineError | None = GraphStoreUnavailable("the read was cancelled")
        try:
            failed = await self.fetch_edges(absent, fetched_edges)
        finally:  # the boundary, as above
            resume(supply._replace(fetched_edges=fetched_edges, edges_failed=failed), until)

    async def fetch_edges(
        self, absent: Absent, fetched_edges: dict[str, list[FetchedEdges]]
    ) -> HoplineError | None:
        """Add edges to `fetched_edges`; returns why they could not be read."""
        assert self._edges is not None
        found = await self._edges.fetch(absent.edges)
        if isinstance(found, HoplineError):
            return found
        for key, edges in found.items():
            fetched_edges.setdefault(key, []).append(edges)
        return None

    async def fetch(
        self,
        absent: Absent,
        fetched_rows: dict[str, list[FetchedRows]],
        timeout_s: float,
        wanted: Wanted | None = None,
        *,
        hold: bool = True,
    ) -> dict[str, int]:
        """Add the rows that come in time to `fetched_rows`; returns how many did not, by reason.

        Args:
            wanted: what they are for, where the prefetcher may resolve that.
            hold: copy also what the prefetcher brings. The first time that is left in L1, where the request
                will read it; should it be displaced before, the second round holds it.
        """
        why: dict[str, int] = {}
        missing = absent.absent
        alone = False
        if self._prefetcher is not None:
            end = time.monotonic() + timeout_s
            told = await self._prefetcher.fetch(missing, wanted, timeout_s)
            if told is not None:
                missing = self._take(missing, told, fetched_rows if hold else None, why)
            timeout_s = max(0.0, end - time.monotonic())
            alone = self._prefetcher.was_lost
        if not missing:
            return why
        fetches = [self._l1_rows[name].fetch(ids, timeout_s, alone=alone) for name, ids in missing.items()]
        brought: list[FetchResult] = (
            [await fetches[0]] if len(fetches) == 1 else await asyncio.gather(*fetches)
        )
        for name, rows in zip(missing, brought, strict=True):
            if rows.ids.shape[0]:
                fetched_rows.setdefault(name, []).append(FetchedRows(rows.ids, rows.values))
            for reason, count in rows.why.items():
                why[reason] = why.get(reason, 0) + count
        return why

    def _take(
        self,
        missing: Mapping[str, IdArray],
        told: Told,
        fetched_rows: dict[str, list[FetchedRows]] | None,
        why: dict[str, int],
    ) -> dict[str, IdArray]:
        """Read what the prefetcher fetched; returns the rows that are neither here nor given up."""
        left: dict[str, IdArray] = {}
        for name, ids in missing.items():
            l1_rows = cast(L1Rows, self._l1_rows[name])  # a prefetcher fills the cache of nothing else
            if fetched_rows is None:
                lost = l1_rows.cache.probe(ids, time.monotonic())
            else:
                rows = np.empty((ids.shape[0], l1_rows.group.dim), np.float32)
                lost = l1_rows.read(ids, rows)
                here = np.ones(ids.shape[0], np.bool_)
                here[lost] = False
                if here.any():
                    fetched_rows.setdefault(name, []).append(FetchedRows(ids[here], rows[here]))
            if lost.shape[0]:
                gone = ids[lost]
                if told.lacking is not None:
                    gone = np.intersect1d(gone, told.lacking.get(name, ids[:0]))
                if gone.shape[0]:
                    why[told.reason] = why.get(told.reason, 0) + gone.shape[0]
                if gone.shape[0] < lost.shape[0]:  # displaced already, or not in the prefetcher's plan
                    left[name] = np.setdiff1d(ids[lost], gone)
        return left
