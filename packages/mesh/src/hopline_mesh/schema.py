"""The columns of the nodes and edges of a mesh, and the kind of number of each.

Knows names and kinds, but no sources of values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hopline.errors import ConfigError

#: The kind of a column. `amount` is at least 0 and compared by ratio (rates, latencies, bytes); `share` is
#: within 0 to 1 and compared by difference; `real` is any number.
Kind = Literal["amount", "share", "real"]

#: Columns of each service: requests served per second, the share of them that failed, latency of the server
#: in milliseconds (median and 99th percentile), CPU cores in use, bytes of memory in use, open connections.
NODE_FEATURES = (
    "request_rate",
    "error_share",
    "p50_ms",
    "p99_ms",
    "cpu_cores",
    "memory_bytes",
    "connections",
)

#: Columns of each call path, caller to callee: requests per second, the share of them that failed as the
#: caller sees it, latency in milliseconds as the caller and as the callee sees it.
EDGE_FEATURES = ("request_rate", "error_share", "client_ms", "server_ms")


def kind_of(column: str) -> Kind:
    """Return the kind of a column by its name: `..._share` is a share, `..._delta` real, others amounts."""
    if column.endswith("_share"):
        return "share"
    if column.endswith("_delta"):
        return "real"
    return "amount"


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of one mesh, in order.

    Any column may be absent (NaN) for any service at any time. A mesh may have other columns than the
    default ones; their kind follows from their name (`kind_of`).

    Raises:
        ConfigError: a duplicate column, or no column at all.
    """

    node_features: tuple[str, ...] = NODE_FEATURES
    edge_features: tuple[str, ...] = EDGE_FEATURES

    def __post_init__(self) -> None:
        for what, columns in (("node", self.node_features), ("edge", self.edge_features)):
            twice = sorted({column for column in columns if columns.count(column) > 1})
            if twice:
                raise ConfigError(f"the mesh's {what} features name {', '.join(twice)} more than once")
        if not self.node_features and not self.edge_features:
            raise ConfigError("the mesh has neither node nor edge features: at least one column is needed")
