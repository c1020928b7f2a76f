"""Makes what serves out of what lies in the repository: opens graphs, stores and artifacts, each once.

Knows every kind of model, and returns an object that takes requests.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import importlib
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from hopline.answering.computer import Computer
from hopline.answering.graph_computer import GraphComputer
from hopline.answering.limits import ModelLimits, read_limits
from hopline.answering.precomputed_files import check_named, precomputed_rows
from hopline.answering.queued import QueuedVersion
from hopline.answering.regions import Regions
from hopline.answering.served import Recorder, Scorer, Served
from hopline.answering.unit import Unit
from hopline.artifact import ModelSpec, TabularSpec, read_artifact
from hopline.config.schema import Config
from hopline.engine.ego import EgoModel
from hopline.engine.final_rows import FinalRows
from hopline.engine.model import Model, StateCachePlan, load_model
from hopline.engine.schema import check_schema
from hopline.engine.source import RowSource
from hopline.errors import ArtifactError, ConfigError, HoplineError, RuntimeFailure
from hopline.files import expanded
from hopline.generate.spec import is_generative
from hopline.generate.token_rate import TokenRates
from hopline.graph import Graph
from hopline.graph.live.view import LiveView
from hopline.models.load import Load
from hopline.models.local_repository import LocalRepository
from hopline.models.model_inputs import ModelInputs, SharedInputs
from hopline.models.repositories import configured_repository
from hopline.models.repository import Repository
from hopline.observe.metrics import Metrics
from hopline.process.populate import Populator
from hopline.runtimes.ort import check_runtime
from hopline.runtimes.placement import Placement, place_models
from hopline.runtimes.processor import warn_of_overflow
from hopline.scheduling.open_limits import open_limits
from hopline.scheduling.turnstile import Turnstile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopline.isolated.starter import ProcessStarter

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

#: Threads for batches that are too dear for the event loop; made when they are needed.
_MAX_THREADS = 64
#: Threads that load: that many units are opened in parallel. Those of `asyncio.to_thread` are for short
#: work.
_LOADING_THREADS = 4
#: Loads under way in a worker, half of them of graphs at addresses. Each has a thread to wait in.
MAX_LOADS = 16
#: Seconds that a listing of a repository behind a network is given for.
_LISTING_S = 5.0
_NO_VERSION = "no version with a model.json or pipeline.toml"
#: A model process of a shadow leaves the processor to serving processes.
_SHADOW_NICE = 19


class Loader:
    """Loads units of all kinds of models.

    Args:
        config: resolved.
        metrics: of the server.
        recorders: get every batch.
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
        self._threads = ThreadPoolExecutor(_LOADING_THREADS, thread_name_prefix="hopline-load")
        self._waiting_threads = ThreadPoolExecutor(MAX_LOADS, thread_name_prefix="hopline-wait")
        #: graphs and feature stores that are open
        self._populator = Populator()
        self.inputs = SharedInputs(config, metrics, self._threads, self._populator, self._waiting_threads)
        self.inputs.snapshots.check()
        #: shares the event loop out between the queues of all units
        self.turnstile = Turnstile()
        place_models(Placement(config.compute.device, config.compute.compiled))
        self._fallbacks = metrics.counter(
            "hopline_compiled_fallbacks_total",
            "Loads of a compiled model whose eager program runs instead.",
            ("model", "version"),
        )
        worker = config.worker
        self._regions = Regions(worker.state_cache_fd, worker.index)
        self._share = config.state_cache.memory_bytes
        self._last_listing: dict[str, list[str]] = {}
        self._listed_at = float("-inf")
        self._starter: ProcessStarter | None = None
        self.token_rates = TokenRates(config.generate.tokens_per_minute, lambda: open_limits(config))

    def expect(self, num_units: int) -> None:
        """Divide the memory of the state caches among so many units; later ones get as much as these."""
        self._share = self.config.state_cache.memory_bytes // max(1, num_units)

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
        """Contents of `serving.toml` next to the model's versions.

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
        check_named(self.config.precomputed.file, names)
        return names

    def nesting(self, model: str) -> int:
        """Depth of a model that is made of others, 0 for one that is not: those must be loaded first."""

        def newest(name: str) -> Path | None:
            try:
                versions = self.repository.versions(name)
                return self.repository.fetch(name, versions[-1]) if versions else None
            except HoplineError:  # loading it says why
                return None

        folder = newest(model)
        if folder is None or not (folder / "pipeline.toml").is_file():
            return 0
        from hopline.pipelines.spec import nesting

        return nesting(model, newest)

    def reads_graph(self, model: str, version: str) -> bool:
        """True if a version is a graph model; one that cannot be read says why when it is loaded."""
        try:
            folder = self.repository.fetch(model, version)
            return not (folder / "pipeline.toml").is_file() and isinstance(
                read_artifact(folder, verify=False), ModelSpec
            )
        except HoplineError:
            return False

    def first_units(self, model: str) -> tuple[Unit, ...]:
        """Units of a model for a server without a state: every version, oldest first, on its own graph.

        Raises: HoplineError: the address of the graph names no snapshot now.
        """
        versions = self.available(model)
        if not self.inputs.snapshots.base:
            return tuple(Unit(version) for version in versions)
        graph, groups = self.inputs.snapshots.own()
        return tuple(
            Unit(version, graph, groups) if self.reads_graph(model, version) else Unit(version)
            for version in versions
        )

    async def load(self, model: str, unit: Unit) -> Load:
        """Load and warm up a unit; nothing of it takes requests yet.

        Blocking work is done on threads, so that requests to others are answered meanwhile.

        Returns: what was loaded, to be released when it takes no more requests.
        Raises:
            HoplineError: it is missing, or failed a check; the message says which.
            RuntimeFailure: something that it is made of failed in an unexpected way.
        """
        load = Load(model, unit)
        try:
            await self._load(load)
            return load
        except BaseException as error:
            await load.give_back()
            if isinstance(error, HoplineError) or not isinstance(error, Exception):
                raise
            if isinstance(error, ImportError):
                raise RuntimeFailure(
                    f"{load} needs a package that is not installed here: {error}"
                ) from error
            # the boundary: a model may fail in any way, and harms only itself
            log.exception("%s failed while it was loaded", load)
            raise RuntimeFailure(
                f"{load} failed while it was loaded: {type(error).__name__}: {error}"
            ) from error

    async def _load(self, load: Load) -> None:
        folder = await self.in_waiting_thread(self.repository.fetch, load.model, load.unit.version)
        limits = await self._in_thread(self.limits, load.model)
        load.served = served = await self._made(load, folder, limits)
        await self._in_thread(served.warm_up)
        if isinstance(served, QueuedVersion) and isinstance(served.computer, GraphComputer):
            computer = served.computer
            if isinstance(computer.model, EgoModel):
                await computer.warm_up_here()
            if computer.reads_store:
                await computer.warm_up_reading()
            await self._prewarm(computer)
            if files := self._precomputed_files(limits, load.unit):
                await self._look_up(served, computer, folder, files)
        if served.info((served.version,)).kind != "generative":  # texts are not cached
            load.served = await self._in_thread(self._wrapped, served, limits, load.unit)

    async def close(self) -> None:
        """Close stores, threads and what starts model processes."""
        if self._starter is not None:
            await self._starter.close()
        await self._in_thread(self._populator.close)
        await self.inputs.close()
        for threads in (self._executor, self._threads, self._waiting_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    async def in_waiting_thread(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        """The result of work that may wait for a repository or an address."""
        return await asyncio.get_running_loop().run_in_executor(self._waiting_threads, work, *arguments)

    async def _in_thread(self, work: Callable[..., ResultT], *arguments: object) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _made(self, load: Load, folder: Path, limits: ModelLimits) -> Served:
        model, unit = load.model, load.unit
        if (folder / "pipeline.toml").is_file():
            return await self._in_thread(self._pipeline, load, folder, limits)
        if is_generative(folder):
            return await self._generative(load, folder, limits)
        # fetch has compared every file
        spec = await self._in_thread(functools.partial(read_artifact, folder, verify=False))
        if spec.name != model:
            raise ArtifactError(
                f"{folder}: the artifact is of model {spec.name!r}, its folder of {model!r}"
            )
        check_runtime(spec)
        if (limits.isolate or unit.shadow) and not self.config.worker.isolated:
            return await self._process(load, limits)
        if not isinstance(spec, ModelSpec):
            return await self._in_thread(self._tabular, load, folder, spec, limits)
        warn_of_overflow(spec)
        inputs = await self.inputs.take(unit)
        load.hold_async(lambda: self.inputs.give_back(unit))
        return await self._in_thread(self._version, load, folder, spec, limits, inputs)

    async def _generative(self, load: Load, folder: Path, limits: ModelLimits) -> Served:
        from hopline.answering.generative_version import load_generative

        nice = _SHADOW_NICE if load.unit.shadow else self.config.generate.nice
        made = self.config, limits, self._metrics, self._recorders, nice, self.token_rates
        return await load_generative(folder, load.model, load.unit.id, *made)

    # What only some servers need is imported where it is: a fifth of a second of each start. What follows
    # blocks, and is called on threads.

    def _pipeline(self, load: Load, folder: Path, limits: ModelLimits) -> Served:
        from hopline.pipelines import load_pipeline

        return load_pipeline(
            folder, load.model, load.unit.id, self._resolve, self.config, self._metrics, self._recorders,
            limits,
        )  # fmt: skip

    def _tabular(self, load: Load, folder: Path, spec: TabularSpec, limits: ModelLimits) -> Served:
        from hopline.answering.tabular_computer import TabularComputer
        from hopline.runtimes.tabular import TabularModel

        return self._queued(TabularComputer(TabularModel(folder, spec), self.config, load.unit.id), limits)

    def _queued(self, computer: Computer, limits: ModelLimits) -> QueuedVersion:
        return QueuedVersion(
            computer,
            self.config,
            self._metrics.model(computer.name, computer.version),
            self._executor,
            self._recorders,
            limits=limits,
            turnstile=self.turnstile,
        )

    def _version(
        self, load: Load, folder: Path, spec: ModelSpec, limits: ModelLimits, inputs: ModelInputs
    ) -> QueuedVersion:
        # each model pins its own versions of a live graph
        graph = inputs.graph.another() if isinstance(inputs.graph, LiveView) else inputs.graph
        try:
            return self._version_on(graph, load, folder, spec, limits, inputs)
        except BaseException:
            if isinstance(graph, LiveView):
                graph.close()
            raise

    def _version_on(
        self,
        graph: Graph | LiveView,
        load: Load,
        folder: Path,
        spec: ModelSpec,
        limits: ModelLimits,
        inputs: ModelInputs,
    ) -> QueuedVersion:
        check_schema(spec, graph)  # before anything reads what the graph may not have
        key = self._region_key(load, spec, graph)
        share = self._share
        if inputs.sources is not None:
            # A state would outlive the feature rows that it was computed from.
            share = 0
        plan, arena = self._regions.take(
            key, share, lambda share: StateCachePlan(spec, graph, share, self.config.worker.count)
        )
        load.hold(lambda: self._regions.give_back(key))
        self._populator.add(arena.mapping)
        load.hold_async(lambda: self._in_thread(self._populator.remove, arena.mapping))
        state_caches = plan.build(arena, self.config.worker.index)
        sources = inputs.sources
        rows: Mapping[str, RowSource] = {} if inputs.store is None else inputs.store.rows
        l1_rows = rows if sources is None else sources.l1_rows
        loaded = load_model(folder, spec, graph, state_caches, self.config.compute.threads, l1_rows)
        if isinstance(loaded, EgoModel):
            self._fallbacks(load.model, load.unit.id).inc(bool(loaded.why_eager))
        edges = None
        if inputs.store is not None and isinstance(loaded, Model):
            edges = inputs.store.fetcher(loaded.edge_columns)
        computer = GraphComputer(loaded, self.config, sources, load.unit.id, edges)
        return self._queued(computer, limits)

    async def _process(self, load: Load, limits: ModelLimits) -> Served:
        await self._in_thread(importlib.import_module, "hopline.isolated.version")
        from hopline.isolated.starter import ProcessStarter
        from hopline.isolated.version import ProcessVersion, Program

        self._starter = self._starter or ProcessStarter()
        return await ProcessVersion(
            load.model,
            load.unit.id,
            self.config.replace(state_cache__memory_bytes=self._share // self.config.worker.count),
            limits,
            self._metrics,
            self._recorders,
            program=Program("", msgspec.to_builtins(load.unit), _SHADOW_NICE if load.unit.shadow else 0),
            starter=self._starter,
        ).begin()

    def _region_key(self, load: Load, spec: ModelSpec, graph: Graph | LiveView) -> str:
        """Owner of a region: another artifact in the same folder has other rows."""
        version = f"live {graph.memory.plan.lineage}" if isinstance(graph, LiveView) else graph.version
        digest = hashlib.sha256(msgspec.json.encode(spec) + version.encode()).hexdigest()[:16]
        return f"{load}/{digest}"

    def _wrapped(self, served: Served, limits: ModelLimits, unit: Unit) -> Served:
        # An isolated process caches nothing, its caller does; and copies are always computed.
        if not limits.cache_bytes or self.config.worker.isolated or unit.shadow:
            return served
        if self.config.worker.live_memory and not unit.graph:
            log.info("%s: cache_bytes has no effect: answers on a live graph are not cached", served.name)
            return served
        from hopline.answering.response_cache import CachedVersion

        return CachedVersion(served, limits, self.config, self._metrics, self._recorders)

    def _precomputed_files(self, limits: ModelLimits, unit: Unit) -> list[Path]:
        """Files that may have final rows of a unit: those of its snapshot, else those of the settings."""
        snapshot = self.inputs.snapshot(unit)
        if snapshot is not None and snapshot.precomputed:
            return snapshot.precomputed
        own = [name.strip() for name in limits.precomputed_file.split(",") if name.strip()]
        return [expanded(name, "precomputed.file") for name in own or self.config.precomputed.file]

    async def _look_up(
        self, served: QueuedVersion, computer: GraphComputer, folder: Path, files: list[Path]
    ) -> None:
        from hopline.answering.lookup import LookUp

        model, config = computer.model, self.config
        rows_total = self._metrics.counter(
            "hopline_precomputed_rows_total",
            "Rows asked for of models with a precomputed file, by what became of them.",
            ("model", "version", "outcome"),
        )

        def open_rows() -> dict[str, FinalRows]:
            from_store = bool(config.features.store)
            return precomputed_rows(
                files, folder, model.spec, model.graph, config.precomputed, from_store=from_store
            )

        rows = await self._in_thread(open_rows)
        served.look_up = LookUp(
            served,
            computer,
            rows,
            functools.partial(rows_total, served.name, served.version),
            self._executor,
            self._recorders,
            config.limits.max_nodes_per_request,
        )
        served.look_up.follow(open_rows)

    async def _prewarm(self, computer: GraphComputer) -> None:
        settings = self.config.features
        if (
            isinstance(computer.model, Model)
            and not isinstance(computer.model.graph, LiveView)
            and (settings.prewarm_nodes or settings.prewarm_file is not None)
        ):
            from hopline.answering.prewarm import prewarm

            await prewarm(computer, self.config)
