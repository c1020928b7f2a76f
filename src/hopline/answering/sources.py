"""Wires the features of a server that lie in a store: stores, tiers, caches, and the prefetcher."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hopline.answering.regions import Regions
from hopline.artifact import ModelSpec
from hopline.config.schema import Config
from hopline.config.setting import named_values
from hopline.engine.encoders import TABULAR, columns_read, encoded, encoder_of
from hopline.errors import ConfigError, FeatureSchemaMismatch
from hopline.features.base import FeatureGroup, FeatureStore
from hopline.features.breaker import BreakerPolicy
from hopline.features.client import ClientLimits, FeatureClient
from hopline.features.l1 import CachePlan, L1FeatureCache
from hopline.features.l1_rows import L1Rows
from hopline.features.metrics import FeatureMetrics
from hopline.features.prefetcher import Prefetcher
from hopline.features.registry import open_store
from hopline.features.retry import RetryPolicy
from hopline.features.shared_file import SharedFile, join_file, planned, short
from hopline.features.skew import differences
from hopline.features.stamped import stamped_group
from hopline.features.tier import Tier
from hopline.graph import Graph
from hopline.graph.live.version import lineage_of
from hopline.graph.live.view import LiveView
from hopline.graph.store_columns import mean_row
from hopline.memory.arena import Arena
from hopline.observe.metrics import ROW_BUCKETS, Metrics
from hopline.process.populate import Populator
from hopline.types import FloatArray

log = logging.getLogger(__name__)

#: Seconds: from just fetched to a day.
_AGE_BUCKETS = (0.01, 0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21600.0, 86400.0)


@dataclass(slots=True)
class _Encoded:
    """Rows of columns as one preprocessing encodes them; `close` gives their memory back."""

    rows: L1Rows
    close: Callable[[], object]
    num_users: int = 0


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
        self._tiers: list[Tier] = []
        self._encoded: dict[str, _Encoded] = {}
        self._loading = asyncio.Lock()

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
        self._tiers = [origin] if l2 is None else [origin, l2]
        types = {name: nodes for name, nodes in graph.nodes.items() if nodes.features.shape[1]}
        schemas = graph.schema.node_types
        known = [name for name, nodes in schemas.items() if name in types or nodes.columns]
        groups = named_values(settings.groups, "features.groups", known)
        self._groups = {name: groups.get(name, name) for name in known}
        self._ttls = named_values(settings.ttls, "features.ttls", list(self._groups.values()))
        described = {name: await origin.store.describe(self._groups[name]) for name in types}
        loop = asyncio.get_running_loop()
        self.l1_rows = await loop.run_in_executor(threads, self._near_rows, graph, described, origin)
        for l1_rows in self.l1_rows.values():
            await self._check_schema(l1_rows)
        rows = self._registry.counter(
            "hopline_feature_l1_rows_total", "Feature rows asked of L1 by result.", ("group", "result")
        )
        self._l1_rows = rows
        self._registry.before_reading(self._record)

    async def _check_schema(self, rows: L1Rows) -> None:
        if len(self._tiers) > 1:
            await self._tiers[1].store.create(stamped_group(rows.group))
        await rows.client.check_schema(rows.group)

    def _near_rows(
        self, graph: Graph | LiveView, described: Mapping[str, FeatureGroup], origin: Tier
    ) -> dict[str, L1Rows]:
        """Node type -> its rows."""
        plans = planned(self._config, _sizes(graph, described))
        arena = self._arena(graph, described, plans)
        found = {}
        for name, group in described.items():
            schema, dtype = graph.schema.node_types[name], "float32" if group.types else group.dtype
            expected = FeatureGroup(name, schema.feature_dim, dtype, schema.feature_names)
            if lines := differences(expected, group):
                raise FeatureSchemaMismatch(
                    f"features.store: group {group.name!r} does not fit node type {name!r}: "
                    + "; ".join(lines)
                )
            mean = partial(mean_row, graph.nodes[name].features)
            found[name] = self._rows(graph, name, group, (arena, plans[name]), origin, mean)
        return found

    def _rows(
        self,
        graph: Graph | LiveView,
        name: str,
        group: FeatureGroup,
        memory: tuple[Arena, CachePlan],
        origin: Tier,
        mean: Callable[[], FloatArray],
    ) -> L1Rows:
        settings, stored = self._config.features, self._groups[name]
        ages = self._registry.histogram(
            "hopline_feature_age_seconds",
            "Age of feature rows served from L1 (a sample).",
            ("group",),
            _AGE_BUCKETS,
        )
        ttl_s = _seconds(self._ttls.get(stored, settings.ttl_s), f"features.ttls: {stored}")
        cache = L1FeatureCache(*memory, ttl_s, self._config.worker.index)
        client = FeatureClient(
            group,
            origin,
            *self._tiers[1:],
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
        return L1Rows(
            group,
            cache,
            client,
            graph.nodes[name].ids.external,
            mean,
            ages(group.name),
            shared=self._config.worker.count > 1 or self.shared is not None,
            clock=self._clock,
        )

    async def encoded(
        self, folder: Path, spec: ModelSpec, graph: Graph | LiveView, regions: Regions | None = None
    ) -> Sources:
        """The sources of a model: rows of columns are read as its preprocessing encodes them.

        Models with the same preprocessing share them. To be returned by `give_back`.

        Args:
            graph: as it is stored. regions: memory of all workers; None takes a file alone.

        Raises:
            FeatureSchemaMismatch: the store has other columns than the preprocessing reads.
            FeatureStoreError, ConfigError: as `open`.
        """
        found = copy.copy(self)
        found.l1_rows = dict(self.l1_rows)
        async with self._loading:
            try:
                for name in spec.encoders.keys() & self._groups.keys():
                    await self._add_encoded(found.l1_rows, folder, spec, name, graph, regions)
            except BaseException:
                await found.give_back()
                raise
        return found

    async def _add_encoded(
        self,
        found: dict[str, L1Rows],
        folder: Path,
        spec: ModelSpec,
        name: str,
        graph: Graph | LiveView,
        regions: Regions | None,
    ) -> None:
        key = short([self._groups[name], name, spec.encoders[name].hash, lineage_of(graph.version)])
        held = self._encoded.get(key)
        if held is None:
            await self._tiers[0].store.describe_columns(self._groups[name])  # may unpack files: takes long
            held = await asyncio.to_thread(self._encode, folder, spec, name, graph, regions, key)
            try:
                await self._check_schema(held.rows)
            except BaseException:
                held.close()
                raise
            self._encoded[key] = held
        held.num_users += 1
        found[name] = held.rows

    def _encode(
        self,
        folder: Path,
        spec: ModelSpec,
        name: str,
        graph: Graph | LiveView,
        regions: Regions | None,
        key: str,
    ) -> _Encoded:
        encoding, stored = spec.encoders[name], self._groups[name]
        group = FeatureGroup(f"{stored}@{key}", encoding.width, "float32", encoding.names)
        store = TABULAR.require("tabular").encoded_store(
            self._tiers[0].store,
            FeatureGroup.of_columns(stored, columns_read(spec, name)),
            group,
            encoder_of(folder, spec, name),
        )
        groups = {each: rows.group for each, rows in self.l1_rows.items()} | {name: group}
        plan = planned(self._config, _sizes(graph, groups))[name]
        if self._config.features.shared_file is not None:
            file, arena = join_file(self._config, lineage_of(graph.version), {name: (group, plan)}, key)
            close: Callable[[], object] = file.close
        else:
            assert regions is not None
            _, arena = regions.take(f"rows {key}", 0, lambda _: plan)
            close = partial(regions.give_back, f"rows {key}")

        def mean() -> FloatArray:
            view = graph.another() if isinstance(graph, LiveView) else graph
            served = encoded(folder, spec, view)
            with served if isinstance(served, LiveView) else nullcontext():
                return mean_row(served.nodes[name].features)

        rows = self._rows(graph, name, group, (arena, plan), self._tier_of("origin", store), mean)
        rows.key = f"{name}@{key}"
        return _Encoded(rows, close)

    async def give_back(self) -> None:
        """A model does not read what `encoded` returned any more."""
        for rows in self.l1_rows.values():
            key = rows.key.rpartition("@")[2]
            if key:
                held = self._encoded[key]
                held.num_users -= 1
                if not held.num_users:
                    del self._encoded[key]
                    await rows.client.close()
                    held.close()

    async def close(self) -> None:
        """Release the stores, and count no more."""
        self._registry.not_before_reading(self._record)
        if self._populator is not None:
            for arena in self._arenas:
                await asyncio.to_thread(self._populator.remove, arena.mapping)
            self._arenas.clear()
        for l1_rows in self.l1_rows.values():
            await l1_rows.client.close()
        for held in self._encoded.values():
            await held.rows.client.close()
        for store in self._stores:
            await store.close()
        if self.shared is not None:
            self.shared.close()
            self.shared = None

    async def _tier(self, name: str, url: str, setting: str) -> Tier:
        store = open_store(url, setting)
        self._stores.append(store)
        await store.open()
        return self._tier_of(name, store)

    def _tier_of(self, name: str, store: FeatureStore) -> Tier:
        settings = self._config.features
        breaker = BreakerPolicy(
            failure_share=settings.breaker_failure_share, pause_s=settings.breaker_pause_ms / 1e3
        )
        retry = RetryPolicy(share=settings.retry_share)
        return Tier(name, store, breaker=breaker, retry=retry, metrics=self.metrics, clock=self._clock)

    def _arena(
        self, graph: Graph | LiveView, groups: Mapping[str, FeatureGroup], plans: Mapping[str, CachePlan]
    ) -> Arena:
        """L1's memory: a file with a name, that of the supervisor, or this process's own."""
        if self._config.features.shared_file is None:
            worker = self._config.worker
            num_bytes = sum(plan.num_bytes for plan in plans.values())
            arena = Arena(num_bytes, worker.rows_fd if worker.rows_fd >= 0 else None)
            if self._populator is not None:
                self._populator.add(arena.mapping)
                self._arenas.append(arena)
            return arena
        described = {name: (group, plans[name]) for name, group in groups.items()}
        self.shared, arena = join_file(self._config, lineage_of(graph.version), described)
        return arena

    def _record(self) -> None:
        """Bring the caches' own counts into the metrics."""
        for l1_rows in (*self.l1_rows.values(), *(held.rows for held in self._encoded.values())):
            for result, count in l1_rows.cache.counts.items():
                key = l1_rows.group.name, result
                self._l1_rows(*key).inc(count - self._counted.get(key, 0))
                self._counted[key] = count


def _sizes(graph: Graph | LiveView, groups: Mapping[str, FeatureGroup]) -> dict[str, tuple[int, int]]:
    """Node type -> the most nodes that it can have, and numbers of a row."""
    return {name: (graph.nodes[name].capacity, group.dim) for name, group in groups.items()}


def _seconds(value: str | float, setting: str) -> float:
    """Read a time. Raises: ConfigError: it is not a positive number."""
    try:
        found = float(value)
    except ValueError:
        found = math.nan
    if not found > 0:
        raise ConfigError(f"{setting}: {value!r} is not a positive number of seconds")
    return found
