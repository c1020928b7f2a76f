"""Messages of a broker as score requests, and answers as messages.

The payload of a request is the JSON of `POST /v1/models/<m>/score` and `model` in it; that of an answer is
what HTTP answers, errors included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from hopline.brokers.base import Message, Outgoing
from hopline.errors import BadRequest, HoplineError, RequestTooLarge, public_text
from hopline.transports.http_errors import encode_json, error_details
from hopline.transports.json_body import decode_body
from hopline.transports.score_json import (
    SAID,
    AskedBody,
    deadline_after,
    encode_result,
    refuse_twice,
    score_request,
)
from hopline.transports.traces import join_trace
from hopline.types import ScoreRequest, ScoreResult

REQUEST_ID = "request-id"
#: Of an answer that is an error: its code, as HTTP's header of that name.
ERROR = "hopline-error"
#: Of a dead letter: why it is one, and where it was.
REASON = "hopline-reason"
ORIGIN = "hopline-origin"
_LONGEST_REASON = 1000
_LONGEST_ID = 256


class _ModelBody(AskedBody, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A score request that names its model."""

    model: str


QueuedBody: Any = msgspec.defstruct(
    "QueuedBody", SAID, bases=(_ModelBody,), forbid_unknown_fields=True, gc=False, module=__name__
)

_decode: Callable[[bytes | memoryview], _ModelBody]
_decode = msgspec.json.Decoder(QueuedBody).decode


def request_of(message: Message, max_bytes: int) -> ScoreRequest:
    """The request in a message; its time limit runs from now.

    Raises: BadRequest: there is none, and why. RequestTooLarge: it has more than `max_bytes`.
    """
    if message.problem:
        raise BadRequest(message.problem)
    if len(message.payload) > max_bytes:
        raise RequestTooLarge(
            f"a message of {len(message.payload)} bytes; at most {max_bytes} are read "
            "(server.max_body_bytes)"
        )
    body = decode_body(
        message.payload, _decode, QueuedBody, "the message", '{"model": "risk", "nodes": [42]}'
    )
    refuse_twice(body, message.payload)
    deadline = deadline_after(body.timeout_ms, None, time.monotonic())
    request = score_request(body.model, None, body, deadline, request_id(message))
    traceparent = message.headers.get("traceparent")
    if traceparent:
        join_trace(request, traceparent.encode("utf-8", "surrogateescape"))
    return request


def request_id(message: Message) -> str:
    """The sender's, or the message's own place, which is the same however often it comes.

    One that is too long or cannot be printed is none: it would stand in each line of the log and of the
    prediction log.
    """
    own = message.headers.get(REQUEST_ID, "")
    return (
        own
        if 0 < len(own) <= _LONGEST_ID and own.isprintable()
        else f"{message.partition}@{message.position}"
    )


def answer(message: Message, topic: str, request: ScoreRequest, result: ScoreResult) -> Outgoing:
    """The message that answers a request."""
    headers = _headers(message)
    return Outgoing(encode_result(result, request), topic, message.key, headers)


def refusal(message: Message, topic: str, error: HoplineError) -> Outgoing:
    """The message that answers a request with an error."""
    body = {"error": {"code": error.code, "message": public_text(str(error)), **error_details(error)}}
    return Outgoing(encode_json(body), topic, message.key, {**_headers(message), ERROR: error.code})


def dead_letter(message: Message, topic: str, reason: str) -> Outgoing:
    """The message as it came, with the reason why it is a dead letter."""
    headers = {**message.headers, REASON: reason[:_LONGEST_REASON], ORIGIN: _origin(message)}
    return Outgoing(message.payload, topic, message.key, headers)


def _headers(message: Message) -> dict[str, str]:
    headers = {REQUEST_ID: request_id(message)}
    traceparent = message.headers.get("traceparent")
    return {**headers, "traceparent": traceparent} if traceparent else headers


def _origin(message: Message) -> str:
    return f"{message.partition}@{message.position}"
