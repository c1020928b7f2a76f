"""What an interval's collection took and gave, as numbers for metrics and for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: `ok` and `empty` were answered; `late`: not within the deadline; `unavailable`: no connection, or a
#: server in trouble; `refused`: the question is wrong or not allowed, or the answer cannot be read.
Outcome = Literal["ok", "empty", "late", "unavailable", "refused"]


@dataclass(frozen=True, slots=True)
class QueryReport:
    """One question.

    Attributes:
        name: such as "node.request_rate".
        outcome: how it went.
        reason: why, for people; "" where it went well.
        duration_s: until it was answered and read.
        series: in the answer.
        matched: of these, how many were of a service (or call path) that is watched.
        bytes: of the answer.
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
    """One interval.

    Attributes:
        time_s: of the snapshot.
        duration_s: from the first question to the snapshot.
        queries: in the order of the query set.
        services, edges: in the snapshot.
        new_services: of these, never seen before.
        held_services: of these, not seen now and kept as not measured.
        left_out: services and call paths beyond the limits.
        ahead_s: how far Prometheus' clock is ahead of ours.
        gaps: how many were reported.
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
        """Questions without an answer."""
        return sum(query.outcome not in ("ok", "empty") for query in self.queries)

    @property
    def series(self) -> int:
        """Of all answers."""
        return sum(query.series for query in self.queries)

    @property
    def bytes(self) -> int:
        """Of all answers."""
        return sum(query.bytes for query in self.queries)
