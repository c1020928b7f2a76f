"""A client of one Alertmanager and its API v2 (`POST /api/v2/alerts`). Knows no incidents."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx

from hopline.errors import ConfigError
from hopline_mesh.errors import QueryFailed, SourceUnavailable
from hopline_mesh.server_access import read_token, trusted

#: Characters of an error response that messages show.
_MAX_TEXT = 300


class Alertmanager:
    """A client of one Alertmanager.

    Args:
        url: with its path prefix, if it has one; `user:password@` is sent as basic auth.
        token_file: file with a bearer token, read again for each post.
        ca_file: PEM CA certificates for its server certificate; None uses the system's.
        timeout_s: for one post, from connecting to the end of the response.

    Raises:
        ConfigError: the address or a file is invalid.

    Attributes:
        name: address without credentials, for metrics and messages.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._token_file, self._timeout_s = token_file, timeout_s
        try:
            address = httpx.URL(url)
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(f"alertmanager_urls: one of them is not a URL: {error}") from None
        # Send credentials in a header instead of the address, so that no log shows them.
        self.name = str(address.copy_with(userinfo=b"", query=None, fragment=None)).rstrip("/")
        if address.scheme not in ("http", "https") or not address.host:
            raise ConfigError(f"alertmanager_urls: {self.name!r} is not a URL such as http://host:9093")
        auth = httpx.BasicAuth(address.username, address.password) if address.username else None
        self._url = str(address.copy_with(userinfo=b"", path=f"{address.path.rstrip('/')}/api/v2/alerts"))
        self._client = httpx.AsyncClient(
            auth=auth,
            verify=trusted(ca_file, "ca_file") if address.scheme == "https" else False,
            timeout=timeout_s,
        )

    async def post(self, alerts: list[dict[str, Any]]) -> None:
        """Post alerts.

        Raises:
            SourceUnavailable: Alertmanager is unreachable, too slow, or fails; retry later.
            QueryFailed: Alertmanager refuses the alerts.
            ConfigError: the token cannot be read.
        """
        headers = {}
        if self._token_file is not None:
            token = read_token(self._token_file, "alertmanager_token_file")
            headers["authorization"] = f"Bearer {token}"
        try:
            # httpx's own timeout applies to each part of a response, so a slow one could take for ever.
            async with asyncio.timeout(self._timeout_s):
                response = await self._client.post(self._url, json=alerts, headers=headers)
        except TimeoutError:
            raise SourceUnavailable(
                f"Alertmanager {self.name} did not respond within {self._timeout_s:g} s"
            ) from None
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise SourceUnavailable(f"Alertmanager {self.name} cannot be reached: {reason}") from None
        if response.is_success:
            return
        body = response.text[:_MAX_TEXT].strip()
        text = f"Alertmanager {self.name} returned status {response.status_code}: {body}"
        if response.status_code >= 500 or response.status_code in (408, 429):
            raise SourceUnavailable(text)
        raise QueryFailed(text)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()
