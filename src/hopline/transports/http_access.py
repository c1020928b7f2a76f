"""The check of HTTP requests: who sends them, and what their path requires.

A path that declares nothing requires `read` for the server if it only reads, and `admin` if it changes
something.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from hopline.errors import (
    BadRequest,
    IssuerUnavailable,
    PermissionDenied,
    RequestTooLarge,
    Unauthenticated,
    quoted,
)
from hopline.ingress.client import Client
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.ingress.permissions import SERVER, Permission
from turnserve.http1.messages import Request

#: Limit of cached Host headers; a full cache is cleared.
_MAX_KNOWN = 1024
#: Limit of cached headers that were admitted.
_MAX_ADMITTED = 64
_OWN_SITES = (b"same-origin", b"none")
_USUAL_PORTS = {"http": "80", "https": "443"}
#: What a page can send as a body without the server's consent (CORS), and no client of an API should.
_PAGE_TYPES = (b"text/plain", b"multipart/form-data")


class BrowserRules:
    """The rules for one server.

    A page can make the browser that shows it send requests to any address that the browser reaches. A
    server that needs no credentials, or takes the certificate that the browser has, would obey them.
    Browsers tell such requests apart by headers that no page can set:

        Sec-Fetch-Site    cross-site, same-site, same-origin, or none (typed, a bookmark); over http only to
                          loopback addresses
        Origin            of the page, with each POST and each request of another origin that may be read
        Host              the name in the URL. A page whose own name leads to this server for a moment (DNS
                          rebinding) is of the same origin; but its name is not one of the server's

    Other clients send neither of the first two, so that `curl -d` works, whose content type a page could
    send too.

    Args:
        hosts: names that callers may use, without ports. One that begins with a dot is all names below it,
            `*` is any name. Addresses, `localhost` and names without a dot, which only a private network
            resolves, need no entry. Pages of these hosts may use the server.
        own: the name that the server listens on.
    """

    def __init__(self, hosts: Iterable[str] = (), own: str = "") -> None:
        self._own = own.lower()
        names = [_without_dot(name.lower()) for name in hosts]
        self._any = "*" in names
        self._names = frozenset(names)
        self._suffixes = tuple(name for name in names if name.startswith("."))
        self._known: set[bytes] = set()
        #: Headers of requests that were admitted, by identity; requests with the same head share them.
        self._admitted: dict[int, dict[bytes, bytes]] = {}

    def admit(self, request: Request, access: Access) -> None:
        """Check a request to a server without authentication, whatever its path.

        Raises:
            PermissionDenied: a page of another site sends it, or the host is not one of the server's.
            BadRequest: the body has a type that pages send.
        """
        headers = request.headers
        if self._admitted.get(id(headers)) is headers:
            return
        host = headers.get(b"host")
        if host is not None and host not in self._known:
            self._check_host(host)
        if b"origin" in headers or b"sec-fetch-site" in headers:
            self.check_site(request)
        kind = headers.get(b"content-type")
        if kind is not None and request.method == b"POST" and kind.lower().startswith(_PAGE_TYPES):
            shown = kind.partition(b";")[0].decode("latin-1")
            raise BadRequest(f"content-type is {quoted(shown)}; send JSON as application/json")
        if len(self._admitted) >= _MAX_ADMITTED:
            self._admitted.clear()
        self._admitted[id(headers)] = headers

    #: The check of a request with a large body, which has not arrived.
    screen = admit

    def check_site(self, request: Request) -> None:
        """Check that no page of another site sends a request; a link may lead here.

        Raises: PermissionDenied: one does.
        """
        headers = request.headers
        site = headers.get(b"sec-fetch-site")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if site in _OWN_SITES or (site is None and not origin):
            return
        if (
            headers.get(b"sec-fetch-mode") == b"navigate"
            and headers.get(b"sec-fetch-dest") == b"document"
            and request.method in (b"GET", b"HEAD")
        ):
            return
        scheme, _, place = origin.partition("://")
        own = headers.get(b"host", b"").decode("latin-1")
        if site is None and own and _with_port(place, scheme) == _with_port(own, scheme):
            return
        if place and self._is_listed(_name_of(place)):
            return
        page = f"at {quoted(origin)}" if origin else "of another site"
        raise PermissionDenied(
            f"a page {page} may not use this server through a browser; if the page is yours, add its "
            "host to server.hosts"
        )

    def _check_host(self, host: bytes) -> None:
        name = _name_of(host.decode("latin-1"))
        is_local = "." not in name or name.endswith(".localhost") or name == self._own or _is_address(name)
        if not is_local and not self._is_listed(name):
            raise PermissionDenied(
                f"the request is for host {quoted(name)}, which is not a name of this server: a page may "
                "have let its own name lead here; add the host to server.hosts, or use an address"
            )
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known.add(host)

    def _is_listed(self, name: str) -> bool:
        return self._any or name in self._names or name.endswith(self._suffixes)


def _name_of(authority: str) -> str:
    """Return the host of "host:port", lower case and without the final dot."""
    name, colon, port = authority.lower().rpartition(":")
    if not colon or (port and not port.isdigit()):
        name = authority.lower()
    return _without_dot(name.removeprefix("[").removesuffix("]"))


def _without_dot(name: str) -> str:
    return name if name == "." else name.removesuffix(".")


def _with_port(authority: str, scheme: str) -> str:
    return authority.lower().removesuffix(f":{_USUAL_PORTS.get(scheme, '')}")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class Access(NamedTuple):
    """The permissions that one path requires.

    Attributes:
        view: permission for GET and HEAD; None for any client, for example for lists, which show only what
            the client may read.
        change: permission for every other method.
        model: the model that the path is about; `SERVER` for the whole server.
        open: True if no authentication is needed.
    """

    view: Permission | None = "read"
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
        """Set the client of a request, and count it if it is to be scored.

        Raises: Unauthenticated, PermissionDenied, RateLimited.
        """
        if not access.open:
            request.client = client = self.know(request, access)
            if access.change == "score" and request.method == b"POST":
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
        permission = access.view if request.method in (b"GET", b"HEAD") else access.change
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
