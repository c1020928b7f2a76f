"""The role of a column, by its name, and the direction in which it is bad.

Roles are used only for root causes and for the direction; deviations are computed in the same way for every
column. A column with an unknown name is a resource.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from hopline_mesh.schema import kind_of

#: `load` requests that arrive; `calls` what a caller sends for each request that it gets; `traffic` what
#: goes with requests (bytes, calls, connections); `latency` and `errors` how well a service answers;
#: `outgoing` latency that it has with others; `memory` what stays where it is until something changes it;
#: `resource` all other things that a service uses.
Role = Literal["load", "calls", "traffic", "latency", "outgoing", "errors", "memory", "resource"]

_WORDS: tuple[tuple[Role, frozenset[str]], ...] = (
    ("memory", frozenset({"memory", "mem", "heap", "rss", "disk"})),
    ("resource", frozenset({"cpu", "gpu", "throttled", "processor"})),
    ("load", frozenset({"rate", "rps", "qps", "ops", "requests", "workload", "throughput"})),
    ("traffic", frozenset({"connections", "network", "net", "receive", "transmit", "rx", "tx", "bytes",
                           "reads", "writes", "read", "write", "syscall", "packets"})),
)  # fmt: skip
_LATENCY = frozenset({"latency", "duration", "p50", "p75", "p90", "p95", "p99", "ms", "seconds", "s"})
_ERRORS = frozenset({"error", "errors", "failed", "failure", "failures", "fault", "faults"})
_PROCESSOR = frozenset({"cpu", "processor"})
_NOT_USED = frozenset({"limit", "limits", "request", "requests", "quota", "throttled"})
_RATIO = frozenset({"calls", "per", "request"})
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

#: How much of a deviation counts, upwards and downwards. Lower latency, memory or use of a processor is
#: seldom trouble in itself; fewer errors never are, and fewer calls show as less load already.
POLARITY: dict[Role, tuple[float, float]] = {
    "load": (1.0, 1.0),
    "calls": (1.0, 0.0),
    "traffic": (0.7, 0.7),
    "latency": (1.0, 0.3),
    "outgoing": (1.0, 0.3),
    "errors": (1.0, 0.0),
    "memory": (1.0, 0.3),
    "resource": (1.0, 0.5),
}


def words_of(column: str) -> set[str]:
    """Return the words of a column's name, in lower case, such as {"latency", "p99", "ms"}."""
    return set(re.findall(r"[a-z]+\d*", _CAMEL.sub(" ", column).lower()))


def is_processor_time(column: str) -> bool:
    """True if a column is the use of a processor, not a limit or a request of it."""
    words = words_of(column)
    return bool(words & _PROCESSOR) and not words & _NOT_USED


def role_of(column: str) -> Role:
    """Return the role of a column."""
    words = words_of(column)
    if words & _ERRORS:
        return "errors"
    if kind_of(column) == "share":
        return "resource"
    if words & _LATENCY and not words & {"cpu", "memory"}:
        return "outgoing" if "client" in words else "latency"
    if words >= _RATIO:
        return "calls"
    for role, known in _WORDS:
        if words & known:
            return role
    return "resource"


def load_column(columns: Sequence[str]) -> int:
    """Return the position of the column with the load; -1 if there is none."""
    return next((f for f, column in enumerate(columns) if role_of(column) == "load"), -1)
