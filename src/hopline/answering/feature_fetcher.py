"""Gets requests the feature rows and edges that they lack, each its own, while others are answered."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np

from hopline.answering.edge_fetcher import EdgeFetcher
from hopline.engine.source import Absent, FetchedInputs, FetchedRows, RowSource
from hopline.errors import GraphStoreUnavailable, HoplineError
from hopline.features.answer import Reason
from hopline.features.l1_rows import FetchResult, L1Rows
from hopline.features.prefetcher import Prefetcher, PrefetchResponse, Wanted
from hopline.graph.store_columns import FetchedEdges
from hopline.types import IdArray

#: Rows that are waited for together: those of this many bytes, but at least so many rows. A larger request
#: reads one part after the other. Its time limit is for each part, so that it does not depend on the
#: request's size, and other requests have their turn between two parts.
_PART_BYTES, _MIN_PART_ROWS = 256 * 2**10, 1024
#: Reasons that are the row's own: the store responds, and has no such row.
_OF_THE_ROW = {Reason.MISSING.label, Reason.INVALID.label}


def never() -> bool:
    """Report that the request is still wanted."""
    return False


class FetchesRows(RowSource, Protocol):
    """Rows of one node type, and how missing ones are fetched."""

    @property
    def row_bytes(self) -> int:
        """Size of a row in its store."""
        ...

    async def fetch(self, ids: IdArray, timeout_s: float, *, alone: bool = False) -> FetchResult:
        """See `L1Rows.fetch`."""
        ...


class FeatureFetcher:
    """Fetches feature rows and edges for waiting requests.

    Args:
        l1_rows: node type -> its rows.
        timeout_s: the longest that a request waits for a part of its rows.
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
        #: Node type -> name of its rows for the prefetcher.
        self._keys = {name: getattr(rows, "key", "") or name for name, rows in l1_rows.items()}
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
        is_over: Callable[[], bool] = never,
    ) -> None:
        """Fetch, then call `resume` with what the request has now and the end of its patience.

        Args:
            absent: what it lacks.
            supply: what it had.
            until: time.monotonic() at which it continues with the present rows; 0 where it has not waited
                yet.
            wanted: describes what the request is about; None where that does not describe what it lacks.
            is_over: True if the request has ended, or is too late; checked before each part.
        """
        now = time.monotonic()
        about, hold = None, bool(until)
        if self._prefetcher is not None and wanted is not None and not hold:
            about = wanted()
        if absent.edges:
            task = asyncio.ensure_future(self._fetch_edges(absent, supply, until, resume))
        else:
            until = until or now + self._timeout_s
            task = asyncio.ensure_future(self._fetch(absent, supply, until, resume, about, hold, is_over))
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
        is_over: Callable[[], bool],
    ) -> None:
        fetched_rows = {name: list(rows) for name, rows in supply.fetched_rows.items()}
        why: dict[str, int] = {"failed": 1}
        began = time.monotonic()
        try:
            left_s = max(0.0, until - began)
            why = await self.fetch(absent, fetched_rows, left_s, wanted, hold=hold, is_over=is_over)
            num_parts = len(self._parts(absent.absent))
            until += (time.monotonic() - began) * (1 - 1 / num_parts)  # the patience is for one part
        finally:  # the boundary: whatever happens, the request must continue
            reasons = ", ".join(f"{count} {reason}" for reason, count in why.items())
            is_last = bool(why) or time.monotonic() >= until
            resume(FetchedInputs(fetched_rows, is_last, reasons, supply.fetched_edges), until)

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
        is_over: Callable[[], bool] = never,
    ) -> dict[str, int]:
        """Add the rows that come in time to `fetched_rows`; returns how many did not, by reason.

        A part of a large request that is late is waited for once more. After a part of which no row came,
        those behind it are given up.

        Args:
            timeout_s: for each part.
            wanted: what they are for, where the prefetcher may resolve that.
            hold: copy also what the prefetcher brings. The first time that is left in L1, where the request
                will read it; should it be displaced before, the second round holds it.
            is_over: see `begin`.
        """
        parts = self._parts(absent.absent)
        brought: dict[str, list[FetchResult]] = {}
        if len(parts) == 1:
            why = await self._fetch_part(parts[0], brought, timeout_s, wanted, hold)
        else:
            why = await self._fetch_parts(parts, brought, timeout_s, hold, is_over)
        for name, results in brought.items():
            if len(results) == 1:
                rows = FetchedRows(results[0].ids, results[0].values, results[0].oldest)
            else:  # tens of megabytes
                rows = await asyncio.to_thread(_joined, results)
            fetched_rows.setdefault(name, []).append(rows)
        return why

    async def _fetch_parts(
        self,
        parts: Sequence[Mapping[str, IdArray]],
        brought: dict[str, list[FetchResult]],
        timeout_s: float,
        hold: bool,
        is_over: Callable[[], bool],
    ) -> dict[str, int]:
        why: dict[str, int] = {}
        given_up = ""
        for part in parts:
            num_rows = sum(ids.shape[0] for ids in part.values())
            if is_over():
                given_up = Reason.TIMEOUT.label
            lost = {given_up: num_rows}
            if not given_up:
                lost = await self._fetch_part(part, brought, timeout_s, None, hold)
                if lost.keys() - _OF_THE_ROW:
                    lost = await self._fetch_part(part, brought, timeout_s, None, hold)
                failed = lost.keys() - _OF_THE_ROW
                if failed and sum(lost.values()) >= num_rows:
                    given_up = min(failed)
            for reason, count in lost.items():
                why[reason] = why.get(reason, 0) + count
        return why

    def _parts(self, missing: Mapping[str, IdArray]) -> list[Mapping[str, IdArray]]:
        """Rows that are fetched together, as node type -> ids; at least one part."""
        sizes = {name: ids.shape[0] * self._l1_rows[name].row_bytes for name, ids in missing.items()}
        num_rows = sum(ids.shape[0] for ids in missing.values())
        if num_rows <= _MIN_PART_ROWS or sum(sizes.values()) <= _PART_BYTES:
            return [missing]
        steps = {
            name: max(_MIN_PART_ROWS, _PART_BYTES * ids.shape[0] // max(1, sizes[name]))
            for name, ids in missing.items()
        }
        return [
            {name: ids[first : first + steps[name]]}
            for name, ids in missing.items()
            for first in range(0, ids.shape[0], steps[name])
        ]

    async def _fetch_part(
        self,
        missing: Mapping[str, IdArray],
        brought: dict[str, list[FetchResult]],
        timeout_s: float,
        wanted: Wanted | None,
        hold: bool,
    ) -> dict[str, int]:
        why: dict[str, int] = {}
        alone = False
        if self._prefetcher is not None:
            end = time.monotonic() + timeout_s
            named = {self._keys[name]: ids for name, ids in missing.items()}
            response = await self._prefetcher.fetch(named, wanted, timeout_s)
            if response is not None:
                missing = self._take(missing, response, brought if hold else None, why)
            timeout_s = max(0.0, end - time.monotonic())
            alone = self._prefetcher.was_lost
        if not missing:
            return why
        fetches = [self._l1_rows[name].fetch(ids, timeout_s, alone=alone) for name, ids in missing.items()]
        found: list[FetchResult] = (
            [await fetches[0]] if len(fetches) == 1 else await asyncio.gather(*fetches)
        )
        for name, rows in zip(missing, found, strict=True):
            if rows.ids.shape[0]:
                brought.setdefault(name, []).append(rows)
            for reason, count in rows.why.items():
                why[reason] = why.get(reason, 0) + count
        return why

    def _take(
        self,
        missing: Mapping[str, IdArray],
        response: PrefetchResponse,
        brought: dict[str, list[FetchResult]] | None,
        why: dict[str, int],
    ) -> dict[str, IdArray]:
        """Read what the prefetcher fetched; returns the rows that are neither here nor given up."""
        left: dict[str, IdArray] = {}
        for name, ids in missing.items():
            l1_rows = cast(L1Rows, self._l1_rows[name])  # a prefetcher fills the cache of nothing else
            if brought is None:
                lost = l1_rows.probe(ids)
            else:
                rows = np.empty((ids.shape[0], l1_rows.group.dim), np.float32)
                lost, stamps = l1_rows.read(ids, rows)
                here = stamps < np.inf
                if here.any():
                    found = FetchResult(ids[here], rows[here], {}, float(stamps.min()))
                    brought.setdefault(name, []).append(found)
            if lost.shape[0]:
                gone = ids[lost]
                if response.lacking is not None:
                    gone = np.intersect1d(gone, response.lacking.get(self._keys[name], ids[:0]))
                if gone.shape[0]:
                    why[response.reason] = why.get(response.reason, 0) + gone.shape[0]
                if gone.shape[0] < lost.shape[0]:  # displaced already, or not in the prefetcher's plan
                    left[name] = np.setdiff1d(ids[lost], gone)
        return left


def _joined(results: Sequence[FetchResult]) -> FetchedRows:
    """The rows of several fetches."""
    ids = np.concatenate([result.ids for result in results])
    values = np.concatenate([result.values for result in results])
    return FetchedRows(ids, values, min(result.oldest for result in results))
