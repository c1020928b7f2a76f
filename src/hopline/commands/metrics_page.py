"""Fetches `/metrics` for the commands that read it."""

from __future__ import annotations

import httpx2

from hopline.client import wire
from hopline.commands.connection import credentials, server_url
from hopline.errors import Unavailable
from hopline.observe.scrape import Scrape


def read_metrics(
    url: str | None, api_key: str | None, token: str | None, timeout_s: float = 10.0
) -> Scrape:
    """The current metrics of a server.

    Args:
        url, api_key, token: flags; None reads the environment.

    Raises:
        Unavailable: the server does not answer, or answers without metrics.
    """
    page = f"{server_url(url).rstrip('/').removesuffix('/metrics')}/metrics"
    try:
        answer = httpx2.get(page, timeout=timeout_s, headers=wire.credentials(*credentials(api_key, token)))
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise Unavailable(f"{page}: {error}") from None
    if answer.status_code != 200:
        raise Unavailable(f"{page}: answered {answer.status_code}: {answer.text[:200]}")
    return Scrape(answer.text)
