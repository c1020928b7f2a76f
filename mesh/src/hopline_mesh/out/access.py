"""Which permission a path of HTTP and a method of gRPC ask for, of a watch."""

from __future__ import annotations

from hopline.transports.grpc_access import Asked
from hopline.transports.http_access import OPEN, Access

#: Those that are not here ask for `admin`.
_METHODS: dict[str, Asked] = {
    "Check": "open",
    "Watch": "open",
    "GetVerdict": "read",
    "WatchVerdicts": "read",
    "GetIncident": "read",
    "GetIncidents": "read",
    "GetGraph": "read",
    "GetEmbeddings": "read",
    "TellEvents": "score",
}


def permission_of(method: str) -> Asked:
    """What a method of the watch asks for, by its name."""
    return _METHODS.get(method, "admin")


def access_of(parts: list[str], *, open_metrics: bool = False) -> Access:
    """What a path of the watch asks for.

    Args:
        parts: the path without its slashes, decoded.
        open_metrics: as in the settings.
    """
    match parts:
        case ["" | "healthz" | "readyz"] | [
            "page",
            _,
        ]:  # the page itself tells nothing; what it asks for does
            return OPEN
        case ["metrics"] if open_metrics:
            return OPEN
        case ["v1", "mesh", "events"]:  # no verdict depends on them
            return Access(change="score")
    return Access()
