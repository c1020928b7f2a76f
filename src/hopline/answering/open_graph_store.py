"""The graph store of a server, opened, and what its models share: a breaker and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from hopline.answering.edge_fetcher import EdgeFetcher, StoreMetrics
from hopline.config.schema import Config
from hopline.errors import ConfigError
from hopline.features.breaker import CircuitBreaker
from hopline.files import expanded
from hopline.graph import Graph
from hopline.graph_store.base import GraphStore
from hopline.graph_store.disk import DiskRows, DiskStore
from hopline.observe.metrics import Metrics

#: Where the host's parts of graphs are stored, unless `graph.cache` says otherwise.
DEFAULT_CACHE = Path("~/.cache/hopline/graphs")


class OpenGraphStore:
    """An opened graph store.

    Args:
        store: opened.
        timeout_s: the longest that a request waits for the edges of one hop.
        metrics: of the server.

    Attributes:
        rows: node type -> feature rows that are read from a disk; {} where they lie elsewhere.
    """

    def __init__(self, store: GraphStore, timeout_s: float, metrics: Metrics) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self.rows: Mapping[str, DiskRows] = store.rows if isinstance(store, DiskStore) else {}
        self._metrics = StoreMetrics(metrics)
        self._breaker = CircuitBreaker()

    @classmethod
    async def open(cls, config: Config, metrics: Metrics) -> OpenGraphStore:
        """Connect to `graph.store`.

        Raises:
            ConfigError: settings contradict each other, or the address is wrong.
            GraphStoreError, GraphStoreUnavailable: the graph cannot be opened.
        """
        settings = config.graph
        if settings.path is not None:
            raise ConfigError("graph.store: graph.path is set as well; set one of them")
        if config.features.prefetcher is not None:
            raise ConfigError(
                "features.prefetcher: the prefetcher reads edges from a folder; leave it out with "
                "graph.store"
            )
        from hopline.graph_store.redis import RedisGraphStore

        cache = expanded(settings.cache or DEFAULT_CACHE, "graph.cache")
        store = RedisGraphStore(settings.store, cache, settings.store_version)
        try:
            await store.open()
        except BaseException:
            await store.close()
            raise
        return cls(store, settings.fetch_timeout_ms / 1e3, metrics)

    @classmethod
    async def of_folder(cls, graph: Graph, config: Config, metrics: Metrics) -> OpenGraphStore:
        """A graph whose edges and features are read from its folder.

        Raises: GraphError: it is compressed.
        """
        features = not config.features.store
        store = await asyncio.to_thread(lambda: DiskStore(graph, features=features))
        return cls(store, config.graph.fetch_timeout_ms / 1e3, metrics)

    @property
    def graph(self) -> Graph:
        """The graph, whose edges are placeholders."""
        return self._store.graph

    def fetcher(self, columns: Mapping[str, Sequence[str]]) -> EdgeFetcher:
        """Reads edges for one model; `columns` are those that it reads, by edge type."""
        fetcher = EdgeFetcher(self._store, columns, self._timeout_s, self._metrics, self._breaker)
        fetcher.rows = self.rows
        return fetcher

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()
