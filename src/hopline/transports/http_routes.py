"""Routes: what an HTTP path does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

from hopline.errors import BadRequest
from hopline.transports import oip
from hopline.transports.http_access import OPEN, Access
from hopline.transports.http_bodies import Check
from hopline.transports.http_errors import plain_error
from hopline.transports.http_messages import Pending, Request, Response
from hopline.transports.score_json import ScoreBody

#: Fields of bodies. In a query string they would be ignored, which no client intends.
_BODY_FIELDS = frozenset({*ScoreBody.__struct_fields__, "timeout", "serve", "graph", "groups", "reason"})


@dataclass(frozen=True, slots=True)
class Route:
    """The handling of one target.

    Attributes:
        handle: called with the request and its id line.
        methods: others are answered with 405; empty if all methods have the same answer.
        oip: errors have the Open Inference Protocol's form.
        access: required permissions if clients are authenticated; set from the path.
        check: counts large bodies before they are decoded.
    """

    handle: Callable[[Request, bytes], Response | Pending]
    methods: tuple[bytes, ...]
    oip: bool
    access: Access = OPEN
    check: Check | None = None


def unsupported(parts: list[str]) -> Route | None:
    """Return a route for a Triton feature that is missing here: 404 and the reason (gRPC: UNIMPLEMENTED).

    A 5xx would count as a failure of this server, in its metrics and in a load balancer.
    """
    match parts:
        case ["v2", "systemsharedmemory" | "cudasharedmemory", *_]:
            text = oip.NO_SHARED_MEMORY
        case ["v2", "trace", "setting"] | ["v2", "models", _, "trace", "setting"]:
            text = oip.NO_TRACE_SETTINGS
        case ["v2", "logging"]:
            text = oip.NO_LOG_SETTINGS
        case _:
            return None

    def handle(request: Request, id_line: bytes) -> Response:
        return plain_error(404, text, id_line, oip=True)

    return Route(handle, (), oip=True)


def split_version(rest: list[str]) -> tuple[str | None, list[str]]:
    """Split `versions/<v>/…` into (v, …)."""
    if len(rest) >= 2 and rest[0] == "versions":
        return rest[1], rest[2:]
    return None, rest


def without_fields(route: Route, query: bytes) -> Route:
    """Return the route, or an error route if the query string has a field that belongs in the body."""
    names = (name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    found = next((name for name in names if name in _BODY_FIELDS), None)
    if found is None:
        return route

    def refuse(request: Request, id_line: bytes) -> Response:
        raise BadRequest(f"{found!r} is in the query string, where it is ignored; send it in the body")

    return replace(route, handle=refuse)
