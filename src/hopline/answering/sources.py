"""Wires the features of a server that lie in a store: stores, tiers, caches, and the prefetcher."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from functools import partial
from urllib.parse import urlsplit

import msgspec
import numpy as np

from hopline.answering.prefetcher import Prefetcher
from hopline.config.schema import Config
from hopline.config.setting import did_you_mean
from hopline.errors import ConfigError, FeatureSchemaMismatch
from hopline.features.base import FeatureGroup, FeatureStore
from hopline.features.breaker import BreakerPolicy
from hopline.features.client import ClientLimits, FeatureClient
from hopline.features.l1 import CachePlan, L1FeatureCache
from hopline.features.l1_rows import L1Rows
from hopline.features.metrics import FeatureMetrics
from hopline.features.registry import open_store
from hopline.features.retry import RetryPolicy
from hopline.features.shared_file import HEADER_BYTES, SharedFile
from hopline.features.stamped import stamped_group
from hopline.features.tier import Tier
from hopline.graph import Graph
from hopline.graph.live.version import lineage_of
from hopline.graph.live.view import LiveView
from hopline.graph.store_columns import mean_row
from hopline.memory.arena import Arena
from hopline.observe.metrics import ROW_BUCKETS, Metrics
from hopline.process.populate import Populator

log = logging.getLogger(__name__)

#: Seconds: from just fetched to a day.
_AGE_BUCKETS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21600.0, 86400.0)
#: What a prefetcher has of L1's slots, to one of all workers together: they write only when it is away.
_PREFETCHER_SHARE = 4.0


class Sources:
    """The feature store of a server, opened.

    Attributes:
        l1_rows: node type -> its rows; empty where features lie in the graph.
        metrics: of fetches.
        fetched_rows: histogram by model and version.
        shared: the file that L1 lives in, where it has one.
        prefetcher: fetches for this process; set before models are loaded.

    Args:
        config: of the server.
        metrics: of the server.
        populator: populates L1's memory, where it does not lie in a file with a name; None does not.
        clock: seconds, monotonic; wall_clock: seconds, for copies in L2.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        populator: Populator | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._wall_clock = wall_clock
        self.l1_rows: dict[str, L1Rows] = {}
        self.shared: SharedFile | None = None
        self.prefetcher: Prefetcher | None = None
        self.metrics = FeatureMetrics(metrics)
        self.fetched_rows = metrics.histogram(
            "hopline_fetched_rows",
            "Rows that a request had to wait for.",
            ("model", "version"),
            ROW_BUCKETS,
        )
        self._config = config
        self._registry = metrics
        self._stores: list[FeatureStore] = []
        self._counted: dict[tuple[str, str], int] = {}
        self._populator = populator
        self._arenas: list[Arena] = []

    async def open(self, graph: Graph | LiveView, threads: Executor | None = None) -> None:
        """Connect, compare schemas and map L1.

        Args:
            graph: whose nodes the rows are of.
            threads: for what takes long (memory for as many rows as there are nodes); None uses the loop's.

        Raises:
            ConfigError: an address, password, group or size is wrong; the text names the setting.
            FeatureSchemaMismatch: the rows are not those of the graph's features.
            FeatureStoreError: the store cannot tell its schema.
        """
        settings = self._config.features
        if not settings.store:
            return
        if settings.prefetcher is not None and settings.shared_file is None:
            raise ConfigError(
                "features.prefetcher: set features.shared_file as well: the prefetcher puts rows there"
            )
        origin = await self._tier("origin", settings.store, "features.store")
        l2 = await self._tier("l2", settings.cache, "features.cache") if settings.cache else None
        types = {name: nodes for name, nodes in graph.nodes.items() if nodes.features.shape[1]}
        groups = _pairs(settings.groups, "features.groups", list(types))
        groups = {name: groups.get(name, name) for name in types}
        ttls = _pairs(settings.ttls, "features.ttls", list(groups.values()))
        described = {name: await origin.store.describe(groups[name]) for name in types}
        loop = asyncio.get_running_loop()
        self.l1_rows = await loop.run_in_executor(
            threads, self._near_rows, graph, described, ttls, origin, l2
        )
        for l1_rows in self.l1_rows.values():
            if l2 is not None:
                await l2.store.create(stamped_group(l1_rows.group))
            await l1_rows.client.check_schema(l1_rows.group)
        rows = self._registry.counter(
            "hopline_feature_l1_rows_total", "Feature rows asked of L1 by result.", ("group", "result")
        )
        self._l1_rows = rows
        self._registry.before_reading(self._record)

    def _near_rows(
        self,
        graph: Graph | LiveView,
        described: Mapping[str, FeatureGroup],
        ttls: Mapping[str, str],
        origin: Tier,
        l2: Tier | None,
    ) -> dict[str, L1Rows]:
        """Node type -> its rows."""
        settings = self._config.features
        plans = self._plans(graph, described)
        arena = self._arena(graph, described, plans)
        ages = self._registry.histogram(
            "hopline_feature_age_seconds",
            "Age of feature rows served from L1 (a sample).",
            ("group",),
            _AGE_BUCKETS,
        )
        found = {}
        for name, group in described.items():
            _check(group, graph, name)
            ttl_s = _seconds(ttls.get(group.name, settings.ttl_s), f"features.ttls: {group.name}")
            cache = L1FeatureCache(arena, plans[name], ttl_s, self._config.worker.index)
            client = FeatureClient(
                group,
                origin,
                l2,
                timeout_s=settings.fetch_timeout_ms / 1e3,
                limits=ClientLimits(
                    ttl_s=ttl_s,
                    negative_ttl_s=settings.negative_ttl_ms / 1e3,
                    recheck_s=settings.schema_recheck_s,
                ),
                metrics=self.metrics,
                clock=self._clock,
            )
            client.wall_clock = self._wall_clock
            found[name] = L1Rows(
                group,
                cache,
                client,
                graph.nodes[name].ids.external,
                partial(mean_row, graph.nodes[name].features),
                ages(group.name),
                shared=self._config.worker.count > 1 or self.shared is not None,
                clock=self._clock,
            )
        return found

    async def close(self) -> None:
        """Release the stores, and count no more."""
        self._registry.not_before_reading(self._record)
        if self._populator is not None:
            for arena in self._arenas:
                await asyncio.to_thread(self._populator.remove, arena.mapping)
            self._arenas.clear()
        for l1_rows in self.l1_rows.values():
            await l1_rows.client.close()
        for store in self._stores:
            await store.close()
        if self.shared is not None:
            self.shared.close()
            self.shared = None

    async def _tier(self, name: str, url: str, setting: str) -> Tier:
        store = open_store(url, setting)
        self._stores.append(store)
        await store.open()
        settings = self._config.features
        breaker = BreakerPolicy(
            failure_share=settings.breaker_failure_share, pause_s=settings.breaker_pause_ms / 1e3
        )
        retry = RetryPolicy(share=settings.retry_share)
        return Tier(name, store, breaker=breaker, retry=retry, metrics=self.metrics, clock=self._clock)

    def _plans(self, graph: Graph | LiveView, groups: Mapping[str, FeatureGroup]) -> dict[str, CachePlan]:
        """L1's memory divided by the size of all rows."""
        sizes = {name: graph.nodes[name].capacity * group.dim for name, group in groups.items()}
        total = max(1, sum(sizes.values()))
        memory = self._config.features.memory_bytes
        num_workers = self._config.worker.count
        shares = (1.0,) * num_workers
        if self._config.features.prefetcher is not None:
            shares += (_PREFETCHER_SHARE * num_workers,)
        return {
            name: CachePlan.within(
                graph.nodes[name].capacity, group.dim, memory * sizes[name] // total, len(shares), shares
            )
            for name, group in groups.items()
        }

    def _arena(
        self, graph: Graph | LiveView, groups: Mapping[str, FeatureGroup], plans: Mapping[str, CachePlan]
    ) -> Arena:
        """L1's memory: a file with a name, that of the supervisor, or this process's own."""
        num_bytes = sum(plan.num_bytes for plan in plans.values())
        settings, worker = self._config.features, self._config.worker
        if settings.shared_file is None:
            arena = Arena(num_bytes, worker.rows_fd if worker.rows_fd >= 0 else None)
            if self._populator is not None:
                self._populator.add(arena.mapping)
                self._arenas.append(arena)
            return arena
        described = {name: [group.name, group.hash] for name, group in groups.items()}
        layout = {
            "graph.path": lineage_of(graph.version),
            # Whose rows they are, without a password.
            "features.store": _short(urlsplit(settings.store)._replace(netloc=_place(settings.store))),
            "features.groups": _short(described),
            "features.memory_bytes": str(settings.memory_bytes),
            "features.prefetcher": "set" if settings.prefetcher is not None else "empty",
            "server.workers": str(worker.count),
            "layout": _short([(plan.num_nodes, plan.dim, plan.slots) for plan in plans.values()]),
        }
        self.shared = SharedFile.join(settings.shared_file, layout, num_bytes, worker.index)
        arena = Arena(HEADER_BYTES + num_bytes, self.shared.fd)
        arena.take((HEADER_BYTES,), np.uint8)
        return arena

    def _record(self) -> None:
        """Bring the caches' own counts into the metrics."""
        for l1_rows in self.l1_rows.values():
            for result, count in l1_rows.cache.counts.items():
                key = l1_rows.group.name, result
                self._l1_rows(*key).inc(count - self._counted.get(key, 0))
                self._counted[key] = count


def _place(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _short(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:12]


def _check(group: FeatureGroup, graph: Graph | LiveView, node_type: str) -> None:
    """The store's rows must be the features that models were packaged for: the graph's."""
    schema = graph.schema.node_types[node_type]
    differences = []
    if group.dim != schema.feature_dim:
        differences.append(f"rows have {group.dim} numbers, the graph's {schema.feature_dim}")
    if schema.feature_names and group.feature_names and group.feature_names != schema.feature_names:
        differences.append(
            f"the numbers are {', '.join(group.feature_names)}; the graph's are "
            f"{', '.join(schema.feature_names)}"
        )
    if differences:
        raise FeatureSchemaMismatch(
            f"features.store: group {group.name!r} does not fit node type {node_type!r}: "
            + "; ".join(differences)
        )


def _pairs(items: tuple[str, ...], setting: str, known: list[str]) -> dict[str, str]:
    """ "name=value" items as a dict."""
    found = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not value:
            raise ConfigError(f'{setting}: {item!r} is not of the form "name=value"')
        if name not in known:
            raise ConfigError(f"{setting}: {name!r} is unknown{did_you_mean(name, known)}")
        found[name] = value
    return found


def _seconds(value: str | float, setting: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not seconds > 0:
        raise ConfigError(f"{setting}: {value!r} is not a positive number of seconds")
    return seconds
