"""Which permission a path of HTTP asks for, and who may pass.

One table over paths: a route that is not in it asks for `read` of the server where it only tells something,
and for `admin` where it changes something, so that a new one is closed until it is thought about.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from hopline.errors import Unauthenticated
from hopline.ingress.client import Client
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.permissions import SERVER, Permission
from hopline.transports.http_messages import Request

_TELLING = (b"GET", b"HEAD")


class Access(NamedTuple):
    """What one path asks for.

    Attributes:
        tell: permission for GET and HEAD; None for any client at all, as for lists, which show what the
            client may read.
        change: permission for every other method.
        model: what it is about; `SERVER` for the whole.
        open: no authentication is needed.
    """

    tell: Permission | None = "read"
    change: Permission | None = "admin"
    model: str = SERVER
    open: bool = False


#: For probes, which have no keys; and for paths where there is nothing.
OPEN = Access(open=True)


def access_of(parts: list[str], *, open_metrics: bool = False) -> Access:
    """What a path of the server asks for.

    Args:
        parts: the path without its slashes, decoded.
        open_metrics: as in the settings.
    """
    match parts:
        case ["healthz"] | ["readyz"] | ["v2", "health", _]:
            return OPEN
        case ["v2", "models", _, "ready"] | ["v2", "models", _, "versions", _, "ready"]:
            return OPEN
        case ["metrics"] if open_metrics:
            return OPEN
        case ["v2"] | ["v1", "models"] | ["v2", "models", "stats"]:
            return Access(tell=None)
        case ["v2", "repository", "index"]:  # asked for with POST
            return Access(tell=None, change=None)
        case ["v1", "rollouts"]:  # the model of a new one is in the body: see `named_model`
            return Access(tell=None, change=None)
        case ["v1" | "v2", "models", model, *_, "score" | "infer"]:
            return Access("score", "score", model)
        case ["v1" | "v2", "models", model, *_] | ["v2", "repository", "models", model, *_]:
            return Access(model=model)
        case ["v1", "rollouts" | "drift", model, *_]:
            return Access(model=model)
    return Access()


class Guard:
    """Lets requests in.

    Args:
        gate: identifies callers.
        access_of: what a path asks for, by its parts.

    Attributes:
        access_of: as given.
    """

    def __init__(self, gate: Gatekeeper, access_of: Callable[[list[str]], Access]) -> None:
        self._identify = gate.identify
        self.access_of = access_of

    def admit(self, request: Request, access: Access) -> None:
        """Store the caller in the request, and count it.

        Raises: Unauthenticated, PermissionDenied, RateLimited.
        """
        if not access.open:
            request.client = client = self.know(request, access)
            client.admit()

    def know(self, request: Request, access: Access) -> Client:
        """The caller, if allowed; the body need not have come.

        Raises: Unauthenticated, PermissionDenied.
        """
        headers = request.headers
        client = self._identify(headers.get(b"authorization"), headers.get(b"x-api-key"))
        permission = access.tell if request.method in _TELLING else access.change
        if permission is not None:
            client.check(permission, access.model)
        return client

    def recognised(self, request: Request) -> Client | None:
        """The caller of an open route, where it sends credentials; None for an anonymous one."""
        headers = request.headers
        try:
            return self._identify(headers.get(b"authorization"), headers.get(b"x-api-key"))
        except Unauthenticated:
            return None


def guard_of(gate: Gatekeeper, *, open_metrics: bool) -> Guard:
    """The guard of the server's own paths."""
    return Guard(gate, functools.partial(access_of, open_metrics=open_metrics))


class _Named(msgspec.Struct):
    model: str = SERVER


def named_model(body: bytes) -> str:
    """The model that a JSON body names, read as its own decoder will; `SERVER` where it names none."""
    try:
        return msgspec.json.decode(body, type=_Named).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return SERVER


def client_of(request: Request) -> Client:
    """The caller of a request that the guard admitted."""
    client = request.client
    assert isinstance(client, Client)
    return client
