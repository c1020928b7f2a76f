"""A client of Prometheus; knows nothing of objectives."""

from __future__ import annotations

import math
from typing import Any

import httpx2

from hopline.errors import BadRequest, Unavailable


class Prometheus:
    """A client of a Prometheus server's HTTP API.

    Args:
        url: address of the server.
        timeout_s: for one query.
    """

    def __init__(self, url: str, timeout_s: float = 30.0) -> None:
        self._url = url.rstrip("/")
        self._timeout_s = timeout_s

    def value(self, query: str) -> float | None:
        """The value of a query with one sample; None if there is no sample or no number.

        Raises:
            Unavailable: the server does not answer.
            BadRequest: Prometheus refuses the query, or the query has several samples.
        """
        found = self.query(query)
        if len(found) > 1:
            raise BadRequest(f"{len(found)} samples where one was expected: {query}")
        if not found:
            return None
        number = float(found[0]["value"][1])
        return None if math.isnan(number) else number

    def query(self, query: str) -> list[dict[str, Any]]:
        """The samples of an instant query now, as returned by the API.

        Raises: see `value`.
        """
        try:
            answer = httpx2.post(
                f"{self._url}/api/v1/query", data={"query": query}, timeout=self._timeout_s
            )
            body: dict[str, Any] = answer.json()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Unavailable(f"Prometheus at {self._url}: {error}") from None
        except ValueError:
            raise Unavailable(
                f"{self._url} answered {answer.status_code} with a body that is not from Prometheus"
            ) from None
        if body.get("status") != "success":
            raise BadRequest(f"Prometheus refused {query}: {body.get('error', body)}")
        samples: list[dict[str, Any]] = body["data"]["result"]
        return samples
