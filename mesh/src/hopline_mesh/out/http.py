"""HTTP of the watch: the page, a JSON API, metrics and probes.

Knows paths; connections are those of `hopline.transports`. All routes are read-only except events, which
change present deviations but no verdict, and marks on incidents.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
from collections.abc import Callable
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

from hopline.errors import BadRequest, HoplineError
from hopline.ingress.gatekeeper import Gatekeeper
from hopline.observe.exposition import CONTENT_TYPE
from hopline.transports.failure import as_hopline_error
from hopline.transports.http_access import Guard
from hopline.transports.http_errors import error_response, plain_error
from hopline.transports.http_messages import JSON, Pending, Request, Response
from hopline_mesh import __version__
from hopline_mesh.errors import IncidentNotFound
from hopline_mesh.out.access import access_of
from hopline_mesh.out.between import deviations, read_events, state_of, take_events
from hopline_mesh.out.board import Board, Subscription
from hopline_mesh.out.error_tables import HTTP_STATUS
from hopline_mesh.out.live_graph import MAX_AT_ONCE, live_graph
from hopline_mesh.out.record import read_mark
from hopline_mesh.out.wire import encode_json, shown

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
_READ = (b"GET", b"HEAD")
_EVENTS = ["v1", "mesh", "events"]
_INCIDENTS = ["v1", "mesh", "incidents"]
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


@functools.cache
def page_files() -> dict[str, tuple[bytes, bytes]]:
    """Return the files of the page, read once: name -> body and content type."""
    found = {}
    for file in (files("hopline_mesh.out") / "page").iterdir():
        suffix = file.name[file.name.rfind(".") :]
        if suffix in _TYPES:
            found[file.name] = (file.read_bytes(), _TYPES[suffix])
    return found


class MeshHttp:
    """The application: a `Handler` for connections.

    Args:
        board: the data that it serves.
        gate: authenticates clients; None allows anonymous access.
        open_metrics: /metrics needs no key.
    """

    def __init__(self, board: Board, gate: Gatekeeper | None = None, *, open_metrics: bool = False) -> None:
        self._board = board
        self._access_of = functools.partial(access_of, open_metrics=open_metrics)
        self._guard = None if gate is None else Guard(gate)
        self._num_waiting = 0

    def __call__(self, request: Request) -> Response | Pending:
        """Respond to a request; never raises."""
        path, _, query = request.target.partition(b"?")
        parts = [unquote_to_bytes(part).decode("utf-8", "replace") for part in path[1:].split(b"/")]
        try:
            if parts == _EVENTS:
                answer = self._events(request, parts)
                return answer if isinstance(answer, Pending) else self._counted(answer)
            if len(parts) == 5 and parts[:3] == _INCIDENTS and parts[4] == "mark":
                return self._counted(self._mark(request, parts))
            handle = self._find(parts)
            if handle is None:
                return self._counted(
                    plain_error(404, "no such path; the page is at /", _POLICY + _NO_STORE)
                )
            if request.method not in _READ:
                lines = b"allow: GET, HEAD\r\n" + _POLICY + _NO_STORE
                return self._counted(plain_error(405, "this path accepts only GET and HEAD", lines))
            if self._guard is not None:
                self._guard.admit(request, self._access_of(parts))
            answer = handle(_options(query))
        except Exception as error:
            return self._failed(error)
        return answer if isinstance(answer, Pending) else self._counted(answer)

    def refuse(self, status: int, text: str) -> Response:
        """Return the response to a request that was refused while it was read."""
        return self._counted(plain_error(status, text, _POLICY + _NO_STORE))

    def _find(self, parts: list[str]) -> Callable[[dict[str, str]], Response | Pending] | None:
        match parts:
            case [""]:
                return lambda options: self._file("index.html")
            case ["page", name] if name in page_files():
                return lambda options: self._file(name)
            case ["healthz"]:
                return self._live
            case ["readyz"]:
                return self._ready
            case ["metrics"]:
                return self._metrics
            case ["v1", "mesh", "verdict"]:
                return self._verdict
            case ["v1", "mesh", "graph"]:
                return self._graph
            case ["v1", "mesh", "deviations"]:
                return self._deviations
            case ["v1", "mesh", "incidents"]:
                return self._incidents
            case ["v1", "mesh", "changes"]:
                return lambda options: _json({"changes": self._board.changes()})
            case ["v1", "mesh", "incidents", id]:
                return lambda options: self._incident(id)
        return None

    def _file(self, name: str) -> Response:
        body, content_type = page_files()[name]
        return Response(body, 200, content_type, _POLICY + _CHECK_AGAIN)

    def _live(self, options: dict[str, str]) -> Response:
        if self._board.alive:
            return _json({"live": True})
        age_s = self._board.silent_s
        return _json({"live": False, "reasons": [f"no interval was completed for {age_s:.0f} s"]}, 503)

    def _ready(self, options: dict[str, str]) -> Response:
        ready = self._board.ready
        reasons = [] if ready else ["no snapshot was collected yet, and no state was restored"]
        return _json({"ready": ready, "reasons": reasons}, 200 if ready else 503)

    def _metrics(self, options: dict[str, str]) -> Response:
        return Response(self._board.metrics.render(), 200, CONTENT_TYPE, _POLICY + _NO_STORE)

    def _verdict(self, options: dict[str, str]) -> Response | Pending:
        """Return the newest verdict; with `after` (its time) and `wait` (seconds) wait for the next one."""
        board = self._board
        wait_s = min(_number(options, "wait", 0.0), _MAX_WAIT_S)
        known = (
            "after" in options
            and board.verdict is not None
            and board.verdict.time_s == _number(options, "after", 0.0)
        )
        if not known or not wait_s or self._num_waiting >= _MAX_WAITING:
            return self._verdict_response()
        # Subscribe now: a verdict that arrives before the task starts must not be missed.
        reader = board.subscribe()
        self._num_waiting += 1

        def leave() -> None:
            self._num_waiting -= 1
            reader.close()

        return _Awaited(self, self._next(reader, wait_s), leave)

    def _verdict_response(self) -> Response:
        board = self._board
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

    async def _next(self, reader: Subscription, wait_s: float) -> Response:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(reader.get(), wait_s)
        return self._verdict_response()

    def _graph(self, options: dict[str, str]) -> Response | Pending:
        limit, around = int(_number(options, "limit", 200)), options.get("around", "")

        def response() -> Response:
            return _json({"graph": live_graph(self._board, limit, around)})

        if 0 < limit <= MAX_AT_ONCE:
            return response()
        return _Awaited(self, asyncio.to_thread(response))  # a large mesh takes half a second

    def _incidents(self, options: dict[str, str]) -> Response:
        board = self._board
        return _json({"incidents": [shown(each, board.links, board.now_s) for each in board.incidents()]})

    def _incident(self, id: str) -> Response:
        record = self._board.incident(id)
        if record is None:
            raise IncidentNotFound(f"no incident {id[:100]!r} is stored: it may have ended hours ago")
        incident = shown(record, self._board.links, self._board.now_s)
        return _json({"incident": incident, "series": record.series})

    def _posted(self, request: Request, parts: list[str]) -> Response | None:
        """Check a request that changes something; returns a refusal of its method, or None."""
        if request.method != b"POST":
            lines = b"allow: POST\r\n" + _POLICY + _NO_STORE
            return plain_error(405, "this path accepts only POST", lines)
        if self._guard is not None:
            self._guard.admit(request, self._access_of(parts))
        if request.headers.get(b"content-type", b"").partition(b";")[0].strip() != b"application/json":
            # A page of another origin cannot send this type without a CORS preflight.
            raise BadRequest("the request needs the header content-type: application/json")
        return None

    def _mark(self, request: Request, parts: list[str]) -> Response:
        """Set or remove the mark of an incident."""
        refused = self._posted(request, parts)
        if refused is not None:
            return refused
        asked = read_mark(request.body)
        record = self._board.mark(parts[3], asked.mark, asked.by)
        return _json({"incident": shown(record, self._board.links, self._board.now_s)})

    def _events(self, request: Request, parts: list[str]) -> Response | Pending:
        """Apply events; the response names the services whose deviations were computed again."""
        refused = self._posted(request, parts)
        if refused is not None:
            return refused
        events = read_events(request.body)

        async def response() -> Response:
            return _json(await take_events(self._board.live, events))

        return _Awaited(self, response())

    def _deviations(self, options: dict[str, str]) -> Pending:
        """Return deviations of the services in `service`, comma-separated; without it of the first ones."""
        wanted = [name for name in options.get("service", "").split(",") if name]

        async def response() -> Response:
            return _json(deviations(await state_of(self._board.live), wanted))

        return _Awaited(self, response())

    def _counted(self, response: Response) -> Response:
        self._board.metrics.answers("http", str(response.status)).inc()
        return response

    def _failed(self, error: BaseException) -> Response:
        known: HoplineError = as_hopline_error(error, secrets.token_hex(8))
        return self._counted(error_response(known, _POLICY + _NO_STORE, statuses=HTTP_STATUS))


class _Awaited(Pending):
    """A response that a coroutine creates.

    Args:
        leave: always called at the end; a task that is cancelled before it starts never runs its `finally`.
    """

    __slots__ = ("_task",)

    def __init__(self, app: MeshHttp, making: Any, leave: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self._task: asyncio.Task[Response] = asyncio.ensure_future(making)

        def done(task: asyncio.Task[Response]) -> None:
            leave()
            if not task.cancelled():
                error = task.exception()
                self.answer(app._counted(task.result()) if error is None else app._failed(error))

        self._task.add_done_callback(done)

    def cancel(self) -> None:
        """Cancel the coroutine: the client is gone."""
        self._task.cancel()


def _json(value: Any, status: int = 200) -> Response:
    return Response(encode_json(value), status, JSON, _POLICY + _NO_STORE)


def _options(query: bytes) -> dict[str, str]:
    """Return the query's parameters; the last of repeated ones."""
    if len(query) > _MAX_QUERY:
        raise BadRequest(f"the query is longer than {_MAX_QUERY} bytes")
    return dict(
        parse_qsl(query.decode("latin-1"), keep_blank_values=True, encoding="utf-8", errors="replace")
    )


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
