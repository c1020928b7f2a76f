"""Targets that answer replayed requests: a service in this process; `hopline.jobs.targets` has a server."""

from __future__ import annotations

import tempfile
from types import TracebackType
from typing import Self

from hopline.config.schema import Config
from hopline.jobs.targets import ServerTarget
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


Target = ServiceTarget | ServerTarget
