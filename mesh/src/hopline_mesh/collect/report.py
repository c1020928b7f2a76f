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
        bytes: of the response.
    """

    name: str
    outcome: Outcome
    reason: str = ""
    duration_s: float = 0.0
    series: int = 0
    matched: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class CollectReport:
    """The report of one interval.

    Attributes:
        time_s: of the snapshot.
        duration_s: from the first query to the snapshot.
        queries: in the order of the query set.
        services, edges: numbers in the snapshot.
        new_services: number of services that were never seen before.
        held_services: number of missing services that stay as not measured.
        left_out: number of services and call paths beyond the limits.
        ahead_s: how far Prometheus' clock is ahead of ours.
        gaps: number of gaps.
    """

    time_s: float
    duration_s: float
    queries: tuple[QueryReport, ...]
    services: int
    edges: int
    new_services: int
    held_services: int
    left_out: int
    ahead_s: float
    gaps: int

    @property
    def failed(self) -> int:
        """Number of failed queries."""
        return sum(query.outcome not in ("ok", "empty") for query in self.queries)

    @property
    def series(self) -> int:
        """Number of series in all responses."""
        return sum(query.series for query in self.queries)

    @property
    def bytes(self) -> int:
        """Size of all responses."""
        return sum(query.bytes for query in self.queries)
