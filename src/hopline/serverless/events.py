"""AWS Lambda: converts events of function URLs, API Gateway and plain ones to calls and back."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from hopline.serverless.app import Answer, Call, answer, score


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


def _call(event: Mapping[str, Any], method: str, path: str) -> Call:
    stage = event["requestContext"].get("stage", "") if "requestContext" in event else ""
    if stage and path.startswith(f"/{stage}/"):  # an HTTP API with a named stage
        path = path[len(stage) + 1 :]
    headers = {name.lower(): str(value) for name, value in (event.get("headers") or {}).items()}
    body = (event.get("body") or "").encode("utf-8", "surrogatepass")
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body)
        except binascii.Error:
            body = b"\x00"  # invalid JSON, which is then refused
    return Call(method, path, headers, body)


def _response(made: Answer) -> dict[str, Any]:
    return {
        "statusCode": made.status,
        "headers": made.headers,
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
    made = score(None if model is None else str(model), None, Call("POST", "", {}, body))
    decoded: dict[str, Any] = orjson.loads(made.body)
    return decoded if made.status == 200 else {**decoded, "status": made.status}
