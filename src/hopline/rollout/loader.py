"""Makes what serves out of what lies in the repository: opens graphs, stores and artifacts, each once.

Knows every kind of model; whoever asks for a unit gets something that takes requests.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hopline.artifact import ModelSpec, read_artifact
from hopline.config import Config, needed_folder
from hopline.engine.ego import EgoModel
from hopline.engine.final_rows import FinalRows
from hopline.engine.model import Model, TablePlan, load_model
from hopline.engine.schema import check_schema
from hopline.errors import ArtifactError, ConfigError, HoplineError, RuntimeFailure
from hopline.graph import Graph
from hopline.graph.live.view import LiveView
from hopline.graph.residency import in_huge_pages, prefault
from hopline.observe.metrics import Metrics
from hopline.rollout.hybrid_version import HybridVersion
from hopline.rollout.limits import ModelLimits, read_limits
from hopline.rollout.local_repository import LocalRepository
from hopline.rollout.regions import Regions
from hopline.rollout.repository import Repository, configured_repository
from hopline.rollout.served import Recorder, Scorer, Served
from hopline.rollout.table_files import check_named, tables_of
from hopline.rollout.unit import Unit
from hopline.rollout.version import ServedVersion
from hopline.runtimes.opset import check_runtime
from hopline.runtimes.placement import Placement, place_models
from hopline.runtimes.processor import warn_of_overflow
from hopline.scheduling.turnstile import Turnstile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopline.rollout.process_nursery import Nursery
    from hopline.rollout.sources import Sources

log = logging.getLogger(__name__)

#: Threads for batches that are too dear for the event loop; made when they are needed.
_MAX_THREADS = 64
#: Seconds that a listing of a repository behind a network is given for.
_LISTING_S = 5.0
_NO_VERSION = "no version with a model.json or pipeline.toml"
#: A model process of a shadow leaves the processor to whoever serves.
_SHADOW_NICE = 19


@dataclass(slots=True)
class Ground:
    """What graph models stand on.

    Attributes:
        graph: snapshot.
        sources: of features that are not in it.
        users: units that stand on it.
    """

    graph: Graph | LiveView
    sources: Sources | None = None
    users: set[str] = field(default_factory=set)


class Loader:
    """Args:
    config: resolved.
    metrics: of the server.
    recorders: are told of every batch.
    resolve: model name and version -> what serves; for the steps of pipelines.
    """

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        recorders: Sequence[Recorder],
        resolve: Callable[[str, str | None], Scorer],
    ) -> None:
        self.config = config
        self.repository: Repository = configured_repository(config)
        self._metrics = metrics
        self._recorders = recorders
        self._resolve = resolve
        self._executor = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="hopline-compute")
        #: shares the event loop out between the queues of all units
        self.turnstile = Turnstile()
        place_models(Placement(config.compute.device, config.compute.compiled))
        self._fallbacks = metrics.counter(
            "hopline_compiled_fallbacks_total",
            "Loads of a compiled model whose eager program runs instead.",
            ("model", "version"),
        )
        self._grounds: dict[tuple[str, tuple[str, ...]], Ground] = {}
        worker = config.worker
        self._regions = Regions(worker.table_fd, worker.index)
        self._share = config.table.memory_bytes
        self._last_listing: dict[str, list[str]] = {}
        self._listed_at = float("-inf")
        self._keys: dict[tuple[str, str], str] = {}
        self._nursery: Nursery | None = None
        #: Why the server's own graph or feature store cannot be opened: no fault of a model.
        self.own_failure: HoplineError | None = None
        #: Connects sources to the prefetcher; set by who knows about it.
        self.on_sources: Callable[[Sources, Graph], object] | None = None

    @property
    def own(self) -> Ground | None:
        """The server's own graph and sources, once a unit needed them."""
        return self._grounds.get(("", ()))

    def expect(self, num_units: int) -> None:
        """Divide the tables' memory among so many units; later ones get as much as these."""
        self._share = self.config.table.memory_bytes // max(1, num_units)

    def available(self, model: str) -> list[str]:
        """Versions of a model in the repository, oldest first.

        Raises: BadRequest, RepositoryUnavailable.
        """
        return self.repository.versions(model)

    def listing(self) -> dict[str, list[str]]:
        """Model -> versions in the repository.

        A folder is looked at; what lies behind a network is asked again on a thread where the answer is
        old, and the old answer is given meanwhile.
        """
        if isinstance(self.repository, LocalRepository):
            return self._listed()
        now = time.monotonic()
        if now - self._listed_at > _LISTING_S:
            self._listed_at = now
            future = self._executor.submit(self._listed)
            future.add_done_callback(self._keep_listing)
        return self._last_listing

    def _listed(self) -> dict[str, list[str]]:
        return {name: self.repository.versions(name) for name in self.repository.models()}

    def _keep_listing(self, done: Future[dict[str, list[str]]]) -> None:
        if done.exception() is None:
            self._last_listing = done.result()

    def limits(self, model: str) -> ModelLimits:
        """What `serving.toml` beside the model's versions says.

        Raises: ConfigError: it says something unknown.
        """
        return read_limits(self.repository.model_file(model, "serving.toml"), self.config)

    def models(self) -> list[str]:
        """Names to serve: those of the settings, else all in the repository that have a version.

        Raises:
            ConfigError: a name is not in the repository, or nothing is.
            ArtifactError: a model that the settings name has no version.
        """
        repository = self.repository
        there = repository.models()
        names = list(self.config.models.names)
        for name in names:
            if name not in there:
                known = ", ".join(there) or "nothing"
                raise ConfigError(
                    f"models.names: {name!r} is not in {repository.address}; there is: {known}"
                )
            if not repository.versions(name):
                raise ArtifactError(f"{repository.address}/{name}: {_NO_VERSION}; run `hopline package`")
        if not names:
            names = [name for name in there if repository.versions(name)]
            left_out = [name for name in there if name not in names]
            for name in left_out:
                log.warning("%s/%s is left out: %s", repository.address, name, _NO_VERSION)
            if not names:
                empty = f" (no version in: {', '.join(left_out)})" if left_out else ""
                raise ConfigError(
                    f"models.repository: {repository.address} holds no models{empty}; run "
                    "`hopline package` first"
                )
        check_named(self.config.table.file, names)
        return names

    def nesting(self, model: str) -> int:
        """How deep a model is made of others, 0 for one that is not: those must be loaded first."""

        def newest(name: str) -> Path | None:
            try:
                versions = self.repository.versions(name)
                return self.repository.fetch(name, versions[-1]) if versions else None
            except HoplineError:  # loading it says why
                return None

        folder = newest(model)
        if folder is None or not (folder / "pipeline.toml").is_file():
            return 0
        from hopline.rollout.pipeline.nesting import nesting

        return nesting(model, newest)

    async def load(self, model: str, unit: Unit) -> Served:
        """Load and warm up a unit; nothing of it takes requests yet.

        Blocking work is done on a thread, so that requests to others are answered meanwhile.

        Raises:
            HoplineError: it is not there, or failed a check; the message says which.
            RuntimeFailure: something that it is made of failed in an unexpected way.
        """
        try:
            return await self._load(model, unit)
        except HoplineError:
            raise
        except ImportError as error:
            raise RuntimeFailure(
                f"{model}/{unit.id} needs a package that is not installed here: {error}"
            ) from error
        except Exception as error:  # the boundary: a model may fail in any way, and harms only itself
            log.exception("%s/%s failed while it was loaded", model, unit.id)
            raise RuntimeFailure(
                f"{model}/{unit.id} failed while it was loaded: {type(error).__name__}: {error}"
            ) from error

    async def _load(self, model: str, unit: Unit) -> Served:
        folder = await asyncio.to_thread(self.repository.fetch, model, unit.version)
        limits = await asyncio.to_thread(self.limits, model)
        try:
            served = await self._made(model, unit, folder, limits)
        except BaseException:
            await self._forget(model, unit)
            raise
        try:
            await asyncio.to_thread(served.warm_up)
            if isinstance(served, ServedVersion) and isinstance(served.model, EgoModel):
                await served.warm_up_here()
            if isinstance(served, ServedVersion):
                await self._prewarm(served)
            if isinstance(served, HybridVersion):
                await self._give_tables(served, folder, self._table_files(limits))
            return self._wrapped(served, limits, unit)
        except BaseException:
            await self.drop(model, unit, served)
            raise

    async def drop(self, model: str, unit: Unit, served: Served) -> None:
        """Let go of a unit that takes no requests any more."""
        await served.release()
        await self._forget(model, unit)

    async def _forget(self, model: str, unit: Unit) -> None:
        """Give back the memory that a unit took, and what only it stood on."""
        key = self._keys.pop((model, unit.id), "")
        if key:
            self._regions.give_back(key)
        for place, ground in list(self._grounds.items()):
            ground.users.discard(f"{model}/{unit.id}")
            if not ground.users and place != ("", ()):
                del self._grounds[place]
                if ground.sources is not None:
                    await ground.sources.close()

    async def close(self) -> None:
        """Let go of stores, threads and what model processes are begun by."""
        if self._nursery is not None:
            await self._nursery.close()
        for ground in self._grounds.values():
            if ground.sources is not None:
                await ground.sources.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _made(self, model: str, unit: Unit, folder: Path, limits: ModelLimits) -> Served:
        metrics = self._metrics.model(model, unit.id)
        if (folder / "pipeline.toml").is_file():
            from hopline.rollout.pipeline import load_pipeline

            return load_pipeline(
                folder, model, unit.id, self._resolve, self.config, self._metrics, self._recorders, limits
            )
        spec = read_artifact(folder, verify=False)  # fetch has compared every file
        if spec.name != model:
            raise ArtifactError(
                f"{folder}: the artifact is of model {spec.name!r}, its folder of {model!r}"
            )
        check_runtime(spec)
        if (limits.isolate or unit.shadow) and not self.config.worker.isolated:
            from hopline.rollout.process_nursery import Nursery
            from hopline.rollout.process_version import ProcessVersion

            self._nursery = self._nursery or Nursery()
            return await ProcessVersion.start(
                model,
                unit,
                self.config,
                limits,
                self._metrics,
                self._recorders,
                nice=_SHADOW_NICE if unit.shadow else 0,
                table_bytes=self._share // self.config.worker.count,
                nursery=self._nursery,
            )
        if not isinstance(spec, ModelSpec):
            from hopline.rollout.table_version import TableVersion
            from hopline.runtimes.table import TableModel

            return TableVersion(
                await asyncio.to_thread(TableModel, folder, spec),
                self.config,
                metrics,
                self._executor,
                self._recorders,
                unit.id,
                limits,
                self.turnstile,
            )
        warn_of_overflow(spec)
        ground = await self._ground(unit)
        ground.users.add(f"{model}/{unit.id}")
        near = ground.sources.near if ground.sources is not None else {}
        files = self._table_files(limits)

        def build() -> ServedVersion:
            # each model pins versions of a live graph of its own
            graph = ground.graph.another() if isinstance(ground.graph, LiveView) else ground.graph
            check_schema(spec, graph)  # before anything reads what the graph may not have
            plan, arena = self._regions.take(
                self._keep_key(model, unit, spec, graph),
                self._share,
                lambda share: TablePlan(spec, graph, share, self.config.worker.count),
            )
            tables = plan.build(arena, self.config.worker.index)
            loaded = load_model(folder, spec, graph, tables, self.config.compute.threads, near)
            if isinstance(loaded, EgoModel):
                self._fallbacks(model, unit.id).inc(bool(loaded.why_eager))
            return (HybridVersion if files else ServedVersion)(
                loaded,
                self.config,
                metrics,
                self._executor,
                ground.sources,
                self._recorders,
                unit.id,
                limits,
                self.turnstile,
            )

        return await asyncio.to_thread(build)

    def _keep_key(self, model: str, unit: Unit, spec: ModelSpec, graph: Graph | LiveView) -> str:
        """What the unit's tables are kept under: another artifact in the same folder has other rows."""
        version = f"live {graph.memory.plan.lineage}" if isinstance(graph, LiveView) else graph.version
        digest = hashlib.sha256(msgspec.json.encode(spec) + version.encode()).hexdigest()[:16]
        key = self._keys[model, unit.id] = f"{model}/{unit.id}/{digest}"
        return key

    def _wrapped(self, served: Served, limits: ModelLimits, unit: Unit) -> Served:
        # A process of its own keeps nothing: who asks it does; and copies are always computed.
        if not limits.cache_bytes or self.config.worker.isolated or unit.shadow:
            return served
        if self.config.worker.live_memory and not unit.graph:
            log.info("%s: cache_bytes has no effect: answers on a live graph are not kept", served.name)
            return served
        from hopline.rollout.response_cache import CachedVersion

        return CachedVersion(served, limits, self._metrics, self._recorders)

    async def _ground(self, unit: Unit) -> Ground:
        key = (unit.graph, unit.groups)
        ground = self._grounds.get(key)
        if ground is None:
            try:
                ground = await self._open_ground(unit)
            except HoplineError as error:
                if key == ("", ()):
                    self.own_failure = error
                raise
            self._grounds[key] = ground
        return ground

    async def _open_ground(self, unit: Unit) -> Ground:
        ground = Ground(await asyncio.to_thread(self._open_graph, unit))
        if not isinstance(ground.graph, LiveView):
            ground.sources = await self._open_sources(ground.graph, unit)
            await asyncio.to_thread(prefault, ground.graph, features=ground.sources is None)
        return ground

    def _open_graph(self, unit: Unit) -> Graph | LiveView:
        if self.config.worker.live_memory and not unit.graph:
            from hopline.rollout.live_graph import open_live_graph

            return open_live_graph(self.config)
        if unit.graph:
            folder = Path(unit.graph)
            if not folder.is_dir():
                raise ConfigError(f"graph: {folder} is not a folder; give that of a graph snapshot")
        else:
            folder = needed_folder(self.config, "graph.path")
        graph = Graph.open(folder)
        memory = self.config.graph.memory
        if memory == "huge" or (memory == "auto" and self.config.worker.count == 1):
            graph = in_huge_pages(graph, features=not self.config.features.store)
        return graph

    # What only some servers need is imported where it is: a fifth of a second of each start.

    async def _open_sources(self, graph: Graph, unit: Unit) -> Sources | None:
        if not self.config.features.store:
            return None
        from hopline.rollout.sources import Sources

        config = self.config
        if unit.groups:
            config = config.replace(features__groups=unit.groups)
        if unit.graph or unit.groups:
            # Memory that workers share was laid out for the server's own graph.
            config = config.replace(
                worker__rows_fd=-1, features__shared_file=None, features__prefetcher=None
            )
        sources = Sources(config, self._metrics)
        await sources.open(graph)
        if self.on_sources is not None and not (unit.graph or unit.groups):
            self.on_sources(sources, graph)
        return sources

    def _table_files(self, limits: ModelLimits) -> list[Path]:
        """Files that may have final rows of a model."""
        own = [name.strip() for name in limits.table_file.split(",") if name.strip()]
        return [Path(name).expanduser() for name in own or self.config.table.file]

    async def _give_tables(self, served: HybridVersion, folder: Path, files: list[Path]) -> None:
        model, settings = served.model, self.config.table
        rows_total = self._metrics.counter(
            "hopline_table_file_rows_total",
            "Rows asked for of models with a table file, by what became of them.",
            ("model", "version", "outcome"),
        )

        def open_tables() -> dict[str, FinalRows]:
            return tables_of(files, folder, model.spec, model.graph, settings)

        tables = await asyncio.to_thread(open_tables)
        served.use(tables, functools.partial(rows_total, served.name, served.version), self._executor)
        served.follow(open_tables)

    async def _prewarm(self, served: ServedVersion) -> None:
        settings = self.config.features
        if (
            isinstance(served.model, Model)
            and not isinstance(served.model.graph, LiveView)
            and (settings.prewarm_nodes or settings.prewarm_file is not None)
        ):
            from hopline.rollout.prewarm import prewarm

            await prewarm(served, self.config)


def graph_models(config: Config) -> list[tuple[Path, ModelSpec]]:
    """(folder, spec) of every graph model version in the repository, for the prefetcher."""
    repository = configured_repository(config)
    found = []
    for name in list(config.models.names) or repository.models():
        for version in repository.versions(name):
            folder = repository.fetch(name, version)
            spec = read_artifact(folder) if (folder / "model.json").is_file() else None
            if isinstance(spec, ModelSpec):
                found.append((folder, spec))
    return found
