"""A client of the API server: lists in pages, watches as streams of lines.

Follows https://kubernetes.io/docs/reference/using-api/api-concepts/. Only the fields that are read are
decoded. An object that cannot be decoded is left out and logged, and does not affect others.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import httpx
import msgspec

from hopline_mesh.errors import QueryFailed, SourceUnavailable
from hopline_mesh.kubernetes.credentials import Credentials
from hopline_mesh.kubernetes.objects import EventType, Object
from hopline_mesh.kubernetes.resources import Resource

log = logging.getLogger(__name__)

#: Longest line of a watch; etcd stores no object above 1.5 MB.
LINE_BYTES = 16 * 2**20
#: Objects of one page, as in kubectl.
PAGE = 500

#: Errors of decoders, including invalid UTF-8 and times.
_UNREADABLE = (msgspec.DecodeError, ValueError)


class Refused(QueryFailed):
    """The API server responds with an error.

    Attributes:
        status: HTTP status.
        retry_after_s: requested wait; 0 if there is none.
    """

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts, in seconds.

    Attributes:
        connect: for a connection.
        answer: for the start of a response, and between two parts of a list.
        idle: between two lines of a watch. Servers send a bookmark about every minute, so a connection that
            is silent for longer may be broken.
    """

    connect: float = 5.0
    answer: float = 30.0
    idle: float = 150.0


class Page(NamedTuple):
    """A page of a list: its objects, and the `resourceVersion` from which a watch continues."""

    objects: list[Object]
    version: str


class WatchEvent(NamedTuple):
    """One line of a watch: the `resourceVersion` from which the watch continues, and what happened.

    A bookmark, and an object that cannot be read, have only the version.
    """

    version: str
    kind: EventType | None = None
    body: Object | None = None


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Line(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Versioned(msgspec.Struct):
    metadata: _ListMeta


class _Details(msgspec.Struct, rename="camel"):
    retry_after_seconds: float = 0.0


class _Status(msgspec.Struct):
    code: int = 0
    message: str = ""
    details: _Details | None = None


class Api:
    """One API server.

    Args:
        credentials: address and authentication.
        timeouts: of requests.
    """

    def __init__(self, credentials: Credentials, timeouts: Timeouts | None = None) -> None:
        self._credentials = credentials
        self._timeouts = timeouts or Timeouts()
        self._client: httpx.AsyncClient | None = None
        self._connecting = asyncio.Lock()

    async def close(self) -> None:
        """Close all connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def pages(
        self, resource: Resource, namespace: str | None, fields: str
    ) -> AsyncGenerator[Page, None]:
        """Yield all objects, page by page.

        Args:
            fields: field selector.

        Raises:
            Refused: by the server; 410 if the list took so long that its version is no longer stored.
            QueryFailed: the response is not a list.
            SourceUnavailable: the server does not respond.
            ConfigError: credentials cannot be read.
        """
        query: dict[str, Any] = {"limit": PAGE, "fieldSelector": fields}
        while True:
            response = await self._send(resource.path(namespace), query, self._timeouts.answer)
            try:
                found = _decoder(_List).decode(await response.aread())
            except httpx.HTTPError as error:
                raise self._unavailable(error) from None
            except _UNREADABLE as error:
                raise QueryFailed(
                    f"{self._credentials.url}: not a list of {resource.name}: {error}"
                ) from None
            finally:
                await response.aclose()
            yield Page(_objects(resource, found.items or []), found.metadata.resource_version)
            query["continue"] = found.metadata.continue_
            if not query["continue"]:
                return

    async def watch(
        self, resource: Resource, namespace: str | None, fields: str, version: str, for_s: int
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield events after a version, until the server ends the stream (after `for_s` by its clock).

        The first event is a bookmark of `version` itself: the server accepted the watch.

        Raises:
            Refused: 410 if that version is too old, as the status or within the stream.
            QueryFailed: a line is not an event.
            SourceUnavailable: the connection broke, or was silent for too long.
            ConfigError: credentials cannot be read.
        """
        query = {
            "fieldSelector": fields,
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": for_s,
        }
        response = await self._send(resource.path(namespace), query, self._timeouts.idle)
        try:
            yield WatchEvent(version)
            buffer = bytearray()
            async for chunk in response.aiter_bytes():
                buffer += chunk
                if b"\n" in chunk:
                    *lines, rest = bytes(buffer).split(b"\n")
                    buffer = bytearray(rest)
                    for line in lines:
                        if line.strip():
                            yield _event(resource, line)
                elif len(buffer) > LINE_BYTES:
                    raise QueryFailed(
                        f"{resource.name}: a line of the watch is longer than {LINE_BYTES} bytes"
                    )
        except httpx.HTTPError as error:
            raise self._unavailable(error) from None
        finally:
            await response.aclose()

    async def _send(self, path: str, query: dict[str, Any], read_s: float) -> httpx.Response:
        # On a thread: a credential plugin may be slow, and a file may be on a network.
        token = await asyncio.to_thread(self._credentials.token)
        client = await self._connected()
        request = client.build_request(
            "GET",
            self._credentials.url + path,
            params={name: value for name, value in query.items() if value != ""},
            headers={"authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(self._timeouts.answer, connect=self._timeouts.connect, read=read_s),
        )
        try:
            response = await client.send(request, stream=True)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            unavailable = self._unavailable(error)
            if isinstance(error, httpx.ConnectError) and isinstance(_cause(error), ssl.SSLError):
                # The certificate may have been replaced: the next try reads it again.
                await self.close()
            raise unavailable from None
        if response.status_code != 200:
            raise await self._refused(response, path)
        return response

    async def _connected(self) -> httpx.AsyncClient:
        async with self._connecting:
            if self._client is None:
                context = await asyncio.to_thread(self._credentials.tls)
                self._client = httpx.AsyncClient(
                    verify=context if context is not None else False,
                    trust_env=False,
                    headers={"accept": "application/json"},
                    limits=httpx.Limits(max_connections=None),
                )
            return self._client

    async def _refused(self, response: httpx.Response, path: str) -> Refused:
        try:
            message = _decoder(_Status).decode(await response.aread()).message
        except (httpx.HTTPError, *_UNREADABLE):
            message = ""
        finally:
            await response.aclose()
        try:
            wait_s = max(0.0, float(response.headers.get("retry-after", 0)))
        except ValueError:
            wait_s = 0.0
        message = message or response.reason_phrase or "refused"
        return Refused(
            response.status_code,
            f"{self._credentials.url}{path} returned status {response.status_code}: {message}",
            wait_s,
        )

    def _unavailable(self, error: Exception) -> SourceUnavailable:
        return SourceUnavailable(f"{self._credentials.url}: {str(error) or type(error).__name__}")


def _event(resource: Resource, line: bytes) -> WatchEvent:
    try:
        event = _decoder(_Line).decode(line)
        if event.type == "ERROR":
            status = _decoder(_Status).decode(event.object)
            wait_s = status.details.retry_after_seconds if status.details is not None else 0.0
            raise Refused(status.code, f"{resource.name}: {status.message or status.code}", wait_s)
        version = _decoder(_Versioned).decode(event.object).metadata.resource_version
    except _UNREADABLE as error:
        raise QueryFailed(f"{resource.name}: a line of the watch is not an event: {error}") from None
    bodies = _objects(resource, [event.object]) if event.type in get_args(EventType) else []
    return WatchEvent(version, event.type, bodies[0]) if bodies else WatchEvent(version)


def _objects(resource: Resource, raws: list[msgspec.Raw]) -> list[Object]:
    objects, errors = [], []
    for raw in raws:
        try:
            objects.append(_decoder(resource.type).decode(raw))
        except _UNREADABLE as error:
            errors.append(error)
    if errors:
        log.warning(
            "kubernetes %s: %d objects cannot be read, the first: %s", resource.name, len(errors), errors[0]
        )
    return objects


@functools.cache
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


def _cause(error: BaseException) -> BaseException:
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return error
