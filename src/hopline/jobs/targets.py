"""Targets that answer replayed requests: a service in this process, or a running server."""

from __future__ import annotations

import tempfile
from types import TracebackType
from typing import Any, Protocol, Self, cast

import msgspec

from hopline.client import AsyncClient
from hopline.client.wire import ScoreOptions
from hopline.config.schema import Config
from hopline.request_fields import LOGGED, default_of
from hopline.service import Service
from hopline.types import ScoreRequest, ScoreResult

#: Timeout for one answer of a server, in seconds.
_TIMEOUT_S = 120.0


class Target(Protocol):
    """Answers requests; used as an async context."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    async def log_id(self) -> str:
        """The id of the prediction log that it writes, see `records/names.py`; "" for none."""
        ...

    async def prepare(self, model: str, version: str) -> str:
        """Make a version ready; return the graph version of its answers, "" if there is none or it changes.

        Raises: HoplineError: it is not available.
        """
        ...

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Answer. Raises: HoplineError."""
        ...


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
        """No log is written."""
        return ""

    async def prepare(self, model: str, version: str) -> str:
        """Load a version that is not loaded yet."""
        known = self._service.model_names()
        if model not in known or version not in self._service.describe(model).versions:
            await self._service.load(model, version, serve=False)
        return self._service.describe(model, version).graph_version

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """As `Service.score`."""
        return await self._service.score(request)


class ServerTarget:
    """A running server, over its JSON API: float32 values are transferred bit for bit.

    Args:
        url, api_key, token: see `AsyncClient`.
    """

    def __init__(self, url: str, api_key: str | None = None, token: str | None = None) -> None:
        self._client = AsyncClient(url, api_key=api_key, token=token, timeout=_TIMEOUT_S)

    async def __aenter__(self) -> Self:
        """Do nothing until the first request."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        await self._client.close()

    async def log_id(self) -> str:
        """The id in the server's metadata."""
        metadata = msgspec.json.decode(await self._client.send("GET", "/v2"), type=dict[str, Any])
        return str(metadata.get("prediction_log", ""))

    async def prepare(self, model: str, version: str) -> str:
        """Do nothing: a server manages its own versions, and its graph may be live."""
        return ""

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Send the request with the matching method of the client."""
        client, options = self._client, _options(request)
        if request.columns is not None:
            return await client.score(request.model, request.nodes, columns=request.columns, **options)
        if request.pairs is not None:
            return await client.score_pairs(request.model, zip(*request.pairs, strict=True), **options)
        if request.inline:
            return await client.score_inline(request.model, request.inline, request.nodes, **options)
        return await client.score(request.model, request.nodes, **options)


def _options(request: ScoreRequest) -> ScoreOptions:
    """The options that the request sets; the client knows the defaults of the others."""
    options: Any = {
        field.name: value
        for field in LOGGED
        if (value := getattr(request, field.name)) != default_of(field)
    }
    return cast(ScoreOptions, {"version": request.version, **options})
