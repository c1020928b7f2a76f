"""The transport-neutral API: what HTTP, gRPC and queues translate to.

Knows models, versions and their graph; knows no status codes and no sockets.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hopline.arena import Arena
from hopline.artifact import ModelSpec, read_spec
from hopline.config import Config, needed_folder
from hopline.engine.model import TablePlan, load_model
from hopline.errors import ArtifactError, ConfigError, HoplineError, ModelNotFound, Unavailable
from hopline.graph import Graph
from hopline.graph.residency import in_huge_pages, prefault
from hopline.observe.metrics import Metrics
from hopline.rollout.served import Recorder
from hopline.rollout.version import ServedVersion
from hopline.types import Deliver, ModelInfo, ScoreRequest, ScoreResult, Ticket

if TYPE_CHECKING:
    from hopline.features.near import NearRows
    from hopline.prefetch.link import PrefetchLink
    from hopline.rollout.sources import Sources

log = logging.getLogger(__name__)


class Service:
    """All models of one server process.

    Args:
        config: the resolved settings; `graph.path` and `models.repository` are needed by `start`.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.metrics = Metrics(config.worker.metrics_dir or None, config.worker.index)
        #: Where features come from that are not in the graph.
        self.sources: Sources | None = None
        #: model name -> version -> served; the last version is the one that serves.
        self._models: dict[str, dict[str, ServedVersion]] = {}
        #: model name -> the version that serves
        self._serving: dict[str, ServedVersion] = {}
        #: Are told of everything that ended; set before versions are loaded.
        self.recorders: list[Recorder] = []
        self._executor: ThreadPoolExecutor | None = None
        self._link: PrefetchLink | None = None
        self._ready = False
        self._draining = False

    async def start(self) -> None:
        """Open the graph, load every model and warm it up.

        Raises:
            ConfigError: a path that is needed is not set or not there.
            GraphError, ArtifactError: what cannot be opened, and why.
        """
        began = time.perf_counter()
        graph = Graph.open(needed_folder(self.config, "graph.path"))
        near = await self._open_sources(graph)
        memory = self.config.graph.memory
        own_features = not near
        if memory == "huge" or (memory == "auto" and self.config.worker.count == 1):
            graph = in_huge_pages(graph, features=own_features)
        prefault(graph, features=own_features)
        found = find_models(self.config)
        plans = plan_tables(self.config, graph, [spec for _, spec in found])
        arena = self._arena(sum(plan.num_bytes for plan in plans))
        self._executor = ThreadPoolExecutor(max(1, len(found)), thread_name_prefix="hopline-compute")
        for (folder, spec), plan in zip(found, plans, strict=True):
            tables = plan.build(arena, self.config.worker.index)
            model = load_model(folder, spec, graph, tables, self.config.compute.threads, near)
            metrics = self.metrics.model(spec.name, spec.version)
            served = ServedVersion(
                model, self.config, metrics, self._executor, self.sources, self.recorders
            )
            served.warm_up()
            await self._prewarm(served)
            self.metrics.before_reading(served.bring_in)
            self._models.setdefault(spec.name, {})[spec.version] = served
            self._serving[spec.name] = served
            self.metrics.queue_rows(spec.name).set_function(partial(self._queued_rows, spec.name))
        self._ready = True
        log.info(
            "serving %s on graph %s (%d nodes, %d edges), started in %.2f s",
            ", ".join(f"{name}/{version}" for name, known in self._models.items() for version in known),
            graph.version,
            graph.num_nodes,
            graph.num_edges,
            time.perf_counter() - began,
        )

    def begin_drain(self) -> None:
        """Refuse new requests; those admitted finish."""
        self._draining = True
        for served in self._all():
            served.batcher.close("the server is shutting down")

    async def drain(self, timeout_s: float) -> bool:
        """Wait for admitted requests; whether all finished in time."""
        try:
            async with asyncio.timeout(timeout_s):
                for served in self._all():
                    await served.batcher.join()
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Let go of threads; after `drain`."""
        self._ready = False
        if self._link is not None:
            await self._link.close()
        if self.sources is not None:
            await self.sources.close()
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        """Hand a request in; `deliver` is called with its outcome from the event loop.

        Raises:
            HoplineError: it was refused at once; nothing is delivered.
        """
        if request.version is None and not self._draining:
            served = self._serving.get(request.model)
            if served is not None:
                return served.submit(request, deliver)
        return self._resolve(request.model, request.version).submit(request, deliver)

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Answer one request; cancelling withdraws it.

        Raises:
            HoplineError: of any kind; see errors.py.
        """
        future: asyncio.Future[ScoreResult] = asyncio.get_running_loop().create_future()

        def deliver(outcome: ScoreResult | HoplineError) -> None:
            if future.done():  # cancelled, and this coroutine has not run since
                return
            if isinstance(outcome, HoplineError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        ticket = self.submit(request, deliver)
        try:
            return await future
        finally:
            ticket.cancel()  # nothing once it is answered

    def live(self) -> bool:
        """Whether the process works at all."""
        return True

    def ready(self) -> bool:
        """Whether requests are accepted."""
        return self._ready and not self._draining

    def model_names(self) -> tuple[str, ...]:
        """Names of the models that are served."""
        return tuple(self._models)

    def describe(self, name: str, version: str | None = None) -> ModelInfo:
        """One model version; None means the one that serves.

        Raises:
            ModelNotFound: naming what there is.
        """
        served = self._resolve(name, version, even_draining=True)
        return served.info(tuple(self._models[name]))

    def statistics(self, name: str) -> list[dict[str, Any]]:
        """Counters of each version, in the form of the protocol's ModelStatistics."""
        self._resolve(name, None, even_draining=True)
        return [served.statistics() for served in self._models[name].values()]

    def _resolve(self, name: str, version: str | None, even_draining: bool = False) -> ServedVersion:
        versions = self._models.get(name)
        if versions is None:
            known = ", ".join(self._models) or "none"
            raise ModelNotFound(f"no model {name!r}; there are: {known}")
        if self._draining and not even_draining:
            raise Unavailable("the server is shutting down")
        if version is None:
            return self._serving[name]
        served = versions.get(version)
        if served is None:
            raise ModelNotFound(
                f"model {name!r} has no version {version!r}; there are: {', '.join(versions)}"
            )
        return served

    def _all(self) -> list[ServedVersion]:
        return [served for versions in self._models.values() for served in versions.values()]

    def _queued_rows(self, name: str) -> float:
        return float(sum(served.batcher.queued_rows for served in self._models[name].values()))

    # What only some servers need is imported where it is: a fifth of a second of each start.

    async def _open_sources(self, graph: Graph) -> Mapping[str, NearRows]:
        """Connect to the feature store, if there is one; node type -> its rows."""
        if not self.config.features.store:
            return {}
        from hopline.rollout.sources import Sources

        self.sources = Sources(self.config, self.metrics)
        await self.sources.open(graph)
        path, shared = self.config.features.prefetcher, self.sources.shared
        if path is not None and shared is not None:
            from hopline.prefetch.link import PrefetchLink
            from hopline.prefetch.wire import Identity

            identity = Identity(graph.version, shared.identity)
            timeout_s = self.config.features.fetch_timeout_ms / 1e3
            self._link = PrefetchLink(path, identity, self.config.worker.index, timeout_s, self.metrics)
            self._link.start()
            self.sources.sidecar = self._link
        return self.sources.near

    async def _prewarm(self, served: ServedVersion) -> None:
        settings = self.config.features
        if settings.prewarm_nodes or settings.prewarm_file is not None:
            from hopline.rollout.prewarm import prewarm

            await prewarm(served, self.config)

    def _arena(self, num_bytes: int) -> Arena:
        fd = self.config.worker.table_fd
        return Arena(num_bytes, fd if fd >= 0 else None)


def find_models(config: Config) -> list[tuple[Path, ModelSpec]]:
    """(folder, spec) of every version to serve, oldest version of each model first.

    Raises:
        ConfigError: no repository, or a named model is not in it.
        ArtifactError: an artifact that cannot be used.
    """
    repository = needed_folder(config, "models.repository")
    there = sorted(path.name for path in repository.iterdir() if path.is_dir() and path.name[0] != ".")
    names = list(config.models.names) or there
    found = []
    for name in names:
        if name not in there:
            known = ", ".join(there) or "nothing"
            raise ConfigError(f"models.names: {name!r} is not in {repository}; there is: {known}")
        folders = [path for path in (repository / name).iterdir() if (path / "model.json").is_file()]
        if not folders:
            raise ArtifactError(f"{repository / name}: no version with a model.json; run `hopline package`")
        found += [(path, read_spec(path)) for path in sorted(folders, key=_version_order)]
    if not found:
        raise ConfigError(f"models.repository: {repository} holds no models; run `hopline package` first")
    return found


def plan_tables(config: Config, graph: Graph, specs: list[ModelSpec]) -> list[TablePlan]:
    """How the table budget is divided: evenly among versions, the same in every worker."""
    share = config.table.memory_bytes // max(1, len(specs))
    return [TablePlan(spec, graph, share, config.worker.count) for spec in specs]


def _version_order(folder: Path) -> list[tuple[int, int, str]]:
    """Natural order: 2 before 10, v1.9 before v1.10."""
    parts = re.split(r"(\d+)", folder.name)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts if part]
