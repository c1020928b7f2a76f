"""The Kubernetes API over HTTP: GET of lists and objects, and watches.

Follows https://kubernetes.io/docs/reference/using-api/api-concepts/: versions of resources, bookmarks,
lists in pages, watches that begin with a list, and 410 for deleted history.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from hopline.errors import BadRequest
from hopline_mesh.simulate.cluster.log import Body, Expired, Happening, Log
from hopline_mesh.simulate.http_server import Handler

Matches = Callable[[Body], bool]

#: Group and version, plural, kind and short name of resources. The last two are always empty.
RESOURCES = (
    ("v1", "pods", "Pod", "po"),
    ("v1", "services", "Service", "svc"),
    ("v1", "events", "Event", "ev"),
    ("apps/v1", "deployments", "Deployment", "deploy"),
    ("apps/v1", "replicasets", "ReplicaSet", "rs"),
    ("discovery.k8s.io/v1", "endpointslices", "EndpointSlice", ""),
    ("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", "hpa"),
    ("apps/v1", "statefulsets", "StatefulSet", "sts"),
    ("apps/v1", "daemonsets", "DaemonSet", "ds"),
)
_KINDS = {(group, plural): kind for group, plural, kind, _ in RESOURCES}
_SERVER_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class _Place:
    """The resource of a URL."""

    group: str
    plural: str
    namespace: str | None
    name: str | None

    @property
    def kind(self) -> str:
        return _KINDS[self.group, self.plural]


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
            place = _place(path)
            if place is None:
                found = _discovery(path)
                self._status(404, "NotFound", f"the server could not find {path}") if found is None else (
                    self.answer(200, found)
                )
                return
            matches = selected(query.get("fieldSelector", ""), query.get("labelSelector", ""))
            if place.name is not None:
                self._object(place)
            elif query.get("watch") in ("1", "true"):
                self._watch(place, query, matches)
            else:
                self._list(place, query, matches)
        except BadRequest as error:
            self._status(400, "BadRequest", str(error))
        except Expired as error:
            self._status(410, "Expired", str(error))
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _object(self, place: _Place) -> None:
        _, bodies = self.log.listing(place.plural, place.namespace)
        for body in bodies:
            if body["metadata"]["name"] == place.name:
                self.answer(200, body)
                return
        self._status(404, "NotFound", f'{place.plural} "{place.name}" not found')

    def _list(self, place: _Place, query: dict[str, str], matches: Matches) -> None:
        """Send a list, whole or in pages; all pages have the version of the first one."""
        limit, token = _number(query, "limit", 0), query.get("continue", "")
        version, bodies = self.log.listing(place.plural, place.namespace)
        skip = 0
        if token:
            of, _, at = token.partition(".")
            if not (of.isdecimal() and at.isdecimal()):
                raise BadRequest("continue key is not valid")
            version, skip = int(of), int(at)
            bodies = self.log.listing_of(version, place.plural, place.namespace)
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
        text = query.get("resourceVersion", "")
        if text and not text.isdecimal():
            raise BadRequest(f"Invalid value: {text!r}: invalid resource version")
        marks = query.get("allowWatchBookmarks") in ("1", "true")
        ends_s = time.monotonic() + (_number(query, "timeoutSeconds", 0) or _SERVER_TIMEOUT_S)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        version = int(text or 0)
        first = query.get("sendInitialEvents") in ("1", "true")
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
                for happening in self.log.wait(version, min(left, 0.5 * self.bookmark_s, 1.0)):
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
        body, before = happening.body, happening.before
        space = body["metadata"].get("namespace", "")
        if happening.plural != place.plural or place.namespace not in (None, space):
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

    def _status(self, code: int, reason: str, message: str) -> None:
        self.answer(code, _status(code, reason, message))


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
    parts = path.strip("/").split("/")
    if parts[:1] == ["api"] and len(parts) > 2:
        group, rest = parts[1], parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group, rest = "/".join(parts[1:3]), parts[3:]
    else:
        return None
    namespace = None
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    if (group, rest[0]) not in _KINDS or len(rest) > 2:
        return None
    return _Place(group, rest[0], namespace, rest[1] if len(rest) == 2 else None)


def _discovery(path: str) -> Any:
    """Return the discovery documents that kubectl requests first; None for an unknown path."""
    groups = sorted({group for group, *_ in RESOURCES} - {"v1"})
    if path == "/version":
        return {"major": "1", "minor": "31", "gitVersion": "v1.31.0", "platform": "simulated"}
    if path in ("/readyz", "/livez", "/healthz"):
        return b"ok"
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        found = []
        for group in groups:
            version = {"groupVersion": group, "version": group.partition("/")[2]}
            found.append(
                {"name": group.partition("/")[0], "versions": [version], "preferredVersion": version}
            )
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
        for of, plural, kind, short in RESOURCES
        if of == group
    ]
    if not rows:
        return None
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": rows}


def _number(query: dict[str, str], name: str, default: int) -> int:
    text = query.get(name, "")
    if text and not text.isdecimal():
        raise BadRequest(f"{name} is {text!r}, which is not a number")
    return int(text or default)


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
