"""Broker messages as score requests, and answers as messages.

The payload of a request is the JSON of `POST /v1/models/<m>/score` with an additional `model`. The payload
of an answer is the body of the HTTP response, for errors too.
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
    OPTIONS,
    InputsBody,
    deadline_after,
    encode_result,
    refuse_repeated_names,
    score_request,
)
from hopline.transports.traces import join_trace
from hopline.types import ScoreRequest, ScoreResult

REQUEST_ID = "request-id"
#: Header of an error answer: its code, as in the HTTP header of that name.
ERROR = "hopline-error"
#: Headers of a dead letter: the reason, and the original position.
REASON = "hopline-reason"
ORIGIN = "hopline-origin"
_LONGEST_REASON = 1000
_LONGEST_ID = 256


class _ModelBody(InputsBody, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A score request that names its model."""

    model: str


QueuedBody: Any = msgspec.defstruct(
    "QueuedBody", OPTIONS, bases=(_ModelBody,), forbid_unknown_fields=True, gc=False, module=__name__
)

_decode: Callable[[bytes | memoryview], _ModelBody]
_decode = msgspec.json.Decoder(QueuedBody).decode


def request_of(message: Message, max_bytes: int) -> ScoreRequest:
    """Return the request in a message; its time limit starts now.

    Raises: BadRequest: the message is not a valid request. RequestTooLarge: it has more than `max_bytes`.
    """
    if message.problem:
        raise BadRequest(message.problem)
    if len(message.payload) > max_bytes:
        raise RequestTooLarge(
            f"the message has {len(message.payload)} bytes; the limit is {max_bytes} "
            "(server.max_body_bytes)"
        )
    body = decode_body(
        message.payload, _decode, QueuedBody, "the message", '{"model": "risk", "nodes": [42]}'
    )
    refuse_repeated_names(body, message.payload)
    deadline = deadline_after(body.timeout_ms, None, time.monotonic())
    request = score_request(body.model, None, body, deadline, request_id(message))
    traceparent = message.headers.get("traceparent")
    if traceparent:
        join_trace(request, traceparent.encode("utf-8", "surrogateescape"))
    return request


def request_id(message: Message) -> str:
    """Return the sender's request id, or the message's position, which is the same for each delivery.

    An id that is too long or not printable is ignored: it would be in each line of the logs.
    """
    own = message.headers.get(REQUEST_ID, "")
    return (
        own
        if 0 < len(own) <= _LONGEST_ID and own.isprintable()
        else f"{message.partition}@{message.position}"
    )


def answer(message: Message, topic: str, request: ScoreRequest, result: ScoreResult) -> Outgoing:
    """Return the message that answers a request."""
    headers = _headers(message)
    return Outgoing(encode_result(result, request), topic, message.key, headers)


def refusal(message: Message, topic: str, error: HoplineError) -> Outgoing:
    """Return the message that answers a request with an error."""
    body = {"error": {"code": error.code, "message": public_text(str(error)), **error_details(error)}}
    return Outgoing(encode_json(body), topic, message.key, {**_headers(message), ERROR: error.code})


def dead_letter(message: Message, topic: str, reason: str) -> Outgoing:
    """Return a copy of the message with the reason why it became a dead letter."""
    headers = {**message.headers, REASON: reason[:_LONGEST_REASON], ORIGIN: _origin(message)}
    return Outgoing(message.payload, topic, message.key, headers)


def _headers(message: Message) -> dict[str, str]:
    headers = {REQUEST_ID: request_id(message)}
    traceparent = message.headers.get("traceparent")
    return {**headers, "traceparent": traceparent} if traceparent else headers


def _origin(message: Message) -> str:
    return f"{message.partition}@{message.position}"
