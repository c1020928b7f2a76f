"""Loads versions of the repository: finds the kind of each, and wraps what its code makes.

The kinds are in `kinds.py`, and what all of them are made with in `tools.py`.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from hopline.answering.limits import ModelLimits, read_limits
from hopline.answering.precomputed_files import check_named
from hopline.answering.served import Recorder, Scorer, Version
from hopline.answering.unit import Unit
from hopline.artifact import read_spec
from hopline.config.schema import Config
from hopline.errors import ArtifactError, ConfigError, HoplineError, RuntimeFailure
from hopline.graph.storage import read as read_manifest
from hopline.models.kinds import find_kind, kind_of, nesting
from hopline.models.load import FirstContents, Load
from hopline.models.local_repository import LocalRepository
from hopline.models.repositories import configured_repository
from hopline.models.repository import Repository
from hopline.models.tools import Tools
from hopline.models.version_folder import content_of
from hopline.observe.metrics import Metrics
from hopline.remote_address import is_address
from hopline.runtimes.placement import place_models

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hopline.isolated.starter import ProcessStarter
    from hopline.isolated.version import ProcessVersion

log = logging.getLogger(__name__)

#: Seconds that a listing of a repository behind a network is given for.
_LISTING_S = 5.0
_NO_VERSION = "no version with a model.json or pipeline.toml"
#: A model process of a shadow leaves the processor to serving processes.
_SHADOW_NICE = 19


class Loader:
    """Loads units of all kinds of models."""

    def __init__(
        self,
        config: Config,
        metrics: Metrics,
        recorders: Sequence[Recorder],
        resolve: Callable[[str, str | None], Scorer],
    ) -> None:
        self.config = config
        self.repository: Repository = configured_repository(config)
        self.tools = Tools(config, metrics, recorders, resolve)
        self.tools.inputs.snapshots.check()
        place_models(config.compute.device)
        self._last_listing: dict[str, list[str]] = {}
        self._listed_at = float("-inf")
        folder = config.worker.metrics_dir  # "" in a server of one process, whose end is the server's
        self._first = FirstContents(Path(folder) / "contents") if folder else None
        self._starter: ProcessStarter | None = None

    def expect(self, num_units: int) -> None:
        """Divide the memory of the state caches among so many units; later ones get as much as these."""
        self.tools.share = self.config.state_cache.memory_bytes // max(1, num_units)

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
            future = self.tools.executor.submit(self._listed)
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

        return nesting(model, newest)

    def reads_graph(self, model: str, version: str) -> bool:
        """True if a version is a graph model; one that cannot be read says why when it is loaded."""
        try:
            folder = self.repository.fetch(model, version)
            return kind_of(folder) == "graph" and bool(read_spec(folder, verify=False))
        except HoplineError:
            return False

    def first_units(self, model: str) -> tuple[Unit, ...]:
        """Units of a model for a server without a state: every version, oldest first, on its own graph.

        Raises: HoplineError: the address of the graph names no snapshot now.
        """
        versions = self.available(model)
        if not self.tools.inputs.snapshots.base:
            return tuple(Unit(version) for version in versions)
        graph, groups = self.tools.inputs.snapshots.own
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
            if self._first is not None:
                await self.tools.in_thread(self._first.check, load)
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

    async def check_unchanged(self, load: Load) -> None:
        """Check that what is loaded is what a load would read now: content never changes in its place.

        Raises: HoplineError: it is not, and what differs; or it cannot be loaded any more, and why.
        """
        about = self._fetched, load.model, load.unit.version
        _, limits, content = await self.tools.in_waiting_thread(*about)
        graph = load.unit.graph
        version = load.content["graph"]
        if graph and not is_address(graph):
            version = (await self.tools.in_thread(read_manifest, Path(graph))).version
        first = load.content | {"serving.toml": load.limits}
        load.check_same(first, content | {"serving.toml": repr(limits), "graph": version})

    def forget(self, model: str, unit_id: str) -> None:
        """As `FirstContents.forget`."""
        if self._first is not None:
            self._first.forget(model, unit_id)

    def _fetched(self, model: str, version: str) -> tuple[Path, ModelLimits, dict[str, str]]:
        folder, limits = self.repository.fetch(model, version), self.limits(model)
        return folder, limits, content_of(folder)

    async def _load(self, load: Load) -> None:
        tools = self.tools
        folder, limits, load.content = await tools.in_waiting_thread(
            self._fetched, load.model, load.unit.version
        )
        load.limits = repr(limits)
        kind = await tools.in_thread(find_kind, folder)
        await tools.in_thread(kind.check, folder, load.model)
        isolated = kind.isolates and not self.config.worker.isolated
        if isolated and (limits.isolate or load.unit.shadow):
            load.served = load.files = process = await self._process(load, limits)
            load.identity = process.identity
            await tools.in_thread(load.served.warm_up)
        else:
            await kind.load(load, folder, limits, tools)
        load.check_same(load.content, await tools.in_thread(content_of, folder))  # written meanwhile
        # A live graph moves on, and so do the models below a pipeline.
        moves = self.config.worker.live_memory and not load.unit.graph
        moves = moves or await tools.in_thread(kind.models_below, folder) is not None
        load.content["graph"] = "" if moves else load.served.graph_version
        if kind.caches:
            load.served = await tools.in_thread(self._wrapped, load.served, limits, load.unit)

    async def close(self) -> None:
        """Close stores, threads and what starts model processes."""
        if self._starter is not None:
            await self._starter.close()
        await self.tools.close()

    async def _process(self, load: Load, limits: ModelLimits) -> ProcessVersion:
        await self.tools.in_thread(importlib.import_module, "hopline.isolated.version")
        from hopline.isolated.starter import ProcessStarter
        from hopline.isolated.version import ProcessVersion, Program

        self._starter = self._starter or ProcessStarter()
        # It is started again and again, and must not find other files than now.
        arguments = {"unit": msgspec.to_builtins(load.unit), "content": load.content.copy()}
        return await ProcessVersion(
            load.model,
            load.unit.id,
            self.config.replace(state_cache__memory_bytes=self.tools.share // self.config.worker.count),
            limits,
            self.tools.metrics,
            self.tools.recorders,
            program=Program("", arguments, _SHADOW_NICE if load.unit.shadow else 0),
            starter=self._starter,
        ).begin()

    def _wrapped(self, served: Version, limits: ModelLimits, unit: Unit) -> Version:
        # An isolated process caches nothing, its caller does; and copies are always computed.
        if not limits.cache_bytes or self.config.worker.isolated or unit.shadow:
            return served
        if self.config.worker.live_memory and not unit.graph:
            log.info("%s: cache_bytes has no effect: answers on a live graph are not cached", served.name)
            return served
        from hopline.answering.response_cache import CachedVersion

        return CachedVersion(served, limits, self.config, self.tools.metrics, self.tools.recorders)
