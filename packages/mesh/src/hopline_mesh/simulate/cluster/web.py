"""The Kubernetes API over HTTP: GET of lists and objects, and watches.

Follows https://kubernetes.io/docs/reference/using-api/api-concepts/: versions of resources, bookmarks,
lists in pages, watches that begin with a list, and 410 for deleted history.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from hopline.errors import BadRequest
from hopline_mesh.simulate.cluster.log import Body, Expired, Happening, Log
from hopline_mesh.simulate.cluster.objects import RESOURCES
from hopline_mesh.simulate.http_server import Handler, number

Matches = Callable[[Body], bool]

_SERVER_TIMEOUT_S = 1800.0
_PATH = re.compile(
    r"/(api|apis/(?P<group>[^/]+))/(?P<version>[^/]+)(/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<plural>[^/]+)(/(?P<name>[^/]+))?"
)
_YES = ("1", "true")


class _Place(NamedTuple):
    """The resource of a URL."""

    group: str
    plural: str
    namespace: str | None
    name: str | None

    @property
    def kind(self) -> str:
        return RESOURCES[self.plural][1]


def handler(log: Log, bookmark_s: float = 5.0) -> Callable[..., Handler]:
    """Return what creates the handlers that serve a log.

    Args:
        bookmark_s: seconds between the bookmarks of a watch that requests them.
    """
    return functools.partial(_Api, log, bookmark_s)


class _Api(Handler):
    def __init__(self, log: Log, bookmark_s: float, *connection: Any) -> None:
        self.log, self.bookmark_s = log, bookmark_s
        super().__init__(*connection)

    def do_GET(self) -> None:
        """Respond to one request."""
        path, query = self.target
        try:
            self.body(dict)
            place = _place(path)
            matches = selected(query.get("fieldSelector", ""), query.get("labelSelector", ""))
            if place is None:
                self._found(_discovery(path), f"the server could not find {path}")
            elif place.name is not None:
                _, bodies = self.log.listing(place.plural, place.namespace)
                named = [body for body in bodies if body["metadata"]["name"] == place.name]
                self._found(next(iter(named), None), f'{place.plural} "{place.name}" not found')
            elif query.get("watch") in _YES:
                self._watch(place, query, matches)
            else:
                self._list(place, query, matches)
        except BadRequest as error:
            self.answer(400, _status(400, "BadRequest", str(error)))
        except Expired as error:
            self.answer(410, _status(410, "Expired", str(error)))
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _found(self, content: Any, otherwise: str) -> None:
        if content is None:
            self.answer(404, _status(404, "NotFound", otherwise))
        else:
            self.answer(200, content)

    def _list(self, place: _Place, query: dict[str, str], matches: Matches) -> None:
        """Send a list, whole or in pages; all pages have the version of the first one."""
        limit, token = _number(query, "limit"), query.get("continue", "")
        of, skip = (number(part) for part in token.partition(".")[::2]) if token else (None, 0)
        if skip is None or (token and of is None):
            raise BadRequest("continue key is not valid")
        version, bodies = self.log.listing(place.plural, place.namespace, of)
        bodies = [body for body in bodies if matches(body)]
        page = bodies[skip : skip + limit] if limit else bodies[skip:]
        meta: Body = {"resourceVersion": str(version)}
        rest = len(bodies) - skip - len(page)
        if rest > 0:
            meta |= {"continue": f"{version}.{skip + len(page)}", "remainingItemCount": rest}
        self.answer(
            200, {"kind": f"{place.kind}List", "apiVersion": place.group, "metadata": meta, "items": page}
        )

    def _watch(self, place: _Place, query: dict[str, str], matches: Matches) -> None:
        version, timeout_s = _number(query, "resourceVersion"), _number(query, "timeoutSeconds")
        marks, first = query.get("allowWatchBookmarks") in _YES, query.get("sendInitialEvents") in _YES
        ends_s = time.monotonic() + (timeout_s or _SERVER_TIMEOUT_S)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if not version or first:
            version, bodies = self.log.listing(place.plural, place.namespace)
            for body in bodies:
                if matches(body):
                    self._send("ADDED", body)
            if first:
                self._bookmark(place, version, {"k8s.io/initial-events-end": "true"})
        marked_s = time.monotonic()
        try:
            while not self.log.closed and (left := ends_s - time.monotonic()) > 0.0:
                for happening in self.log.since(version, min(left, 0.5 * self.bookmark_s, 1.0)):
                    version = happening.version
                    self._send_change(place, happening, matches)
                if marks and time.monotonic() - marked_s >= self.bookmark_s:
                    marked_s = time.monotonic()
                    self._bookmark(place, version, {})
        except Expired as error:
            # As in Kubernetes: the response has begun with 200, so this is an event.
            self._send("ERROR", _status(410, "Expired", str(error)))
        self._chunk(b"")

    def _send_change(self, place: _Place, happening: Happening, matches: Matches) -> None:
        """Send a change, from the view of a client that sees only matching objects."""
        body, before, (plural, namespace, _) = happening.body, happening.before, happening.key
        if plural != place.plural or place.namespace not in (None, namespace):
            return
        now, was = not happening.deleted and matches(body), before is not None and matches(before)
        if now:
            self._send("MODIFIED" if was else "ADDED", body)
        elif was:
            self._send("DELETED", body)

    def _bookmark(self, place: _Place, version: int, annotations: dict[str, str]) -> None:
        meta: Body = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        self._send("BOOKMARK", {"kind": place.kind, "apiVersion": place.group, "metadata": meta})

    def _send(self, type_: str, body: Body) -> None:
        self._chunk(msgspec.json.encode({"type": type_, "object": body}) + b"\n")

    def _chunk(self, raw: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(raw), raw))
        self.wfile.flush()


def _status(code: int, reason: str, message: str) -> Body:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _place(path: str) -> _Place | None:
    """Return the resource of a path; None if it is not a resource."""
    found = _PATH.fullmatch(path)
    if found is None or found["plural"] not in RESOURCES:
        return None
    group = "/".join(part for part in (found["group"], found["version"]) if part)
    if group != RESOURCES[found["plural"]][0]:
        return None
    return _Place(group, found["plural"], found["namespace"], found["name"])


def _discovery(path: str) -> Any:
    """Return the discovery documents that kubectl requests first; None for an unknown path."""
    if path == "/version":
        return {"major": "1", "minor": "31", "gitVersion": "v1.31.0", "platform": "simulated"}
    if path in ("/readyz", "/livez", "/healthz"):
        return b"ok"
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        found = []
        for group in sorted({group for group, *_ in RESOURCES.values()} - {"v1"}):
            name, _, number = group.partition("/")
            version = {"groupVersion": group, "version": number}
            found.append({"name": name, "versions": [version], "preferredVersion": version})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": found}
    group = path.removeprefix("/apis/" if path.startswith("/apis/") else "/api/")
    rows = [
        {
            "name": plural,
            "singularName": kind.lower(),
            "namespaced": True,
            "kind": kind,
            "verbs": ["get", "list", "watch"],
            "shortNames": [short] if short else [],
        }
        for plural, (of, kind, short) in RESOURCES.items()
        if of == group
    ]
    if not rows:
        return None
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": rows}


def _number(query: dict[str, str], name: str) -> int:
    """Return a number of the query; 0 if it is missing."""
    found = number(query.get(name) or "0")
    if found is None:
        raise BadRequest(f"{name} is {query[name][:99]!r}, which is not a number")
    return found


def selected(fields: str, labels: str) -> Matches:
    """Parse selectors such as `status.phase!=Failed,metadata.name=a` and `app=cart,tier!=web`; "" is all.

    Raises:
        BadRequest: a selector is invalid; sets of labels (`in`, `notin`) are not supported.
    """
    terms = [_term(term, _field) for term in fields.split(",") if term]
    terms += [_term(term, _label) for term in labels.split(",") if term]
    return lambda body: all(term(body) for term in terms)


def _term(term: str, value_of: Callable[[Body, str], Any]) -> Matches:
    for operator in ("!=", "==", "="):
        left, found, right = term.partition(operator)
        if found and left:
            wanted = operator != "!="
            return lambda body: (str(value_of(body, left)) == right) is wanted
    raise BadRequest(f"unable to parse requirement: {term!r}")


def _field(body: Body, path: str) -> Any:
    value: Any = body
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return value


def _label(body: Body, name: str) -> Any:
    return body["metadata"].get("labels", {}).get(name, "")
