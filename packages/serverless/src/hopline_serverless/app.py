"""One call of a function: the platform's event, the function's models, the platform's response.

`handler` converts events of AWS Lambda, `application` calls of WSGI (PEP 3333), which Cloud Run, Cloud
Functions and Azure Functions can run. Between them a call is a path and a body, and its answer a status and
a body, as in the HTTP API. `Models` are the precomputed files of the settings, and students in the
repository.
"""

from __future__ import annotations

import base64
import binascii
import functools
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import orjson

from hopline.artifact import read_spec
from hopline.config.reader import load_config
from hopline.config.schema import Config
from hopline.engine.precomputed_file.reader import read_header
from hopline.engine.student import SPEC_FILE
from hopline.errors import ConfigError, HoplineError, ModelNotFound, RequestTooLarge
from hopline.files import expanded
from hopline.models.version_folder import in_order, is_name
from hopline.transports.http_errors import error_response, plain_error
from hopline.transports.score_json import deadline_after, decode_score, encode_result, score_request
from hopline_serverless.known import KnownModel
from turnserve.http1.messages import Request, Response


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Answer a request; see `hopline_serverless.app.answer`."""
    headers = {name[5:].replace("_", "-"): value for name, value in environ.items() if name[:5] == "HTTP_"}
    length = environ.get("CONTENT_LENGTH") or "0"
    body = environ["wsgi.input"].read(int(length)) if length.isdecimal() else b""
    # WSGI passes the path decoded, as bytes in Latin-1.
    path = environ.get("PATH_INFO", "/").encode("latin-1").decode("utf-8", "replace")
    made = answer(_request(environ.get("REQUEST_METHOD", "GET"), path, headers, body))
    sent = [*_headers(made).items(), ("content-length", str(len(made.body)))]
    start_response(f"{made.status} {HTTPStatus(made.status).phrase}", sent)
    return [made.body]


def handler(event: Mapping[str, Any], context: object = None) -> dict[str, Any]:
    """Answer an event.

    Args:
        event: of a function URL or an HTTP API (payload format 2.0), of a REST API (format 1.0), or plain:
            the body of a score request, with `model` if the function has several.
        context: of the platform; not used.

    Returns: the platform's response object; for a plain event the answer itself, or
        `{"error": {"code", "message", …}, "status"}`.
    """
    http = event.get("requestContext", {}).get("http") if "requestContext" in event else None
    if http is not None:
        path = event.get("rawPath", "/")
        return _response(answer(_call(event, http.get("method", "GET"), path)))
    if "httpMethod" in event:
        return _response(answer(_call(event, event["httpMethod"], event.get("path", "/"))))
    return _plain(event)


def _call(event: Mapping[str, Any], method: str, path: str) -> Request:
    stage = event["requestContext"].get("stage", "") if "requestContext" in event else ""
    if stage and path.startswith(f"/{stage}/"):  # an HTTP API with a named stage
        path = path[len(stage) + 1 :]
    body = (event.get("body") or "").encode("utf-8", "surrogatepass")
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body)
        except binascii.Error:
            body = b"\x00"  # invalid JSON, which is then refused
    return _request(method, path, event.get("headers") or {}, body)


def _request(method: str, path: str, headers: Mapping[str, object], body: bytes) -> Request:
    fields = {
        name.lower().encode(): str(value).encode("latin-1", "replace") for name, value in headers.items()
    }
    return Request(method.encode(), path.encode("utf-8", "replace"), fields, body)


def _response(made: Response) -> dict[str, Any]:
    return {
        "statusCode": made.status,
        "headers": _headers(made),
        "body": made.body.decode(),
        "isBase64Encoded": False,
    }


def _plain(event: Mapping[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in event.items() if name != "model"}
    try:
        body = msgspec.json.encode(rest)
    except (TypeError, ValueError, msgspec.MsgspecError):
        body = b"\x00"
    model = event.get("model")
    made = score(None if model is None else str(model), None, _request("POST", "", {}, body))
    decoded: dict[str, Any] = orjson.loads(made.body)
    return decoded if made.status == 200 else {**decoded, "status": made.status}


log = logging.getLogger("hopline.serverless")

#: Seconds between checks for replaced files: a check may query a network file system.
_LOOK_S = 2.0


def read_settings(env: Mapping[str, str]) -> Config:
    """Read the server's settings from environment variables.

    Raises:
        ConfigError: a variable is invalid; models.repository or graph.path is not on this machine.
    """
    settings = load_config(env=env)
    repository, graph = settings.models.repository, settings.graph.path
    if not isinstance(repository, Path) or not repository.is_dir():
        raise ConfigError(
            f"models.repository: {str(repository or '')!r} is not a folder; set "
            "HOPLINE__MODELS__REPOSITORY to a local folder of <model>/<version>"
        )
    if isinstance(graph, str):
        raise ConfigError(f"graph.path: {graph!r} is not a folder; a function reads a graph on its disk")
    return settings


class Models:
    """The models of a function.

    Args:
        settings: as of `read_settings`.
        clock: seconds, monotonic.

    Attributes:
        settings: as given.

    Raises:
        ConfigError: no model can answer.
        HoplineError: a model or file is invalid.
    """

    def __init__(self, settings: Config, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock = clock
        self._looked = clock()
        self._known = self._loaded()

    @staticmethod
    def of_environment(env: Mapping[str, str] = os.environ) -> Models:
        """The models of the environment variables; raises as the class."""
        return Models(read_settings(env))

    def of(self, name: str | None, version: str | None) -> KnownModel:
        """A model; the name may be None if there is only one.

        Raises: ModelNotFound: there is no such name or version.
        """
        self._follow()
        if name is None and len(self._known) == 1:
            name = next(iter(self._known))
        found = self._known.get(name or "")
        if found is None:
            raise ModelNotFound(f"no model {name!r}; there are: {', '.join(self._known)}")
        if version is not None and version != found.version:
            raise ModelNotFound(f"model {name!r} has no version {version!r}; there are: {found.version}")
        return found

    def _follow(self) -> None:
        """Load files that were replaced."""
        now = self._clock()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        if any(known.rows is not None and known.rows.file.is_replaced() for known in self._known.values()):
            self._known = self._loaded()

    def _loaded(self) -> dict[str, KnownModel]:
        settings, found = self.settings, {}
        repository, names = settings.models.repository, settings.models.names
        assert isinstance(repository, Path)
        for file in settings.precomputed.file:
            path = expanded(file, "precomputed.file")
            plan = read_header(path).plan
            if names and plan.model not in names:
                continue
            folder = repository / plan.model / plan.version
            found[plan.model] = KnownModel(folder, read_spec(folder, verify=False), path, settings)
        for name in names or sorted(os.listdir(repository)):
            folder = repository / name
            if name in found or not is_name(name) or not folder.is_dir():
                continue
            versions = in_order(
                each for each in os.listdir(folder) if (folder / each / SPEC_FILE).is_file()
            )
            if versions:
                last = folder / versions[-1]
                found[name] = KnownModel(last, read_spec(last, verify=False), None, settings)
        absent = [name for name in names if name not in found]
        if absent or not found:
            raise ConfigError(
                f"no source of answers for {', '.join(absent) or 'any model'}: name a file of `hopline "
                "batch` in HOPLINE__PRECOMPUTED__FILE, or add a student to the model (`hopline distill`)"
            )
        return found


@functools.cache
def models() -> Models:
    """The function's models, opened once; a failure is not cached."""
    return Models.of_environment()


def warm_up() -> None:
    """Open the models before the first call, which reports any error."""
    try:
        models()
    except HoplineError as error:
        log.error("the function cannot answer: %s", error)


def answer(call: Request) -> Response:
    """Answer a call; never raises.

    Paths are those of the server: `/v1/models/<model>/score`, also with `/versions/<version>`, and
    `/healthz`.
    """
    methods: tuple[str, ...] = ("POST",)
    version: str | None
    path, method = call.target.decode(), call.method.decode()
    match [unquote(part) for part in path.strip("/").split("/")]:
        case ["v1", "models", model, "score"]:
            version = None
        case ["v1", "models", model, "versions", named, "score"]:
            version = named
        case ["healthz"]:
            methods, model, version = ("GET", "HEAD"), "", None
        case _:
            return plain_error(404, f"unknown path {path}; see / for an overview")
    if method not in methods:
        text = f"{method} is not allowed for this path; use {', '.join(methods)}"
        return plain_error(405, text, b"allow: %b\r\n" % ", ".join(methods).encode())
    if not model:
        return Response(b'{"live":true}')
    return score(model, version, call)


def score(model: str | None, version: str | None, call: Request) -> Response:
    """Answer a score request; never raises.

    Args:
        model: None if the function has only one.
    """
    request_id = call.headers.get(b"x-request-id", b"").decode("latin-1") or secrets.token_hex(8)
    line = b"x-request-id: %b\r\n" % request_id.encode("latin-1")
    try:
        return Response(_scored(model, version, call, request_id), headers=line)
    except HoplineError as error:
        return error_response(error, line)
    except Exception:
        log.exception("request %s failed", request_id)
        text = f"internal error; the function's log has the details under request id {request_id}"
        return error_response(HoplineError(text), line)


def _scored(model: str | None, version: str | None, call: Request, request_id: str) -> bytes:
    known = models()
    limit = known.settings.server.max_body_bytes
    text = call.body
    if len(text) > limit:
        raise RequestTooLarge(f"the body is larger than {limit} bytes (server.max_body_bytes)")
    if b"content-encoding" in call.headers:
        from hopline.transports.compression import decompress

        text = decompress(call.headers[b"content-encoding"].decode("latin-1"), text, limit)
    body = decode_score(text)
    # Checked as on a server, but not enforced: an answer is faster than any deadline.
    limit_at = deadline_after(body.timeout_ms, call.headers.get(b"timeout-ms"), time.monotonic())
    request = score_request(model or "", version, body, limit_at, request_id)
    return encode_result(known.of(model, request.version).answer(request), request)


def _headers(response: Response) -> dict[str, str]:
    headers = {"content-type": response.content_type.decode("latin-1")}
    for line in response.headers.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name.lower()] = value.strip()
    return headers
