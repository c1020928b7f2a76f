"""A replica of the Serve application: Hopline's service inside a Ray actor.

HTTP requests reach Hopline's own HTTP application, so paths, bodies, errors and headers are those of
`hopline serve`. Calls through handles get the same answers without JSON.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.requests import Request as StarletteRequest
from starlette.responses import Response as StarletteResponse

from hopline.config.reader import load_config
from hopline.errors import HoplineError
from hopline.server import open_gate
from hopline.service import Service
from hopline.transports.http import HttpApp
from hopline.types import ScoreRequest, ScoreResult
from turnserve.http1.messages import Pending, Request, Response

log = logging.getLogger("hopline.ray")

#: Seconds for the requests that a stopped replica has, when Serve has already waited for them.
_CLOSE_S = 5.0


class HoplineReplica:
    """Serves a repository; see `application`.

    Args:
        settings: "section.key" -> value.
    """

    async def __init__(self, settings: Mapping[str, Any]) -> None:  # type: ignore[misc]
        self._state = tempfile.TemporaryDirectory(prefix="hopline-ray-")
        # Versions come from Serve: what one replica loads must not depend on what another one stored.
        overrides = {"models.state": self._state.name, **settings}
        self._config = load_config(overrides=overrides)
        self._service = Service(self._config)
        await self._service.start()
        self._http = HttpApp(self._service, self._config, open_gate(self._config))

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Let other versions answer: each is loaded and warmed up before it takes requests.

        Raises: HoplineError: one cannot be loaded; the present versions continue to answer.
        """
        for model, version in user_config.get("versions", {}).items():
            if self._service.describe(model).version != version:
                await self._service.load(model, version)
                log.info("model %s: version %s answers", model, version)

    async def check_health(self) -> None:
        """Serve replaces a replica for which this raises."""
        if not self._service.ready():
            raise RuntimeError("the service does not accept requests")

    async def score(self, request: ScoreRequest) -> ScoreResult:
        """Answer one request. Requests at the same time are batched, as in `hopline serve`.

        Raises: HoplineError: of any kind.
        """
        return await self._service.score(request)

    async def score_many(self, requests: Sequence[ScoreRequest]) -> list[ScoreResult | HoplineError]:
        """The outcome of each request, in order; a failed one does not harm the others."""
        found = await asyncio.gather(*map(self._service.score, requests), return_exceptions=True)
        for outcome in found:
            if isinstance(outcome, BaseException) and not isinstance(outcome, HoplineError):
                raise outcome
        return found  # type: ignore[return-value]

    async def __call__(self, request: StarletteRequest) -> StarletteResponse:
        """Answer an HTTP request."""
        try:
            body = await request.body()
        except ClientDisconnect:
            return StarletteResponse(status_code=499)
        target = request.scope.get("raw_path") or request.scope["path"].encode()
        root = request.scope.get("root_path", "").encode()
        if root and target.startswith(root + b"/"):  # the application's route prefix
            target = target[len(root) :]
        if request.scope.get("query_string"):
            target += b"?" + request.scope["query_string"]
        headers: dict[bytes, bytes] = {}
        for name, value in request.scope["headers"]:
            headers[name] = headers[name] + b", " + value if name in headers else value
        if len(body) > self._config.server.max_body_bytes:
            return _sent(self._http.refuse(413, "the body is larger than server.max_body_bytes"))
        answer = self._http(Request(request.method.encode(), target, headers, body))
        return _sent(await _arrived(answer) if isinstance(answer, Pending) else answer)

    async def __del__(self) -> None:
        """Close the service; Serve has waited for its requests."""
        service: Service | None = getattr(self, "_service", None)
        if service is not None:
            service.begin_drain()
            await service.drain(_CLOSE_S)
            await service.close()
            self._state.cleanup()


async def _arrived(pending: Pending) -> Response:
    """The answer of a pending request, which is withdrawn if the caller hangs up."""
    if pending.response is not None:
        return pending.response
    future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

    def receive(answered: Pending) -> None:
        if not future.done() and answered.response is not None:
            future.set_result(answered.response)

    pending.receiver = receive
    try:
        return await future
    except asyncio.CancelledError:
        pending.cancel()
        raise


def _sent(response: Response) -> StarletteResponse:
    headers = {}
    for line in response.headers.split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if colon:
            headers[name.decode("latin-1").strip()] = value.decode("latin-1").strip()
    headers["content-type"] = response.content_type.decode("latin-1")
    return StarletteResponse(response.body, response.status, headers)
