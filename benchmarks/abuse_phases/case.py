"""One attack: how it is prepared, what it may do to others, which answers are right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from benchmarks.abuse_phases.http_wire import CLOSED, SILENT
from benchmarks.abuse_phases.target import PLAIN, Setup, Target

#: Sends, and returns how often each status came; a status may also be words of a check.
Attack: TypeAlias = Callable[[], Mapping[str, int]]
#: Answers of gRPC that are not faults of the server.
_GRPC_REFUSALS = frozenset(
    {
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "RESOURCE_EXHAUSTED",
        "UNAUTHENTICATED",
        "PERMISSION_DENIED",
        "FAILED_PRECONDITION",
        "UNIMPLEMENTED",
        "UNAVAILABLE",
        "RST_STREAM",
        "GOAWAY 11",
    }
)


@dataclass(frozen=True)
class Case:
    """One row.

    Attributes:
        name: a word for the JSON line.
        prepare: makes the bytes, which is not measured; returns what sends them.
        allowed: statuses that are right, in addition to refusals (4xx, 503 and gRPC's).
        required: statuses that must be among them.
        setup: of the server.
        bar_ms: the longest that others may be blocked.
    """

    name: str
    prepare: Callable[[Target], Attack]
    allowed: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    setup: Setup = PLAIN
    bar_ms: float = 25.0

    def wrong_statuses(self, found: Mapping[str, int]) -> list[str]:
        """Those that should not have come, and those that should have."""
        wrong = [status for status in found if not self._is_right(status)]
        return wrong + [f"no {status}" for status in sorted(self.required - set(found))]

    def _is_right(self, status: str) -> bool:
        if status in self.allowed | self.required | _GRPC_REFUSALS or status == "503":
            return True
        return status not in (SILENT, CLOSED) and len(status) == 3 and status.startswith("4")
