"""HTTP of the watch: the page, a JSON API, metrics and probes.

Knows paths; connections are those of `hopline.transports`. All routes are read-only except events, which
change present deviations but no verdict, and marks on incidents.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import functools
import ipaddress
import math
import secrets
from collections.abc import Callable, Coroutine, Sequence
from importlib.resources import files
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes, urlsplit

from hopline.errors import BadRequest, HoplineError, PermissionDenied, quoted
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.observe.exposition import CONTENT_TYPE
from hopline.transports.failure import as_hopline_error
from hopline.transports.http_access import OPEN, Access, Guard
from hopline.transports.http_errors import error_response, plain_error
from hopline.transports.path_table import PathTable
from hopline_mesh import __version__
from hopline_mesh.out.between import deviations, read_events, take_events
from hopline_mesh.out.board import Board
from hopline_mesh.out.error_tables import HTTP_STATUS, own_text
from hopline_mesh.out.links import origin_of
from hopline_mesh.out.live_graph import MAX_AT_ONCE, live_graph
from hopline_mesh.out.record import Record, read_mark
from hopline_mesh.out.wire import encode_json, shown
from turnserve.http1.messages import JSON, Pending, Request, Response

#: The page loads nothing from other hosts, runs only its own script files, and cannot be framed.
_POLICY = (
    b"content-security-policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n"
    b"x-content-type-options: nosniff\r\n"
    b"referrer-policy: no-referrer\r\n"
    b"cross-origin-resource-policy: same-origin\r\n"
)
_NO_STORE = b"cache-control: no-store\r\n"
_CHECK_AGAIN = b"cache-control: no-cache\r\n"
_NO_PATH = "no such path; the page is at /"
#: Files of the page; no other file is served.
_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
#: Maximum number of requests that wait for the next verdict, and the longest wait in seconds.
_MAX_WAITING = 64
_MAX_WAIT_S = 60.0
#: Maximum length of a query string in bytes.
_MAX_QUERY = 4096
#: Last labels of names that no public DNS has (RFC 6761, RFC 6762, ICANN, Kubernetes).
_PRIVATE_DOMAINS = frozenset({"localhost", "local", "internal", "svc"})
#: Maximum number of characters of an unknown parameter that are compared and named.
_MAX_SHOWN = 60


@functools.cache
def page_files() -> dict[str, tuple[bytes, bytes]]:
    """Return the files of the page, read once: name -> body and content type."""
    page = (files("hopline_mesh.out") / "page").iterdir()
    return {
        file.name: (file.read_bytes(), content_type)
        for file in page
        for suffix, content_type in _TYPES.items()
        if file.name.endswith(suffix)
    }


class Route(NamedTuple):
    """The handling of one path.

    Attributes:
        handle: called with the request, and the parameters of its query and its path by name.
        methods: others are answered with 405.
        access: required permissions if clients are authenticated.
        options: known parameters of the query; others are refused. None ignores the query.
    """

    handle: Callable[[Request, dict[str, str]], Response | Coroutine[Any, Any, Response]]
    methods: tuple[bytes, ...] = (b"GET", b"HEAD")
    access: Access = Access()
    options: tuple[str, ...] | None = ()


class MeshHttp:
    """The application: a `Handler` for connections.

    Args:
        board: the data that it serves.
        gate: authenticates clients; None allows anonymous access.
        open_metrics: /metrics needs no key.
        urls: of the page, in addition to addresses without a name.

    Attributes:
        routes: by path pattern.
    """

    def __init__(
        self,
        board: Board,
        gate: Gatekeeper | None = None,
        *,
        open_metrics: bool = False,
        urls: Sequence[str] = (),
    ) -> None:
        self.routes = {
            # The files of the page have no data; its requests need the permission. Bookmarks and proxies
            # may add parameters to the address of the page.
            "/": Route(lambda request, options: self._file("index.html"), access=OPEN, options=None),
            "/page/{name}": Route(
                lambda request, options: self._file(options["name"]), access=OPEN, options=None
            ),
            "/healthz": Route(self._live, access=OPEN),
            "/readyz": Route(self._ready, access=OPEN),
            "/metrics": Route(self._metrics, access=OPEN if open_metrics else Access()),
            "/v1/mesh/verdict": Route(self._verdict, options=("after", "wait")),
            "/v1/mesh/graph": Route(self._graph, options=("limit", "around")),
            "/v1/mesh/deviations": Route(self._deviations, options=("service",)),
            "/v1/mesh/changes": Route(self._changes),
            "/v1/mesh/incidents": Route(self._incidents),
            "/v1/mesh/incidents/{id}": Route(self._incident),
            "/v1/mesh/incidents/{id}/mark": Route(self._mark, (b"POST",)),
            # Events change no verdict.
            "/v1/mesh/events": Route(self._events, (b"POST",), Access(change="score")),
        }
        self._paths = PathTable(self.routes.items())
        self._board = board
        self._guard = None if gate is None else Guard(gate)
        self._origins = {origin_of(url) for url in urls if url}
        self._names = {urlsplit(url).hostname for url in urls if url}
        self._num_waiting = 0

    def __call__(self, request: Request) -> Response | Pending:
        """Respond to a request; never raises."""
        try:
            answer = self._answer(request)
        except Exception as error:
            return self._failed(error)
        return self._counted(answer) if isinstance(answer, Response) else _Awaited(self, answer)

    def refuse(self, status: int, text: str) -> Response:
        """Return the response to a request that was refused while it was read."""
        return self._counted(_refusal(status, own_text(text)))

    def _answer(self, request: Request) -> Response | Coroutine[Any, Any, Response]:
        path, _, query = request.target.partition(b"?")
        match = self._paths.find(
            [unquote_to_bytes(part).decode("utf-8", "replace") for part in path[1:].split(b"/")]
        )
        if match is None:
            return _refusal(404, _NO_PATH)
        route = match.entries[0]
        if request.method not in route.methods:
            allowed = [method.decode() for method in route.methods]
            lines = f"allow: {', '.join(allowed)}\r\n".encode()
            return _refusal(405, f"this path accepts only {' and '.join(allowed)}", lines)
        if self._guard is not None:
            self._guard.admit(request, route.access)
        elif route.access is not OPEN:
            self._check_host(request)
            if b"POST" in route.methods:
                self._check_origin(request)
        options = {} if route.options is None else _options(query, route.options)
        return route.handle(request, {**options, **match.values})

    def _check_host(self, request: Request) -> None:
        """Refuse a request for a public name that is not one of the watch's.

        A page may let its own name lead here for a moment (DNS rebinding), and read what the browser that
        shows it can reach. No page has a name that only a private network resolves.
        """
        host = request.headers.get(b"host", b"").decode("latin-1")
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:
            name = host
        is_private = "." not in name or name.rpartition(".")[2] in _PRIVATE_DOMAINS
        if not is_private and name not in self._names and not _has_no_name(host):
            raise PermissionDenied(
                f"the request is for host {name[:100]!r}, which is not a name of this watch: if it is, set "
                "page_url to the URL of its page, or use its address"
            )

    def _check_origin(self, request: Request) -> None:
        """Refuse a change that a page of another origin sends through someone's browser.

        Its own page has the origin of the request's host. If that is a name that the watch does not know,
        the name may be another page's, which now leads here (DNS rebinding). Clients without a browser send
        no origin.
        """
        if b"origin" not in request.headers:
            return
        origin, host = request.headers[b"origin"].decode("latin-1"), request.headers.get(b"host", b"")
        if origin in self._origins:
            return
        scheme, _, place = origin.partition("://")
        if scheme in ("http", "https") and place == host.decode("latin-1") and _has_no_name(place):
            return
        raise PermissionDenied(
            f"a page at {origin[:100]!r} may change nothing: if it is the page of this watch, set page_url "
            "to its URL"
        )

    def _file(self, name: str) -> Response:
        if name not in page_files():
            return _refusal(404, _NO_PATH)
        body, content_type = page_files()[name]
        return Response(body, 200, content_type, _POLICY + _CHECK_AGAIN)

    def _live(self, request: Request, options: dict[str, str]) -> Response:
        if self._board.alive:
            return _json({"live": True})
        age_s = self._board.silent_s
        return _json({"live": False, "reasons": [f"no interval was completed for {age_s:.0f} s"]}, 503)

    def _ready(self, request: Request, options: dict[str, str]) -> Response:
        ready = self._board.ready
        reasons = [] if ready else ["no snapshot was collected yet, and no state was restored"]
        return _json({"ready": ready, "reasons": reasons}, 200 if ready else 503)

    def _metrics(self, request: Request, options: dict[str, str]) -> Response:
        return Response(self._board.metrics.render(), 200, CONTENT_TYPE, _POLICY + _NO_STORE)

    async def _verdict(self, request: Request, options: dict[str, str]) -> Response:
        """Return the newest verdict; with `after` (its time) and `wait` (seconds) wait for the next one."""
        board = self._board
        wait_s = min(_number(options, "wait", 0.0), _MAX_WAIT_S)
        after_s = _number(options, "after", math.nan)
        known = board.verdict is not None and board.verdict.time_s == after_s
        if known and wait_s and self._num_waiting < _MAX_WAITING:
            self._num_waiting += 1
            try:
                with contextlib.closing(board.subscribe()) as reader, contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.get(), wait_s)
            finally:
                self._num_waiting -= 1
        return _json(
            {
                "verdict": board.verdict,
                "published_s": board.published_s,
                "now_s": board.now_s,
                "interval_s": board.interval_s,
                "ready": board.ready,
                "version": __version__,
            }
        )

    async def _graph(self, request: Request, options: dict[str, str]) -> Response:
        limit, around = int(_number(options, "limit", 200)), options.get("around", "")

        def response() -> Response:
            return _json({"graph": live_graph(self._board, limit, around)})

        # A large mesh takes half a second.
        return response() if 0 < limit <= MAX_AT_ONCE else await asyncio.to_thread(response)

    def _changes(self, request: Request, options: dict[str, str]) -> Response:
        return _json({"changes": self._board.changes()})

    def _incidents(self, request: Request, options: dict[str, str]) -> Response:
        return _json({"incidents": [self._shown(each) for each in self._board.incidents()]})

    def _incident(self, request: Request, options: dict[str, str]) -> Response:
        record = self._board.incident(options["id"])
        return _json({"incident": self._shown(record), "series": record.series})

    def _mark(self, request: Request, options: dict[str, str]) -> Response:
        """Set or remove the mark of an incident."""
        asked = read_mark(_json_body(request))
        return _json({"incident": self._shown(self._board.mark(options["id"], asked.mark, asked.by))})

    async def _events(self, request: Request, options: dict[str, str]) -> Response:
        """Apply events; the response names the services whose deviations were computed again."""
        return _json(await take_events(self._board.live, read_events(_json_body(request))))

    async def _deviations(self, request: Request, options: dict[str, str]) -> Response:
        """Return deviations of the services in `service`, comma-separated; without it of the first ones."""
        wanted = [name for name in options.get("service", "").split(",") if name]
        return _json(await deviations(self._board.live, wanted))

    def _shown(self, record: Record) -> dict[str, Any]:
        return shown(record, self._board.links, self._board.now_s)

    def _counted(self, response: Response) -> Response:
        self._board.metrics.answers("http", str(response.status)).inc()
        return response

    def _failed(self, error: BaseException) -> Response:
        known: HoplineError = as_hopline_error(error, secrets.token_hex(8))
        return self._counted(error_response(known, _POLICY + _NO_STORE, statuses=HTTP_STATUS))


class _Awaited(Pending):
    """A response that a coroutine creates."""

    __slots__ = ("_task",)

    def __init__(self, app: MeshHttp, making: Coroutine[Any, Any, Response]) -> None:
        super().__init__()
        self._task = asyncio.ensure_future(making)

        def done(task: asyncio.Task[Response]) -> None:
            if not task.cancelled():
                error = task.exception()
                self.answer(app._counted(task.result()) if error is None else app._failed(error))

        self._task.add_done_callback(done)

    def cancel(self) -> None:
        """Cancel the coroutine: the client is gone."""
        self._task.cancel()


def _refusal(status: int, text: str, lines: bytes = b"") -> Response:
    return plain_error(status, text, lines + _POLICY + _NO_STORE)


def _has_no_name(place: str) -> bool:
    """True if a host and port is this machine, or an address: no one else can let it lead here."""
    try:
        host = urlsplit(f"//{place}").hostname or ""
        return host == "localhost" or bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _json_body(request: Request) -> bytes:
    """Return the body of a request that changes something."""
    if request.headers.get(b"content-type", b"").partition(b";")[0].strip() != b"application/json":
        # A page of another origin cannot send this type without a CORS preflight.
        raise BadRequest("the request needs the header content-type: application/json")
    return request.body


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode_json(value), status, JSON, _POLICY + _NO_STORE)


def _options(query: bytes, known: Sequence[str]) -> dict[str, str]:
    """Return the query's parameters.

    Raises:
        BadRequest: an unknown or repeated parameter, or a query that is too long.
    """
    if len(query) > _MAX_QUERY:
        raise BadRequest(f"the query is longer than {_MAX_QUERY} bytes")
    pairs = parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="utf-8", errors="replace")
    names = [name for name, _ in pairs]
    for name in dict.fromkeys(names):
        if name not in known:
            similar = difflib.get_close_matches(name[:_MAX_SHOWN], known, 1)
            hint = f"; did you mean {similar[0]!r}? known" if similar else "; known"
            there = f"{hint}: {', '.join(known)}" if known else "; this path has none"
            raise BadRequest(f"unknown query parameter {quoted(name)}{there}", name[:_MAX_SHOWN])
        if names.count(name) > 1:
            raise BadRequest(f"{name}: given {names.count(name)} times; give it once", name)
    return dict(pairs)


def _number(options: dict[str, str], name: str, default: float) -> float:
    text = options.get(name)
    if text is None:
        return default
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e12:
        raise BadRequest(f"{name}: {text[:50]!r} is not a number from 0")
    return number
