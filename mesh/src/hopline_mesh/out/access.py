"""The permission that each HTTP path and gRPC method of a watch needs."""

from __future__ import annotations

from hopline.transports.grpc_access import Asked
from hopline.transports.http_access import OPEN, Access

#: Methods that are missing here need `admin`.
_METHODS: dict[str, Asked] = {
    "Check": "open",
    "Watch": "open",
    "GetVerdict": "read",
    "WatchVerdicts": "read",
    "GetIncident": "read",
    "GetIncidents": "read",
    "GetGraph": "read",
    "GetDeviations": "read",
    "ReportEvents": "score",
}


def permission_of(method: str) -> Asked:
    """Return the permission that a method of the watch needs, by its name."""
    return _METHODS.get(method, "admin")


def access_of(parts: list[str], *, open_metrics: bool = False) -> Access:
    """Return the permission that a path of the watch needs.

    Args:
        parts: the path without its slashes, decoded.
        open_metrics: as in the settings.
    """
    match parts:
        case ["" | "healthz" | "readyz"] | [
            "page",
            _,
        ]:  # the files of the page have no data; its requests need the permission
            return OPEN
        case ["metrics"] if open_metrics:
            return OPEN
        case ["v1", "mesh", "events"]:  # events change no verdict
            return Access(change="score")
    return Access()
