"""A query to Prometheus for one column, the labels that name the services of its series, and its outcome.

Plain values; knows no mesh and no HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hopline_mesh.schema import EDGE_FEATURES, NODE_FEATURES, Schema

#: How values of several series of one service (or call path) are combined.
Combine = Literal["sum", "max"]


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a series that name a service.

    Attributes:
        service: labels in order of preference: the first that exists and is neither empty nor "unknown" is
            used.
        namespace: labels of its namespace, in the same way; () if names have none.
        pod: the label names a pod; its owner is the service.
        otherwise: labels to read if `service` gives nothing. Its name is replaced by that of `service` if
            any series had both: a call that never arrived has only the name that was called, not the
            workload behind it.
    """

    service: tuple[str, ...]
    namespace: tuple[str, ...] = ()
    pod: bool = False
    otherwise: Labels | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All these labels, and those of `otherwise`."""
        return (*self.service, *self.namespace, *(self.otherwise.names if self.otherwise else ()))


@dataclass(frozen=True, slots=True)
class Query:
    """One query, and the column that its response fills.

    Attributes:
        of: whether its series are of services or of call paths.
        column: of the schema.
        promql: the expression; returns an instant vector.
        service: labels of the service; for a call path, of the callee.
        caller: for a call path, labels of the caller; else None.
        scale: values are multiplied by it.
        combine: for several series of one service.
        per: divide by this column (failures per second by requests per second). If that is above 0 and
            the response has no series, the result is 0: a service without failures has no such series.
        reveals: a service (or call path) in the response exists.
        ceiling_of: for a check of histograms. (column, quantile) of each column from the same buckets; the
            values are shares of observations within the last finite bucket. A quantile above that share is
            at least as large as the bucket's limit; its exact value is unknown.
    """

    of: Literal["node", "edge"]
    column: str
    promql: str
    service: Labels
    caller: Labels | None = None
    scale: float = 1.0
    combine: Combine = "sum"
    per: str = ""
    reveals: bool = True
    ceiling_of: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        """Name of the query, such as "node.request_rate"."""
        return f"{self.of}.{self.column}" + (" (last bucket)" if self.ceiling_of else "")


@dataclass(frozen=True, slots=True)
class QuerySet:
    """All queries of one interval.

    Attributes:
        name: for people.
        queries: at most one for each column, plus checks of histograms; those that they refer to.
    """

    name: str
    queries: tuple[Query, ...]

    @property
    def by_pod(self) -> bool:
        """True if some series are joined to services by their pod's owner."""
        return any(query.service.pod for query in self.queries)

    def columns(self, of: Literal["node", "edge"]) -> tuple[str, ...]:
        """Return the columns of the queries, in their order."""
        return tuple(query.column for query in self.queries if query.of == of and not query.ceiling_of)

    def schema(self) -> Schema:
        """Return the schema: all default columns, and other columns of the queries."""
        nodes, edges = (*NODE_FEATURES, *self.columns("node")), (*EDGE_FEATURES, *self.columns("edge"))
        return Schema(tuple(dict.fromkeys(nodes)), tuple(dict.fromkeys(edges)))


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
