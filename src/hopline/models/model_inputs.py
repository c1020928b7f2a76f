"""The graphs and feature stores that graph models read: each is opened once, and units share it.

A user takes it and returns it; the last one closes it. Several loads that need what is being
opened wait for the same opening. The server's own graph and store stay open until the server ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hopline.answering.edge_fetcher import EdgeFetcher, StoreMetrics
from hopline.answering.unit import Unit
from hopline.config.folders import needed_folder
from hopline.config.schema import Config
from hopline.config.urls import shown
from hopline.errors import (
    BadRequest,
    ConfigError,
    FeatureGroupNotFound,
    FeatureSchemaMismatch,
    GraphError,
    HoplineError,
    SnapshotDamaged,
)
from hopline.features.breaker import CircuitBreaker
from hopline.files import expanded
from hopline.graph import Graph
from hopline.graph.file_watch import FileWatch
from hopline.graph.live.view import LiveView
from hopline.graph.residency import in_huge_pages, prefault
from hopline.graph_store.base import GraphStore, store_class
from hopline.graph_store.disk import DiskRows, DiskStore
from hopline.models.host_snapshots import HostSnapshots, is_on
from hopline.observe.metrics import Metrics
from hopline.process.populate import Populator
from hopline.remote_address import is_address
from hopline.snapshots.held_snapshot import HeldSnapshot

if TYPE_CHECKING:
    from hopline.answering.sources import Sources

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
        cache = expanded(settings.cache or DEFAULT_CACHE, "graph.cache")
        store = store_class(settings.store, "graph.store")(settings.store, cache, settings.store_version)
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


log = logging.getLogger(__name__)

_Key = tuple[str, tuple[str, ...]]
#: The server's own graph and store.
_OWN: _Key = ("", ())


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """Inputs of graph models.

    Attributes:
        graph: snapshot, or the live graph.
        sources: of features that are not in it.
        snapshot: whose copy the graph is, where it came from an address.
        store: of edges that are not in it.
        files: of the graph, where they are in a folder.
    """

    graph: Graph | LiveView
    sources: Sources | None = None
    snapshot: HeldSnapshot | None = None
    store: OpenGraphStore | None = None
    files: FileWatch | None = None


@dataclass(slots=True, eq=False)
class _Opening:
    """Inputs that are open, or being opened.

    Attributes:
        task: opens the inputs. num_users: units that stand on them, or wait for them.
    """

    task: asyncio.Task[ModelInputs]
    num_users: int = 0


class SharedInputs:
    """The graphs and feature stores that units share.

    Attributes:
        snapshots: at addresses.
        own_failure: why the server's own graph or store cannot be opened: no fault of a model.
        on_sources: connects sources to the prefetcher; set by who knows about it.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        threads: Executor,
        populator: Populator,
        waiting_threads: Executor,
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._threads = threads
        self._waiting_threads = waiting_threads
        self._populator = populator
        self._open: dict[_Key, _Opening] = {}
        self._own = _OWN
        self.snapshots = HostSnapshots(config, metrics)
        self.own_failure: HoplineError | None = None
        self.on_sources: Callable[[Sources, Graph], object] | None = None

    @property
    def own(self) -> ModelInputs | None:
        """The server's own, once a unit needed them and they are open."""
        opening = self._open.get(self._own)
        if opening is None or not opening.task.done() or opening.task.exception() is not None:
            return None
        return opening.task.result()

    async def take(self, unit: Unit) -> ModelInputs:
        """Inputs of a unit, opened if need be; to be returned once, by `give_back`.

        Raises: HoplineError: it cannot be opened; nothing is to be returned.
        """
        key = unit.graph, unit.groups
        opening = self._open.get(key)
        if opening is None:
            opening = self._open[key] = _Opening(asyncio.ensure_future(self._opened(unit)))
        opening.num_users += 1
        if is_on(unit, self.snapshots.base):
            self._own = key  # the newest that was asked for
        try:
            inputs = await asyncio.shield(opening.task)
            if inputs.files is not None:
                inputs.files.check()
            return inputs
        except BaseException as error:
            if key == _OWN and isinstance(error, HoplineError):
                self.own_failure = error
            await self._leave(key, opening)
            raise

    async def give_back(self, unit: Unit) -> None:
        """A unit reads them no more."""
        key = unit.graph, unit.groups
        await self._leave(key, self._open[key])

    async def close(self) -> None:
        """Close all of them, after the last unit."""
        self.snapshots.stop()
        for key, opening in list(self._open.items()):
            del self._open[key]
            await _closed(opening)

    async def _leave(self, key: _Key, opening: _Opening) -> None:
        opening.num_users -= 1
        failed = opening.task.done() and (opening.task.cancelled() or opening.task.exception() is not None)
        files = None if failed or not opening.task.done() else opening.task.result().files
        ends = key != _OWN or (files is not None and files.damage)
        if self._open.get(key) is opening and (failed or (ends and not opening.num_users)):
            del self._open[key]  # first: a user that comes while it is closed opens it again
            if not failed:
                await _closed(opening)
                if is_address(key[0]):
                    await asyncio.get_running_loop().run_in_executor(self._threads, self.snapshots.tidy)

    def snapshot(self, unit: Unit) -> HeldSnapshot | None:
        """The snapshot at an address that a unit reads, which has taken its inputs."""
        return self._open[unit.graph, unit.groups].task.result().snapshot

    async def _opened(self, unit: Unit) -> ModelInputs:
        loop = asyncio.get_running_loop()
        snapshot, store, files = None, None, None
        graph: Graph | LiveView
        if is_address(unit.graph):
            snapshot = await loop.run_in_executor(self._waiting_threads, self.snapshots.take, unit.graph)
        try:
            if self._config.graph.store and not unit.graph:
                store = await OpenGraphStore.open(self._config, self._metrics)
                graph = store.graph
            else:
                opened = loop.run_in_executor(self._threads, self._open_graph, unit, snapshot)
                graph, files = await opened
            if isinstance(graph, LiveView):
                return ModelInputs(graph, await self._open_sources(graph, unit))
            if store is None and self._config.graph.memory == "disk":
                store = await OpenGraphStore.of_folder(graph, self._config, self._metrics)
                graph = store.graph
            features = not self._config.features.store and (store is None or not store.rows)
            sources = await self._open_sources(graph, unit)
            await loop.run_in_executor(self._threads, lambda: prefault(graph, features=features))
            if files is not None:
                await loop.run_in_executor(self._threads, files.start, graph.version)
            return ModelInputs(graph, sources, snapshot, store, files)
        except BaseException:
            if files is not None:
                files.stop()
            if store is not None:
                await store.close()
            if snapshot is not None:
                snapshot.release()
            raise

    def _open_graph(
        self, unit: Unit, snapshot: HeldSnapshot | None
    ) -> tuple[Graph | LiveView, FileWatch | None]:
        if self._config.worker.live_memory and not unit.graph:
            from hopline.answering.live_graph import open_live_graph

            return open_live_graph(self._config), None
        if snapshot is not None:
            graph, files = self._open_folder(snapshot.graph, are_right=True)
            if graph.version != snapshot.manifest.graph_version:
                raise SnapshotDamaged(
                    f"{shown(unit.graph)}: its graph is {graph.version}, its manifest says "
                    f"{snapshot.manifest.graph_version}; publish the snapshot again"
                )
        elif unit.graph:
            try:
                graph, files = self._open_folder(Path(unit.graph))
            except (GraphError, OSError, ValueError) as error:
                raise BadRequest(f"graph: {unit.graph} is not a graph snapshot: {error}") from None
        elif self.snapshots.base:
            raise ConfigError(
                f"graph.path: version {unit.version} was loaded when the graph was a local folder, "
                "and now it is an address; load it again with this address, or remove models.state"
            )
        else:
            graph, files = self._open_folder(needed_folder(self._config, "graph.path"))
        memory = self._config.graph.memory
        if memory == "huge" or (memory == "auto" and self._config.worker.count == 1):
            graph = in_huge_pages(graph, features=not self._config.features.store)
        return graph, files

    def _open_folder(self, folder: Path, *, are_right: bool = False) -> tuple[Graph, FileWatch]:
        shared = self._config.worker.metrics_dir  # of all workers of this server
        files = FileWatch(folder, Path(shared) / "checked" if shared else None, are_right=are_right)
        return Graph.open(folder), files

    async def _open_sources(self, graph: Graph | LiveView, unit: Unit) -> Sources | None:
        if not self._config.features.store:
            return None
        sources = await asyncio.get_running_loop().run_in_executor(self._threads, self._make_sources, unit)
        try:
            await sources.open(graph, self._threads)
        except BaseException as error:
            await sources.close()
            if unit.groups and isinstance(
                error, FeatureGroupNotFound | FeatureSchemaMismatch | ConfigError
            ):
                # the server's own groups were found good when it started
                raise BadRequest(f"groups: {', '.join(unit.groups)}: {error}") from None
            raise
        is_own = not (unit.graph or unit.groups)
        if self.on_sources is not None and is_own and isinstance(graph, Graph):
            self.on_sources(sources, graph)
        return sources

    def _make_sources(self, unit: Unit) -> Sources:
        # What only some servers need is imported where it is: a fifth of a second of each start.
        from hopline.answering.sources import Sources

        config = self._config
        if unit.groups:
            config = config.replace(features__groups=unit.groups)
        if unit.graph or unit.groups:
            # Memory that workers share was laid out for the server's own graph.
            config = config.replace(
                worker__rows_fd=-1, features__shared_file=None, features__prefetcher=None
            )
        return Sources(config, self._metrics, self._populator)


async def _closed(opening: _Opening) -> None:
    """Close what was opened, or is being opened."""
    try:
        inputs = await opening.task
    except Exception:  # the waiting callers got it
        return
    if inputs.files is not None:
        inputs.files.stop()
    if inputs.sources is not None:
        await inputs.sources.close()
    if inputs.store is not None:
        await inputs.store.close()
    if inputs.snapshot is not None:
        inputs.snapshot.release()
