"""A running server that answers requests which were logged or scored before."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import msgspec

from hopline.client import AsyncClient
from hopline.request_fields import LOGGED, default_of
from hopline.types import ScoreRequest, ScoreResult

#: Timeout for one answer of a server, in seconds.
_TIMEOUT_S = 120.0


class ServerTarget:
    """A running server, over its JSON API: float32 values are transferred bit for bit."""

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
        if request.edges:
            return await client.score_edges(request.model, **options)
        if request.pairs is not None:
            return await client.score_pairs(request.model, zip(*request.pairs, strict=True), **options)
        if request.inline:
            return await client.score_inline(request.model, request.inline, request.nodes, **options)
        return await client.score(request.model, request.nodes, **options)


def _options(request: ScoreRequest) -> dict[str, Any]:
    """The options that the request sets; the client knows the defaults of the others."""
    said = ((field, getattr(request, field.name)) for field in LOGGED)
    options = {field.name: value for field, value in said if value != default_of(field)}
    return {"version": request.version, **options}
