"""Rows and edges that are not in the process: how the engine reads them, and computes without rows.

Planning reads rows that are available locally (`RowSource`, the shared L1 feature cache). Other rows are
*absent*: the caller fetches them and plans again with the fetched rows (`FetchedRows`), or has the batch
computed without them, by the fallbacks of `fallbacks.py`. Edges that lie in a graph store are absent in
the same way, one hop at a time; no fallback replaces them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from hopline.errors import HoplineError
from hopline.graph.store_columns import FetchedEdges
from hopline.types import FloatArray, IdArray, StampArray

#: Of rows, or one for all of them.
Stamps = StampArray | float


class RowSource(Protocol):
    """Rows of one node type that can be read without waiting.

    Attributes:
        ttl_s: age in seconds from which on an answer must report a row; inf for rows that do not age.
    """

    ttl_s: float

    def read(self, ids: IdArray, out: FloatArray, *, stale: bool = False) -> tuple[IdArray, Stamps]:
        """Copy rows.

        Args:
            ids: int64 [n] global ids.
            out: float32 [n, dim]; row i is filled where ids[i] is available.
            stale: rows that are too old count as available.

        Returns: int64 [m] positions in `ids` that are not available, valid until the next call; and the
            stamps of the copied rows, float64 [n] or one for all: when the store had these values at the
            latest, seconds of time.monotonic(). inf for missing rows, and for rows that do not age.
        """
        ...

    def age_s(self, stamp: float) -> float:
        """Seconds since a stamp."""
        ...

    def mean(self) -> FloatArray:
        """The row that replaces a missing one, float32 [dim]."""
        ...


class FetchedRows:
    """Rows of one node type that were fetched for a batch; the L1 feature cache need not hold them.

    Args:
        ids: int64 [n]. values: float32 [n, dim]; neither may be changed afterwards.
        oldest: the stamp of the oldest row. The rows age while a request waits.
    """

    def __init__(self, ids: IdArray, values: FloatArray, oldest: float = math.inf) -> None:
        self.oldest = oldest
        if not (ids[1:] > ids[:-1]).all():  # usually they are the absent rows of a plan, in order
            order = np.argsort(ids, kind="stable")
            ids, values = ids[order], values[order]
        self._ids = ids
        self._values = values

    def take(self, ids: IdArray, positions: IdArray, out: FloatArray, stamps: StampArray) -> IdArray:
        """Fill out and stamps at the positions whose ids were fetched; returns the other positions."""
        if not self._ids.shape[0] or not positions.shape[0]:
            return positions
        wanted = ids[positions]
        at = np.minimum(np.searchsorted(self._ids, wanted), self._ids.shape[0] - 1)
        here = self._ids[at] == wanted
        out[positions[here]] = self._values[at[here]]
        stamps[positions[here]] = self.oldest
        left: IdArray = positions[~here]
        return left


#: Node type -> fetched rows, of one batch.
FetchedRowsByType = Mapping[str, Sequence[FetchedRows]]
#: Edge type -> fetched edges, of one batch.
FetchedEdgesByType = Mapping[str, Sequence[FetchedEdges]]


class FetchedInputs(NamedTuple):
    """The rows and edges that were fetched for one request, and whether more can follow.

    Attributes:
        fetched_rows: rows by node type.
        is_last: no more rows will be fetched: answer with these rows, or fail.
        why: the reason why rows are missing, for the error of a request that refuses a degraded answer.
        fetched_edges: edges of a graph store, by edge type.
        edges_failed: why edges could not be read; None where they were. Nothing replaces an edge: a
            request that still lacks one fails with this error.
    """

    fetched_rows: Mapping[str, Sequence[FetchedRows]] = {}
    is_last: bool = False
    why: str = ""
    fetched_edges: Mapping[str, Sequence[FetchedEdges]] = {}
    edges_failed: HoplineError | None = None


class Absent(NamedTuple):
    """An outcome: the request reads rows or edges that are not available locally.

    (Never the exception itself, whose traceback would keep its batch in memory.)

    Attributes:
        absent: node type -> int64 [m] distinct global ids, sorted.
        edges: edge type -> int64 [m] distinct positions in its edge arrays, sorted. Where edges are
            absent, rows below them are not known yet.
    """

    absent: dict[str, IdArray]
    edges: Mapping[str, IdArray] = {}


class RowsAbsent(Exception):
    """Raised when a batch reads rows or edges that are not available locally.

    Attributes:
        absent, edges: as in `Absent`.
    """

    def __init__(self, absent: dict[str, IdArray], edges: Mapping[str, IdArray] | None = None) -> None:
        super().__init__(absent, edges)
        self.absent = absent
        self.edges = edges or {}


class RowRead:
    """Rows that are read from a source: first without waiting, then from what was fetched.

    Attributes:
        source: of the rows.
        ids: int64 [n]. out: float32 [n, dim], filled except for `missing`.
        missing: int64 [m] positions that are still absent.
        stamps: float64 [n] of the rows in `out`, as in `RowSource.read`.
    """

    __slots__ = ("ids", "missing", "out", "source", "stamps")

    def __init__(self, source: RowSource, ids: IdArray, out: FloatArray) -> None:
        self.source = source
        self.ids = ids
        self.out = out
        missing, stamps = source.read(ids, out)
        self.missing: IdArray = missing.copy()
        self.stamps: StampArray = stamps if isinstance(stamps, np.ndarray) else np.full(len(ids), stamps)

    def take(self, fetched_rows: Sequence[FetchedRows], *, stale: bool = False) -> bool:
        """Fill in fetched rows, those that are too old only if `stale`; returns True if there were any."""
        before = int(self.missing.shape[0])
        for fetched in reversed(fetched_rows):  # the newest first
            if stale or self.source.age_s(fetched.oldest) < self.source.ttl_s:
                self.missing = fetched.take(self.ids, self.missing, self.out, self.stamps)
        return int(self.missing.shape[0]) < before

    def take_stale(self, fetched_rows: Sequence[FetchedRows]) -> bool:
        """Fill in rows that are too old, and the mean row for the others; returns True if there were any.

        The others stay in `missing`.
        """
        is_stale = bool(self.missing.shape[0]) and self.take(fetched_rows, stale=True)
        if not self.missing.shape[0]:
            return is_stale
        wanted = self.ids[self.missing]
        rows = np.empty((wanted.shape[0], self.out.shape[1]), np.float32)
        absent, stamps = self.source.read(wanted, rows, stale=True)
        found = np.ones(wanted.shape[0], np.bool_)
        found[absent] = False
        if found.any():
            is_stale = True
            self.stamps[self.missing] = stamps
            self.out[self.missing[found]] = rows[found]
            self.missing = self.missing[~found]
        if self.missing.shape[0]:
            self.out[self.missing] = self.source.mean()
        return is_stale


class Ages:
    """Age of the rows that a model has read for a batch.

    Attributes:
        oldest_ms: age of the oldest one when it was read, rounded up; -1 for no rows that age.
        until: time.monotonic() from which on one of them is older than its time to live.
    """

    __slots__ = ("oldest_ms", "until")

    def __init__(self) -> None:
        self.oldest_ms = -1
        self.until = math.inf

    def add(self, source: RowSource, stamps: StampArray) -> None:
        """Add rows that were read from a source, or states that were computed from them."""
        oldest = float(stamps.min()) if stamps.shape[0] else math.inf
        if oldest < math.inf:
            self.oldest_ms = max(self.oldest_ms, math.ceil(1e3 * source.age_s(oldest)), 0)
            self.until = min(self.until, oldest + source.ttl_s)
