"""What a target of HTTP means."""

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

#: Fields of bodies. In an address they would be ignored silently, so they are refused there.
_SAID_IN_BODIES = frozenset({*ScoreBody.__struct_fields__, "timeout", "serve", "graph", "groups", "reason"})


@dataclass(frozen=True, slots=True)
class Route:
    """What one target means.

    Attributes:
        handle: called with the request and its id line.
        methods: others are answered 405; none where every method is answered alike.
        oip: errors take the Open Inference Protocol's form.
        access: what it asks for, where clients have to say who they are; filled in from its path.
        check: counts large bodies before they are decoded.
    """

    handle: Callable[[Request, bytes], Response | Pending]
    methods: tuple[bytes, ...]
    oip: bool
    access: Access = OPEN
    check: Check | None = None


def unsupported(parts: list[str]) -> Route | None:
    """What Triton has and this server has not: 404 with the reason, where gRPC says UNIMPLEMENTED.

    A 5xx would count as a failure of this server, in its metrics and those of a balancer.
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
    """`versions/<v>/…` -> (v, …)."""
    if len(rest) >= 2 and rest[0] == "versions":
        return rest[1], rest[2:]
    return None, rest


def without_fields(route: Route, query: bytes) -> Route:
    """The route, or where the query names a field of the body one that says where fields belong."""
    names = (name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    found = next((name for name in names if name in _SAID_IN_BODIES), None)
    if found is None:
        return route

    def refuse(request: Request, id_line: bytes) -> Response:
        raise BadRequest(f"{found!r} is in the address, where it is not read; send it in the body")

    return replace(route, handle=refuse)
