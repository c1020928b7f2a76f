"""The stream's own port: `/metrics` for Prometheus, `/healthz` for probes. Plain HTTP/1.1, GET only."""

from __future__ import annotations

import asyncio
import contextlib
import re

from hopline.errors import BadRequest
from hopline.observe.exposition import CONTENT_TYPE, OPEN_METRICS_TYPE, wants_open_metrics
from hopline.observe.metrics import Metrics

_LONGEST_HEAD = 16 << 10
_ACCEPT = re.compile(rb"^accept:[ \t]*([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_PATIENCE_S = 5.0


class MetricsPort:
    """An HTTP listener, open while it is entered.

    Args:
        host, port: address; port 0 chooses a free port, which `port` then holds.
    """

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self._metrics = metrics
        self._host = host
        self._server: asyncio.Server | None = None
        self.port = port

    async def __aenter__(self) -> MetricsPort:
        """Listen. Raises: BadRequest: cannot listen on the port."""
        try:
            self._server = await asyncio.start_server(
                self._answer, self._host, self.port, limit=_LONGEST_HEAD
            )
        except OSError as error:
            raise BadRequest(
                f"--metrics-port {self.port}: cannot listen on {self._host}: {error.strerror}"
            ) from None
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(
            OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
        ):
            async with asyncio.timeout(_PATIENCE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                method, _, rest = head.partition(b" ")
                path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
                accepted = _ACCEPT.search(head)
                writer.write(self._response(method, path, accepted[1] if accepted else None))
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    def _response(self, method: bytes, path: bytes, accept: bytes | None) -> bytes:
        status, kind, body = b"200 OK", b"text/plain; charset=utf-8", b"ok\n"
        if method not in (b"GET", b"HEAD"):
            status, body = b"405 Method Not Allowed", b"GET only\n"
        elif path == b"/metrics":
            is_open = wants_open_metrics(accept)
            kind = OPEN_METRICS_TYPE if is_open else CONTENT_TYPE
            body = self._metrics.render(open_metrics=is_open)
        elif path != b"/healthz":
            status, body = b"404 Not Found", b"/metrics and /healthz are here\n"
        head = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (
            status,
            kind,
            len(body),
        )
        return head if method == b"HEAD" else head + body
