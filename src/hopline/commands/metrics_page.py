"""Fetches `/metrics` for the commands that read it."""

from __future__ import annotations

import httpx

from hopline.errors import Unavailable
from hopline.observe.scrape import Scrape


def read_metrics(url: str, api_key: str | None = None, timeout_s: float = 10.0) -> Scrape:
    """What a server's metrics say now.

    Args:
        url: of the server; `/metrics` is added.
        api_key: where the server asks for one.

    Raises:
        Unavailable: nobody answers there, or not with metrics.
    """
    page = f"{url.rstrip('/').removesuffix('/metrics')}/metrics"
    try:
        answer = httpx.get(page, timeout=timeout_s, headers={"x-api-key": api_key} if api_key else {})
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(f"{page}: {error}") from None
    if answer.status_code != 200:
        raise Unavailable(f"{page}: answered {answer.status_code}: {answer.text[:200]}")
    return Scrape(answer.text)
