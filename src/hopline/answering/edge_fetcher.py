"""Reads the edges of one hop from a graph store, with retries until a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from hopline.errors import GraphStoreUnavailable, HoplineError
from hopline.features.breaker import CircuitBreaker
from hopline.graph.store_columns import FetchedEdges
from hopline.graph_store.base import GraphStore
from hopline.graph_store.disk import DiskRows
from hopline.observe.metrics import Metrics
from hopline.retry import delays
from hopline.types import IdArray

#: Pause before the first retry, and the longest one: a cluster elects a new master within seconds.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.01, 0.2


class StoreMetrics:
    """Counts what is read from a graph store."""

    def __init__(self, metrics: Metrics) -> None:
        kinds = ("kind",)
        self.reads = metrics.counter(
            "hopline_graph_store_reads_total",
            "Reads of the edges of one hop, by outcome.",
            ("kind", "outcome"),
        )
        self.edges = metrics.counter("hopline_graph_store_edges_total", "Edges that were read.", kinds)
        self.seconds = metrics.histogram(
            "hopline_graph_store_read_seconds", "Duration of a read of the edges of one hop.", kinds
        )


class EdgeFetcher:
    """Reads edges for the requests of one model.

    Attributes:
        rows: node type -> feature rows that are read from the same disk as the edges; {} for none.
        timeout_s: as given.
    """

    def __init__(
        self,
        store: GraphStore,
        columns: Mapping[str, Sequence[str]],
        timeout_s: float,
        metrics: StoreMetrics | None = None,
        breaker: CircuitBreaker | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rows: Mapping[str, DiskRows] = {}
        self._store = store
        self._columns = columns
        self.timeout_s = timeout_s
        self._metrics = metrics
        self._breaker = breaker or CircuitBreaker()
        self._clock = clock

    async def fetch(self, wanted: Mapping[str, IdArray]) -> dict[str, FetchedEdges] | HoplineError:
        """Read edges.

        Args:
            wanted: edge type -> int64 [n] distinct positions, ascending.

        Returns: the edges, or why they could not be read.
        """
        began = self._clock()
        try:
            async with asyncio.timeout(self.timeout_s):
                found = await self._tried(wanted, began + self.timeout_s)
        except TimeoutError:
            self._breaker.record(False, self._clock(), began)
            found = GraphStoreUnavailable(
                f"the graph store ({self._store.kind}) did not return edges within {self.timeout_s:g} s "
                "(graph.fetch_timeout_ms); retry"
            )
        if self._metrics is not None:
            kind = self._store.kind
            self._metrics.reads(kind, "ok" if isinstance(found, dict) else found.code).inc()
            self._metrics.edges(kind).inc(sum(len(positions) for positions in wanted.values()))
            self._metrics.seconds(kind).observe(self._clock() - began)
        return found

    async def _tried(
        self, wanted: Mapping[str, IdArray], end: float
    ) -> dict[str, FetchedEdges] | HoplineError:
        pauses = delays(_FIRST_PAUSE_S, _LAST_PAUSE_S)
        while True:
            began, pause = self._clock(), next(pauses)
            if not self._breaker.allow(began):
                return GraphStoreUnavailable(
                    f"the graph store ({self._store.kind}) fails too often: reads are paused; retry"
                )
            try:
                found = await self._store.fetch(wanted, self._columns)
            except GraphStoreUnavailable as error:
                self._breaker.record(False, self._clock(), began)
                if self._clock() + pause >= end:
                    return GraphStoreUnavailable(f"{error}; retry", error.retry_after_s)
            except HoplineError as error:  # the store answers, with something unusable
                self._breaker.record(True, self._clock(), began)
                return error
            except asyncio.CancelledError:
                self._breaker.abandon(self._clock(), began)
                raise
            else:
                self._breaker.record(True, self._clock(), began)
                return found
            await asyncio.sleep(pause)
