"""Queries that the metrics of all proxies have in common: requests, failures and latencies of one side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hopline_mesh.collect.promql import beyond_last_bucket, quantile, selector
from hopline_mesh.collect.query import Labels, Query


@dataclass(frozen=True, slots=True)
class Side:
    """The series of one reporter: of services (without a caller), or of call paths.

    Attributes:
        by: labels that tell its services or call paths apart, as in `sum by (…)`.
        matchers: of the reporter.
        service: labels of the service; for a call path, of the callee.
        caller: labels of the caller; None for services.
        reveals: see `Query`.
    """

    by: str
    matchers: str
    service: Labels
    caller: Labels | None = None
    reveals: bool = True

    @property
    def of(self) -> Literal["node", "edge"]:
        """Whether these are services or call paths."""
        return "node" if self.caller is None else "edge"

    def query(self, column: str, promql: str, *, per: str = "") -> Query:
        """Return a query for a column of these series; for `per` see `Query`."""
        return Query(self.of, column, promql, self.service, self.caller, per=per, reveals=self.reveals)

    def latency(self, column: str, q: float, buckets: str, window: str) -> Query:
        """Return a query for a quantile, from a metric with buckets; of several series the largest."""
        promql = quantile(q, self.by, selector(buckets, self.matchers), window=window)
        return Query(
            self.of, column, promql, self.service, self.caller, combine="max", reveals=self.reveals
        )

    def ceiling(self, quantiles: tuple[tuple[str, float], ...], buckets: str, window: str) -> Query:
        """Return a check whether quantiles are above the last bucket; the last column names the query."""
        column, q = quantiles[-1]
        promql = beyond_last_bucket(q, self.by, buckets, self.matchers, window=window)
        return Query(
            self.of, column, promql, self.service, self.caller, reveals=False, ceiling_of=quantiles
        )
