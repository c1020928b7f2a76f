"""One call of a function: a path and a body to a status and a body, as in the HTTP API."""

from __future__ import annotations

import functools
import logging
import secrets
import time
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import unquote

from hopline.errors import HoplineError, RequestTooLarge
from hopline.serverless.models import Models
from hopline.transports.http_errors import error_response, plain_error
from hopline.transports.http_messages import Response
from hopline.transports.score_json import deadline_after, decode_score, encode_result, score_request

log = logging.getLogger(__name__)


class Call(NamedTuple):
    """A request to a function, from any platform.

    Attributes:
        headers: by lower-case name.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Answer(NamedTuple):
    """The response to a call."""

    status: int
    headers: dict[str, str]
    body: bytes


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


def answer(call: Call) -> Answer:
    """Answer a call; never raises.

    Paths are those of the server: `/v1/models/<model>/score`, also with `/versions/<version>`, and
    `/healthz`.
    """
    methods: tuple[str, ...] = ("POST",)
    version: str | None
    match [unquote(part) for part in call.path.strip("/").split("/")]:
        case ["v1", "models", model, "score"]:
            version = None
        case ["v1", "models", model, "versions", named, "score"]:
            version = named
        case ["healthz"]:
            methods, model, version = ("GET", "HEAD"), "", None
        case _:
            return _as_answer(plain_error(404, f"unknown path {call.path}; see / for an overview"))
    if call.method not in methods:
        text = f"{call.method} is not allowed for this path; use {', '.join(methods)}"
        return _as_answer(plain_error(405, text, b"allow: %b\r\n" % ", ".join(methods).encode()))
    if not model:
        return _as_answer(Response(b'{"live":true}'))
    return score(model, version, call)


def score(model: str | None, version: str | None, call: Call) -> Answer:
    """Answer a score request; never raises.

    Args:
        model: None if the function has only one.
    """
    request_id = call.headers.get("x-request-id") or secrets.token_hex(8)
    line = b"x-request-id: %b\r\n" % request_id.encode("latin-1", "replace")
    try:
        return _as_answer(Response(_scored(model, version, call, request_id), headers=line))
    except HoplineError as error:
        return _as_answer(error_response(error, line))
    except Exception:
        log.exception("request %s failed", request_id)
        text = f"internal error; the function's log has the details under request id {request_id}"
        return _as_answer(error_response(HoplineError(text), line))


def _scored(model: str | None, version: str | None, call: Call, request_id: str) -> bytes:
    known = models()
    limit = known.settings.max_body_bytes
    text = call.body
    if len(text) > limit:
        raise RequestTooLarge(f"the body is larger than {limit} bytes (server.max_body_bytes)")
    if "content-encoding" in call.headers:
        from hopline.transports.compression import decompress

        text = decompress(call.headers["content-encoding"], text, limit)
    body = decode_score(text)
    header = call.headers.get("timeout-ms")
    # Checked as on a server, but not enforced: an answer is faster than any deadline.
    limit_at = deadline_after(body.timeout_ms, header.encode() if header else None, time.monotonic())
    request = score_request(model or "", version, body, limit_at, request_id)
    return encode_result(known.of(model, request.version).answer(request), request)


def _as_answer(response: Response) -> Answer:
    headers = {"content-type": response.content_type.decode("latin-1")}
    for line in response.headers.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name.lower()] = value.strip()
    return Answer(response.status, headers, response.body)
