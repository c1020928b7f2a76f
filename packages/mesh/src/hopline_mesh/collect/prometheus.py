"""A client of Prometheus over HTTP. Knows no meshes or columns.

It keeps its connections open. Works with compatible servers: Thanos, Mimir, VictoriaMetrics.
"""

from __future__ import annotations

import contextlib
import email.utils
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx
import msgspec

from hopline.errors import ConfigError
from hopline_mesh.collect.answer import UNREADABLE
from hopline_mesh.collect.names import safe_text
from hopline_mesh.errors import QueryFailed, SourceUnavailable
from hopline_mesh.server_access import read_token, trusted


@dataclass(frozen=True, slots=True)
class Reply:
    """A response.

    Attributes:
        body: JSON, not yet parsed.
        date_s: the server's clock at the response, whole Unix seconds; None if it sends none.
    """

    body: bytes
    date_s: float | None


class Prometheus:
    """The query API of one server.

    Args:
        url: such as http://prometheus:9090; a path before `/api/v1` may be part of it, and so may
            `user:password@`.
        token_file: file with a bearer token.
        ca_file: PEM CA certificates for the server's certificate; None: those of the system.
        max_bytes: of one response; a longer one is not read to its end.
        transport: instead of the network, for tests.

    Raises:
        ConfigError: an invalid URL, both a token and a password, a file that cannot be read.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        max_bytes: int = 512 * 2**20,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        try:
            address = httpx.URL(url.rstrip("/"))
        except httpx.InvalidURL as error:
            raise ConfigError(f"prometheus_url: {safe_text(url)!r} is not a URL: {error}") from None
        if address.scheme not in ("http", "https") or not address.host:
            raise ConfigError(f"prometheus_url: {safe_text(url)!r} is not a URL such as http://host:9090")
        if address.username and token_file:
            raise ConfigError("prometheus: a bearer token and a user name are set; set only one of them")
        self._url = address.copy_with(username=None, password=None)
        #: The URL without a password, for messages.
        self.url = str(self._url)
        self._token_file = token_file
        self._max_bytes = max_bytes
        self._transport = transport

        def connect() -> httpx.AsyncClient:
            # Within a cluster's network, compression costs the server more than the transfer.
            return httpx.AsyncClient(
                headers={"Accept-Encoding": "identity"},
                auth=httpx.BasicAuth(address.username, address.password) if address.username else None,
                verify=trusted(ca_file, "ca_file") if address.scheme == "https" else True,
                timeout=None,
                limits=httpx.Limits(max_connections=32, max_keepalive_connections=32, keepalive_expiry=120),
                transport=transport,
            )

        self._connect = connect
        self._http = connect()
        self._authorization()

    async def __aenter__(self) -> Prometheus:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def renew(self) -> None:
        """Close all connections and open new ones, after queries were cancelled.

        A query that is cancelled at the wrong moment keeps its connection's place in the pool for ever;
        after enough of them no query could be sent any more.
        """
        if self._transport is not None:
            return
        before, self._http = self._http, self._connect()
        with contextlib.suppress(httpx.HTTPError, OSError, RuntimeError):
            await before.aclose()

    async def query(self, promql: str, time_s: float, timeout_s: float) -> Reply:
        """Query the value of an expression at one time.

        Args:
            promql: the expression.
            time_s: Unix seconds by the server's clock.
            timeout_s: after which the server may stop; the caller cancels the query itself.

        Raises:
            SourceUnavailable: no connection, or the server is overloaded, starting or failing.
            QueryFailed: the server refuses the query, or the response is too long.
        """
        return await self._exchange("query", promql, timeout_s, {"time": time_s})

    async def query_range(
        self, promql: str, start_s: float, end_s: float, step_s: float, timeout_s: float
    ) -> Reply:
        """Query the values of an expression at evenly spaced times.

        Args:
            start_s, end_s: the first and the last, Unix seconds by the server's clock.
            step_s: between them.

        Raises: see `query`.
        """
        times = {"start": start_s, "end": end_s, "step": step_s}
        return await self._exchange("query_range", promql, timeout_s, times)

    async def _exchange(
        self, path: str, promql: str, timeout_s: float, times: Mapping[str, float]
    ) -> Reply:
        fields = {"query": promql, **{name: f"{time_s:.3f}" for name, time_s in times.items()}}
        fields["timeout"] = f"{max(1, round(timeout_s * 1000))}ms"
        try:
            try:
                return await self._once(path, fields)
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # The server closed an idle connection while it was reused: retry once.
                return await self._once(path, fields)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = safe_text(error) or type(error).__name__
            raise SourceUnavailable(f"Prometheus at {self.url} is unavailable: {reason}") from None

    async def _once(self, path: str, fields: Mapping[str, str]) -> Reply:
        request = self._http.build_request(
            "POST",
            self._url.copy_with(path=f"{self._url.path.rstrip('/')}/api/v1/{path}"),
            data=fields,
            headers=self._authorization(),
        )
        response = await self._http.send(request, stream=True)
        try:
            body = await self._body(response)
        finally:
            await response.aclose()
        if response.status_code != 200:
            raise self._refused(response.status_code, body, response.headers.get("location", ""))
        return Reply(body, _date(response.headers.get("date", "")))

    async def _body(self, response: httpx.Response) -> bytes:
        parts, size = [], 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > self._max_bytes:
                raise QueryFailed(
                    f"the response is longer than {self._max_bytes // 2**20} MiB; it was not read"
                )
        return b"".join(parts)

    def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        return {"Authorization": f"Bearer {read_token(self._token_file, 'prometheus_token_file')}"}

    def _refused(self, status: int, body: bytes, location: str) -> QueryFailed | SourceUnavailable:
        reason = _reason(body)
        where = f"Prometheus at {self.url} returned HTTP {status}"
        if status in (401, 403):
            reason = f": a token or password is missing, wrong or has no permission{reason}"
        elif 300 <= status < 400:
            reason = f", a redirection to {safe_text(location)!r}; configure that URL instead"
        elif status in (408, 429) or status >= 500:
            return SourceUnavailable(f"{where}{reason}")
        return QueryFailed(f"{where}{reason}")


def _reason(body: bytes) -> str:
    """Return the message of a refusal, with ": " before it."""
    try:
        found = msgspec.json.decode(body[:100_000])
    except UNREADABLE:
        found = None
    text = found.get("error") if isinstance(found, dict) else body[:200].decode("utf-8", "replace")
    return f": {safe_text(text)}" if text else ""


def _date(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
