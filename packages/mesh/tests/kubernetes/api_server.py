"""A real HTTP server that lists and watches as the API server does, and fails as told.

It keeps a version for each change, forgets old ones (`compact`), pages lists, filters by the field
selectors that are asked of it, streams watches with bookmarks, and checks a bearer token.
"""

import asyncio
import json
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from hopline_mesh.kubernetes.resources import RESOURCES

#: path of all namespaces -> plural
PATHS = {resource.path(): resource.plural for resource in RESOURCES}


@dataclass
class ApiServer:
    """Faults are attributes that tests set; each one but `token`, `refuse` and `mute` is used up."""

    token: str = "first"
    page: int = 2
    refuse: dict = field(default_factory=dict)  # plural -> status
    answers: list = field(default_factory=list)  # (status, headers, body) instead of the next answers
    slow: list = field(default_factory=list)  # seconds before the next answers
    lines: list = field(default_factory=list)  # sent as they are into the next watch
    lose_continue: bool = False  # the next page of a list is gone
    mute: bool = False  # watches say nothing, and do not end
    lists: list = field(default_factory=list)  # (path, query)
    watches: list = field(default_factory=list)
    tokens: list = field(default_factory=list)

    def __post_init__(self):
        self.version = 100
        self.oldest = 0
        self.objects = {}  # plural -> (namespace, name) -> body
        self.history = []  # (version, plural, kind, body)
        self.moved = asyncio.Condition()
        self.writers = set()
        self.tasks = set()
        self.closed = False

    async def put(self, resource, body):
        known = self.objects.setdefault(resource.plural, {})
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        kind = "MODIFIED" if key in known else "ADDED"
        known[key] = body
        await self._happened(resource, kind, body)

    async def delete(self, resource, body):
        key = body["metadata"]["namespace"], body["metadata"]["name"]
        await self._happened(resource, "DELETED", self.objects[resource.plural].pop(key))

    async def bookmark(self):
        """Time passes for every watch, with nothing that concerns it."""
        async with self.moved:
            self.version += 1
            self.history.append((self.version, None, "BOOKMARK", None))
            self.moved.notify_all()

    def compact(self):
        """Forget all that was before."""
        self.oldest = self.version

    def cut(self):
        """Break every connection."""
        for writer in list(self.writers):
            writer.transport.abort()

    async def close(self):
        """End all watches and connections."""
        async with self.moved:
            self.closed = True
            self.moved.notify_all()
        self.cut()
        await asyncio.gather(*self.tasks)

    def _has_news(self, seen):
        return self.closed or (self.version > seen and not self.mute)

    async def _happened(self, resource, kind, body):
        async with self.moved:
            self.version += 1
            body["metadata"]["resourceVersion"] = str(self.version)
            self.history.append((self.version, resource.plural, kind, json.loads(json.dumps(body))))
            self.moved.notify_all()

    async def _serve(self, reader, writer):
        self.writers.add(writer)
        self.tasks.add(asyncio.current_task())
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                lines = head.split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
                url = urlsplit(lines[0].split()[1])
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                if not await self._answer(writer, url.path, query, headers):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.tasks.discard(asyncio.current_task())

    async def _answer(self, writer, path, query, headers):
        plural, namespace = _place(path)
        self.tokens.append(headers.get("authorization", ""))
        if self.slow:
            await asyncio.sleep(self.slow.pop())
        if self.answers:
            return await _send(writer, *self.answers.pop(0))
        if self.tokens[-1] != f"bearer {self.token}":
            return await _send(writer, 401, {}, "Unauthorized")
        if plural in self.refuse:
            return await _send(writer, self.refuse[plural], {}, f"{plural} is forbidden: no list, no watch")
        if "watch" in query:
            self.watches.append((path, query))
            return await self._watch(writer, plural, namespace, query)
        self.lists.append((path, query))
        return await self._list(writer, plural, namespace, query)

    async def _list(self, writer, plural, namespace, query):
        found = [body for _, body in sorted(self.objects.get(plural, {}).items())]
        found = [body for body in found if _matches(body, namespace, query)]
        start = int(query.get("continue", "0"))
        if start and self.lose_continue:
            self.lose_continue = False
            return await _send(writer, 410, {}, "The provided continue parameter is too old")
        end = start + min(self.page, int(query["limit"]))
        more = {"continue": str(end)} if end < len(found) else {}
        body = {"metadata": {"resourceVersion": str(self.version), **more}, "items": found[start:end]}
        return await _send(writer, 200, {}, body)

    async def _watch(self, writer, plural, namespace, query):
        sent = int(query["resourceVersion"])
        if sent < self.oldest:
            return await _send(writer, 410, {}, f"too old resource version: {sent} ({self.oldest})")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for line in self.lines:
            _chunk(writer, line)
        end = bool(self.lines)
        self.lines = []
        while not end:
            await writer.drain()
            async with self.moved:
                await self.moved.wait_for(lambda seen=sent: self._has_news(seen))
                fresh = [each for each in self.history if each[0] > sent]
            if self.closed:
                return False
            for version, about, kind, body in fresh:
                sent = version
                if kind == "BOOKMARK":
                    body = {"metadata": {"resourceVersion": str(version)}}
                elif about != plural or not _matches(body, namespace, query):
                    continue
                _chunk(writer, json.dumps({"type": kind, "object": body}).encode() + b"\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


def status_line(code, message="gone"):
    """An error within a stream."""
    body = {"kind": "Status", "code": code, "message": message, "status": "Failure"}
    return json.dumps({"type": "ERROR", "object": body}).encode() + b"\n"


def _place(path):
    if path in PATHS:
        return PATHS[path], None
    before, _, after = path.partition("/namespaces/")
    namespace, _, plural = after.partition("/")
    return PATHS[f"{before}/{plural}"], namespace


def _matches(body, namespace, query):
    if namespace not in (None, body["metadata"]["namespace"]):
        return False
    for rule in filter(None, query.get("fieldSelector", "").split(",")):
        path, unequal, value = rule.partition("!=")
        if not unequal:
            path, _, value = rule.partition("=")
        found = body
        for part in path.split("."):
            found = found.get(part, {})
        if (found == value) == bool(unequal):
            return False
    return True


def _chunk(writer, data):
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def _send(writer, status, headers=None, body=None):
    if isinstance(body, str) or body is None:
        body = {"kind": "Status", "code": status, "message": body or ""}
    data = json.dumps(body).encode()
    lines = {"content-type": "application/json", "content-length": str(len(data)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + data)
    await writer.drain()
    return True


@asynccontextmanager
async def api_server(tls=None, **how):
    """A server and its URL, on a port of its own."""
    api = ApiServer(**how)
    server = await asyncio.start_server(api._serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    try:
        yield api, f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    finally:
        server.close()
        await api.close()
