"""Targets that answer replayed requests: a service in this process, also on the versions of a live graph.

`hopline.jobs.targets` has a server.
"""

from __future__ import annotations

import asyncio
import tempfile
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from hopline.config.schema import Config
from hopline.errors import BadRequest, GraphError, LogDamaged
from hopline.graph.live.history import LiveHistory
from hopline.graph.live.manifest import read_manifest
from hopline.graph.live.version import GraphVersion, StreamOffset, read_version
from hopline.jobs.targets import ServerTarget
from hopline.live.orders import levels_of
from hopline.service import Service
from hopline.types import ScoreRequest, ScoreResult


class ServiceTarget:
    """A service in this process: the models of a repository on a graph, without a network.

    Args:
        config: `models.repository` is set. Stored rollouts of a server of the same repository are neither
            read nor changed, and no log is written.
    """

    def __init__(self, config: Config) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="hopline-replay-")
        self._service = Service(
            config.replace(
                prediction_log__path="",
                drift__enabled=False,
                tracing__endpoint="",
                # No caller waits: a request may take as long as it takes.
                limits__default_timeout_ms=config.limits.max_timeout_ms,
                models__state=self._folder.name,
            )
        )

    async def __aenter__(self) -> Self:
        """Load the graph and the models."""
        try:
            await self._service.start()
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the service."""
        await self._service.close()
        self._folder.cleanup()

    async def log_id(self) -> str:
        """The id of the prediction log that it writes: none is written."""
        return ""

    async def prepare(self, model: str, version: str) -> str:
        """Load a version that is not loaded yet; return the graph version of its answers.

        Raises: HoplineError: it is not available.
        """
        known = self._service.model_names()
        if model not in known or version not in self._service.describe(model).versions:
            await self._service.load(model, version, serve=False)
        return self._service.describe(model, version).graph_version

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """As `Service.score`."""
        return await self._service.score(request)


class LiveTarget:
    """A service on a live graph that this target changes: it goes through the versions of a live folder.

    Args:
        config: as of `ServiceTarget`; its graph is not used.
        folder: the live folder, which is only read.
        only: stay at this version; None for all of them.
    """

    def __init__(self, config: Config, folder: Path, only: StreamOffset | None = None) -> None:
        self._config, self._folder, self._only = config, folder, only
        self._history: LiveHistory | None = None
        self._service: ServiceTarget | None = None

    async def __aenter__(self) -> Self:
        """Check the folder; the service starts with the first `reach`.

        Raises: GraphError: it is not a live folder.
        """
        if read_manifest(self._folder) is None:
            raise GraphError(f"{self._folder} is not a folder of a live graph")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the service and its memory."""
        if self._service is not None:
            await self._service.__aexit__(kind, error, trace)
        if self._history is not None:
            self._history.__exit__()
        self._service = self._history = None

    async def reach(self, version: str) -> str:
        """Bring the graph to a version, while no request is answered.

        Args:
            version: its name; not before the version of the last call. "" for answers without a graph.

        Returns: why answers on this version cannot be repeated; "" if they can.
        """
        try:
            if "," in version:
                raise BadRequest(f"a pipeline read several versions: {version}")
            wanted = read_version(version, "its graph") if version else None
            await self._go(wanted)
        except (BadRequest, GraphError) as error:
            return str(error)
        return ""

    async def log_id(self) -> str:
        """The id of the prediction log that it writes: none is written."""
        return ""

    async def prepare(self, model: str, version: str) -> str:
        """As `ServiceTarget.prepare`; returns "", since the graph moves on."""
        if self._service is None:
            await self._open(self._only)
        assert self._service is not None
        await self._service.prepare(model, version)
        return ""

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """As `Service.score`."""
        assert self._service is not None
        return await self._service.score(request)

    async def _go(self, wanted: GraphVersion | None) -> None:
        """Bring the graph to a version. Raises: GraphError, BadRequest: it cannot be reached."""
        offset = self._only or (None if wanted is None else wanted.offset)
        if self._history is None:
            await self._open(offset)
        assert self._history is not None
        if wanted is not None and wanted.lineage != self._history.lineage:
            raise BadRequest(f"answered on graph {wanted.lineage}, this one is {self._history.lineage}")
        if offset is not None:
            try:
                await asyncio.to_thread(self._history.reach, offset)
            except LogDamaged as error:
                try:
                    await self._open(offset, after=self._history.sequence)
                except GraphError as other:  # no newer snapshot leads there either
                    raise GraphError(f"{error}; {other}") from None
                await asyncio.to_thread(self._history.reach, offset)
        if wanted is not None and self._only is not None and wanted.offset[:2] != self._only[:2]:
            raise BadRequest(f"the replay stays at {self._history.version}")

    async def _open(self, offset: StreamOffset | None, after: int = -1) -> None:
        config = self._config
        history = await asyncio.to_thread(
            partial(
                LiveHistory,
                self._folder,
                offset,
                after=after,
                num_levels=config.live.levels or levels_of(config.models.repository),
                reads_degrees=config.live.degrees,
            )
        )
        await self.__aexit__(None, None, None)
        self._history = history
        changes = {
            "graph__path": history.base,
            "worker__live_memory": await asyncio.to_thread(lambda: history.memory),
            "live__enabled": False,  # no writer is waited for
            "live__folder": self._folder,
            "features__prefetcher": None,
        }
        self._service = await ServiceTarget(config.replace(**changes)).__aenter__()


Target = ServiceTarget | LiveTarget | ServerTarget
