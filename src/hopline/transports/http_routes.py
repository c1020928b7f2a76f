"""Routes: what an HTTP path does."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple
from urllib.parse import parse_qsl

from hopline.errors import BadRequest
from hopline.ingress.permissions import SERVER
from hopline.transports import oip
from hopline.transports.http_access import OPEN, Access
from hopline.transports.http_bodies import Check
from hopline.transports.http_errors import plain_error
from hopline.transports.http_operations import Operation
from hopline.transports.path_table import Match
from hopline.transports.score_json import ScoreBody
from turnserve.http1.messages import Pending, Request, Response

#: Fields of bodies. In a query string they would be ignored, which no client intends.
_BODY_FIELDS = frozenset(
    {*ScoreBody.__struct_encode_fields__, "timeout", "serve", "force", "graph", "groups", "reason"}
)
_METHODS = {"GET": (b"GET", b"HEAD"), "POST": (b"POST",), "DELETE": (b"DELETE",)}


class Handler(NamedTuple):
    """The handling of an operation.

    Attributes:
        handle: called with the path's parameters, such as the model, the request and its id line.
        check: counts large bodies before they are decoded.
    """

    handle: Callable[..., Response | Pending]
    check: Check | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """The handling of one target.

    Attributes:
        handle: called with the request and its id line.
        methods: others are answered with 405; empty if all methods have the same answer.
        oip: errors have the Open Inference Protocol's form.
        access: required permissions if clients are authenticated.
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

    return Route(handle, (), oip=True, access=Access())


def missing_route(text: str, *, is_oip: bool) -> Route:
    """Return the route of an unknown path; it is not cached, since their number is unlimited."""

    def missing(request: Request, id_line: bytes) -> Response:
        return plain_error(404, text, id_line, oip=is_oip)

    return Route(missing, (), is_oip)


def route_of(
    found: Match[Operation], handlers: Mapping[str, Handler], *, open_metrics: bool = False
) -> Route:
    """Return the route of a path.

    Args:
        found: the operations of the path, one for each method, and its parameters.
        handlers: by id of operation.
        open_metrics: the setting of that name.
    """
    operations, values = found
    methods: list[bytes] = []
    by_method: dict[bytes, Callable[..., Response | Pending]] = {}
    check = None
    for each in operations:
        handler = handlers[each.id]
        check = check or handler.check
        bound = functools.partial(handler.handle, *_arguments(each, values))
        for method in _METHODS[each.method]:
            methods.append(method)
            by_method[method] = bound
    handle: Callable[..., Response | Pending] = bound
    if len(operations) > 1:

        def by_its_method(request: Request, id_line: bytes) -> Response | Pending:
            return by_method[request.method](request, id_line)

        handle = by_its_method

    access = access_of(operations, values.get("model", SERVER), open_metrics=open_metrics)
    return Route(handle, tuple(methods), operations[0].is_oip, access, check)


def access_of(operations: Iterable[Operation], model: str, *, open_metrics: bool = False) -> Access:
    """Return what the operations of one path require, for a model or for the server."""
    access = Access(model=model)
    for each in operations:
        if each.required == "open" or (open_metrics and each.id == "metrics"):
            return OPEN
        permission = None if each.required == "any" or each.names_model else each.required
        if each.method == "GET":
            access = access._replace(view=permission)
        else:
            access = access._replace(change=permission)
    return access


def _arguments(operation: Operation, values: Mapping[str, str]) -> list[str | None]:
    """Return the arguments of a handler: the path's parameters, and the version if it may have one."""
    arguments = [value for name, value in values.items() if name != "version"]
    return [*arguments, values.get("version")] if operation.versioned else [*arguments]


def without_fields(route: Route, query: bytes) -> Route:
    """Return the route, or an error route if the query string has a field that belongs in the body."""
    names = (name for name, _ in parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    found = next((name for name in names if name in _BODY_FIELDS), None)
    if found is None:
        return route

    def refuse(request: Request, id_line: bytes) -> Response:
        raise BadRequest(f"{found!r} is in the query string, where it is ignored; send it in the body")

    return replace(route, handle=refuse)
