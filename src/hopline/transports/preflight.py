"""Pre-flight: requests that the server sends to itself before the first real one.

A code path is slow the first time: the interpreter has not run it, and libraries create their caches.
Pre-flight requests use the whole path, from a connection's bytes to the response's bytes. They leave no
trace in metrics, logs or recorded requests.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import msgspec

from hopline.config.schema import Config
from hopline.observe.metrics import Metrics
from hopline.transports.http import HttpApp
from hopline.types import Deliver, ScoreRequest, Ticket
from turnserve.http1.endpoint import HttpEndpoint

if TYPE_CHECKING:
    from hopline.service import Service

#: Seconds: limit for all pre-flight requests, and timeout of one response.
_LONGEST_S, _PATIENCE_S = 0.1, 2.0
_ANSWER_BYTES = 1 << 20


async def preflight(service: Service, config: Config, examples: Iterable[ScoreRequest]) -> int:
    """Send example requests as a client would, for a tenth of a second; return how many were sent."""
    stage = _Stage(service)
    app = HttpApp(cast("Service", stage), config)
    endpoint = HttpEndpoint(app, app.refuse, max_body_bytes=config.server.max_body_bytes)
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    count = 0
    with theirs:
        theirs.setblocking(False)
        transport, _ = await loop.create_unix_connection(endpoint, sock=ours)
        try:
            end = loop.time() + _LONGEST_S
            for example in examples:
                if loop.time() > end:
                    break
                # Every second request has a new head, which is parsed; the others hit the cache of heads.
                try:
                    message = _message(example, f"client-{count // 2}")
                except UnicodeEncodeError:  # an older graph has an id with a lone surrogate: no client asks
                    continue
                stage.example = example
                await loop.sock_sendall(theirs, message)
                async with asyncio.timeout(_PATIENCE_S):
                    await loop.sock_recv(theirs, _ANSWER_BYTES)
                count += 1
        except (OSError, TimeoutError):  # a slow start is not a reason to stop
            pass
        finally:
            transport.abort()
    return count


class _Stage:
    """The part of the service that scoring needs, with metrics that are not exported."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.metrics = Metrics()
        self.example = ScoreRequest("")

    def submit(self, request: ScoreRequest, deliver: Deliver) -> Ticket:
        """Submit to the version of the example, regardless of rollouts."""
        version = self.example.version
        deadline = time.monotonic() + _PATIENCE_S
        return self._service.submit(
            msgspec.structs.replace(request, version=version, deadline=deadline), deliver
        )

    def reject_early(self, model: str) -> None:
        """Accept every request."""

    def check_version(self, request: ScoreRequest) -> None:
        """Delegate to the service."""
        self._service.check_version(request)


def _message(example: ScoreRequest, host: str) -> bytes:
    body: dict[str, Any] = {"nodes": _plain(example.nodes)}
    if example.pairs is not None:
        body = {"pairs": list(zip(*map(_plain, example.pairs), strict=True))}
    if example.edges:
        body = {"edges": example.edges}
    content = msgspec.json.encode(body)
    path = f"/v1/models/{quote(example.model, safe='')}/score"
    head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def _plain(ids: Any) -> list[Any]:
    """Convert an array or a list to a list."""
    found: list[Any] = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return found
