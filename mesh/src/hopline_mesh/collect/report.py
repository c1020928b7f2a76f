"""The report of a collection, for metrics and for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: `ok` and `empty` succeeded; `late`: not within the deadline; `unavailable`: no connection, or a failing
#: server; `refused`: the query is invalid or not permitted, or the response cannot be read.
Outcome = Literal["ok", "empty", "late", "unavailable", "refused"]


@dataclass(frozen=True, slots=True)
class QueryReport:
    """The report of one query.

    Attributes:
        name: such as "node.request_rate".
        outcome: of the query.
        reason: for people; "" if it succeeded.
        duration_s: until the response was read.
        series: number in the response.
        matched: number of series that belong to a watched service or call path.
    """

    name: str
    outcome: Outcome
    reason: str = ""
    duration_s: float = 0.0
    series: int = 0
    matched: int = 0


@dataclass(frozen=True, slots=True)
class CollectReport:
    """The report of one interval.

    Attributes:
        queries: in the order of the query set.
        left_out: number of services and call paths beyond the limits.
        ahead_s: how far Prometheus' clock is ahead of ours.
    """

    queries: tuple[QueryReport, ...]
    left_out: int
    ahead_s: float

    @property
    def failed(self) -> int:
        """Number of failed queries."""
        return sum(query.outcome not in ("ok", "empty") for query in self.queries)
