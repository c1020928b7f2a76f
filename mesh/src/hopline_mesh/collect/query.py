"""What is asked of Prometheus for one column, and how an answer's series say whose they are.

Plain values that are checked when they are made; knows no mesh and no HTTP.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from hopline.errors import ConfigError
from hopline_mesh.schema import EDGE_FEATURES, NODE_FEATURES, Schema

#: How values of one service (or call path) that come in several series become one.
Combine = Literal["sum", "max"]


@dataclass(frozen=True, slots=True)
class Labels:
    """Which labels of a series name a service.

    Attributes:
        service: labels in order of preference: the first counts that is there, and is neither empty nor
            "unknown".
        namespace: the same for its namespace; () where names have none.
        pod: the label names a pod; its owner is the service.
        otherwise: what to read where `service` gives nothing. A name that was found in it is replaced by
            that of `service` wherever one series had both: a call that never arrived knows the name that
            was called, and not what would have answered.
    """

    service: tuple[str, ...]
    namespace: tuple[str, ...] = ()
    pod: bool = False
    otherwise: Labels | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """One question, and the column that its answer fills.

    Attributes:
        of: whether its series are of services or of call paths.
        column: of the schema.
        promql: as it is sent; gives an instant vector.
        service: of a call path, the callee.
        caller: of a call path, the caller; else None.
        scale: values are multiplied by it.
        combine: for several series of one service.
        per: divide by this column (failures per second by requests per second). Where that is above 0 and
            the answer has no series, the result is 0: a service without failures has no such series.
        reveals: a service (or call path) that is in the answer exists.
        ceiling_of: for a check of histograms. (column, quantile) of each column that was read from the same
            buckets; the values are shares of observations within the last bucket that has a limit. A
            quantile above that share is at least as large as the limit, and no more is known.
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

    def __post_init__(self) -> None:
        if not self.promql.strip():
            raise ConfigError(f"{self.name}: its query is empty")
        if (self.of == "edge") != (self.caller is not None):
            raise ConfigError(
                f"{self.name}: a call path has labels of caller and callee, a service of itself"
            )
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"{self.name}: scale is {self.scale}; it has to be above 0")
        if self.per == self.column:
            raise ConfigError(f"{self.name}: it cannot be divided by itself")

    @property
    def name(self) -> str:
        """Such as "node.request_rate"."""
        return f"{self.of}.{self.column}" + (" (last bucket)" if self.ceiling_of else "")


@dataclass(frozen=True, slots=True)
class QuerySet:
    """All that is asked in one interval.

    Attributes:
        name: for people.
        queries: at most one for each column, checks of histograms aside.

    Raises:
        ConfigError: a column twice, or one that is divided by a column which is not there.
    """

    name: str
    queries: tuple[Query, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for query in self.queries:
            if query.name in seen:
                raise ConfigError(f"queries {self.name}: {query.name} is asked for twice")
            seen.add(query.name)
        for query in self.queries:
            needed = [query.per] if query.per else [column for column, _ in query.ceiling_of]
            for column in needed:
                if f"{query.of}.{column}" not in seen:
                    raise ConfigError(f"queries {self.name}: {query.name} needs {query.of}.{column}")
        if not any(query.reveals for query in self.queries):
            raise ConfigError(f"queries {self.name}: none of them says which services there are")

    @property
    def by_pod(self) -> bool:
        """Whether some series have to be joined to services through their pod's owner."""
        return any(query.service.pod for query in self.queries)

    def columns(self, of: Literal["node", "edge"]) -> tuple[str, ...]:
        """The columns that are filled; those of the default schema first, in its order."""
        known = NODE_FEATURES if of == "node" else EDGE_FEATURES
        asked = [query.column for query in self.queries if query.of == of and not query.ceiling_of]
        return (*(name for name in known if name in asked), *(name for name in asked if name not in known))

    def schema(self) -> Schema:
        """The default columns, whether they are asked for or not, and the others that are."""
        return Schema(
            (*NODE_FEATURES, *(name for name in self.columns("node") if name not in NODE_FEATURES)),
            (*EDGE_FEATURES, *(name for name in self.columns("edge") if name not in EDGE_FEATURES)),
        )

    def plus(self, others: Iterable[Query], *, reveal: bool = True) -> QuerySet:
        """These queries, and others for columns that are not asked for yet.

        Args:
            others: more queries.
            reveal: False: what only the others know is no part of the mesh.
        """
        asked = {query.name for query in self.queries}
        new = [query for query in others if query.name not in asked]
        if not reveal:
            new = [replace(query, reveals=False) for query in new]
        return QuerySet(self.name, (*self.queries, *new))
