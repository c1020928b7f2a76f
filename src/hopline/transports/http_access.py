"""The check of HTTP requests: who sends them, and what their path requires.

A path that declares nothing requires `read` for the server if it only reads, and `admin` if it changes
something.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from hopline.errors import IssuerUnavailable, RequestTooLarge, Unauthenticated
from hopline.ingress.client import Client
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.permissions import SERVER, Permission
from hopline.transports.browser_rules import BrowserRules
from hopline.transports.http_messages import Request

_TELLING = (b"GET", b"HEAD")


class Access(NamedTuple):
    """The permissions that one path requires.

    Attributes:
        tell: permission for GET and HEAD; None for any client, for example for lists, which show only what
            the client may read.
        change: permission for every other method.
        model: the model that the path is about; `SERVER` for the whole server.
        open: whether no authentication is needed.
    """

    tell: Permission | None = "read"
    change: Permission | None = "admin"
    model: str = SERVER
    open: bool = False


#: For probes, which have no keys, and for paths that do not exist.
OPEN = Access(open=True)


class Guard:
    """Authenticates requests and checks their permissions.

    Args:
        gate: authenticates clients.
        rules: for requests that are authenticated by a certificate, which a browser sends for any page.
    """

    def __init__(self, gate: Gatekeeper, rules: BrowserRules | None = None) -> None:
        self._identify = gate.identify
        self._check_site = (rules or BrowserRules()).check_site

    def admit(self, request: Request, access: Access) -> None:
        """Set the client of a request, and count the request.

        Raises: Unauthenticated, PermissionDenied, RateLimited.
        """
        if not access.open:
            request.client = client = self.know(request, access)
            client.admit()

    def know(self, request: Request, access: Access) -> Client:
        """Return the authenticated client with its permission checked; the body may still be missing.

        Raises: Unauthenticated, PermissionDenied.
        """
        headers = request.headers
        token, key = headers.get(b"authorization"), headers.get(b"x-api-key")
        client = self._identify(token, key, request.peer)
        if token is None and key is None:
            self._check_site(request)
        permission = access.tell if request.method in _TELLING else access.change
        if permission is not None:
            client.check(permission, access.model)
        return client

    def screen(self, request: Request, access: Access) -> None:
        """Check a request with a large body, which has not arrived.

        Raises: Unauthenticated, PermissionDenied, RequestTooLarge.
        """
        if not access.open:
            self.know(request, access)
        elif self.recognised(request) is None:
            raise RequestTooLarge("without credentials, this path takes no body above 64 KiB or in chunks")

    def recognised(self, request: Request) -> Client | None:
        """Return the client of a request to an open path, if it has valid credentials; else None."""
        headers = request.headers
        try:
            return self._identify(headers.get(b"authorization"), headers.get(b"x-api-key"), request.peer)
        except (Unauthenticated, IssuerUnavailable):
            return None


class _Named(msgspec.Struct):
    model: str = SERVER


def named_model(body: bytes) -> str:
    """Return the model that a JSON body names, read as by its own decoder; `SERVER` without one."""
    try:
        return msgspec.json.decode(body, type=_Named).model
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return SERVER


def client_of(request: Request) -> Client:
    """Return the client of a request that a guard admitted."""

    client = request.client
    assert isinstance(client, Client)
    return client
