"""HTTP's table from error class to status, and the two forms of error bodies.

The table covers all classes of `hopline.errors`; a test checks that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson

from hopline import errors
from turnserve.compression import ACCEPTED
from turnserve.http1.messages import Response

HTTP_STATUS: dict[type[errors.HoplineError], int] = {
    errors.HoplineError: 500,
    errors.BadRequest: 400,
    errors.NodeNotFound: 404,
    errors.EdgeNotFound: 404,
    errors.RequestTooLarge: 413,
    errors.UnsupportedEncoding: 415,
    errors.ModelNotFound: 404,
    errors.ModelNotReady: 503,
    errors.Overloaded: 503,
    errors.RateLimited: 429,
    errors.Unauthenticated: 401,
    errors.PermissionDenied: 403,
    errors.Conflict: 409,
    errors.Unavailable: 503,
    errors.IssuerUnavailable: 503,
    errors.RepositoryUnavailable: 503,
    errors.SnapshotUnavailable: 503,
    errors.StoreUnavailable: 503,
    errors.GraphStoreUnavailable: 503,
    errors.LogFull: 503,
    errors.LogFailed: 503,
    errors.WriterUnavailable: 503,
    errors.GraphBehind: 503,
    errors.DeadlineExceeded: 504,
    errors.ArtifactError: 422,
    errors.ArtifactCorrupted: 422,
    errors.SchemaMismatch: 422,
    errors.PipelineInvalid: 422,
    errors.PrecomputedFileError: 422,
    errors.GraphError: 500,
    errors.LogDamaged: 500,
    errors.SnapshotError: 422,
    errors.SnapshotNotFound: 404,
    errors.SnapshotDamaged: 422,
    errors.SnapshotTooLarge: 422,
    errors.GraphStoreError: 500,
    errors.FeatureStoreError: 500,
    errors.FeatureStoreUnavailable: 503,
    errors.FeatureGroupNotFound: 500,
    errors.FeatureSchemaMismatch: 500,
    errors.BatchError: 500,
    errors.RunMismatch: 500,
    errors.SinkError: 500,
    errors.BrokerError: 500,
    errors.BrokerUnavailable: 503,
    errors.PackagingError: 500,
    errors.NotServable: 500,
    errors.NotSplittable: 500,
    errors.ParityError: 500,
    errors.ConfigError: 500,
    errors.RuntimeFailure: 500,
}

#: Errors with the time of a retry.
_PASSING = (
    errors.Overloaded,
    errors.Unavailable,
    errors.ModelNotReady,
    errors.FeatureStoreUnavailable,
    errors.BrokerUnavailable,
)
#: Codes of failures of the transport itself, which have no error class.
TRANSPORT_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "request_too_large",
    417: "expectation_failed",
    431: "request_too_large",
    501: "not_implemented",
    503: "overloaded",
    505: "http_version_not_supported",
}
#: OpenAI's types of errors.
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}


def http_status(
    error: errors.HoplineError, statuses: Mapping[type[errors.HoplineError], int] = HTTP_STATUS
) -> int:
    """Return the status of an error; a subclass without its own line has its parent's status."""
    return next(statuses[cls] for cls in type(error).__mro__ if cls in statuses)


def error_details(error: errors.HoplineError) -> dict[str, Any]:
    """Return the attributes of an error that a client can act on."""
    details: dict[str, Any] = {}
    if isinstance(error, errors.NodeNotFound):
        details["missing"] = [errors.public_text(id) if isinstance(id, str) else id for id in error.missing]
    if isinstance(error, errors.SchemaMismatch):
        details["differences"] = [errors.public_text(each) for each in error.differences]
    if isinstance(error, _PASSING):
        details["retry_after_s"] = error.retry_after_s
    return details


def error_response(
    error: errors.HoplineError,
    headers: bytes = b"",
    *,
    oip: bool = False,
    statuses: Mapping[type[errors.HoplineError], int] = HTTP_STATUS,
) -> Response:
    """Return the response for an error.

    Args:
        error: the error.
        headers: additional header lines.
        oip: use the Open Inference Protocol's form, `{"error": "text"}`; otherwise `{"error": {"code": …,
            "message": …, details}}`.
        statuses: by class; an application may add its own errors.
    """
    if isinstance(error, _PASSING):
        headers += b"retry-after: %d\r\n" % max(1, math.ceil(error.retry_after_s))
    if isinstance(error, errors.Unauthenticated):
        headers += b'www-authenticate: Bearer realm="hopline"\r\n'  # RFC 9110, 11.6.1: required for a 401
    if isinstance(error, errors.UnsupportedEncoding):
        headers += b"accept-encoding: %b\r\n" % ACCEPTED.encode()  # RFC 9110, 15.5.16
    headers += b"hopline-error: %b\r\n" % error.code.encode()
    text = errors.public_text(str(error))
    body: Any = text
    if not oip:
        # `type` and `param` are for OpenAI's clients.
        kind = _TYPES.get(http_status(error, statuses), "server_error")
        param = error.param if isinstance(error, errors.BadRequest) else None
        param = None if param is None else errors.public_text(param)
        body = {"code": error.code, "message": text, "type": kind, "param": param, **error_details(error)}
    return Response(encode_json({"error": body}), http_status(error, statuses), headers=headers)


def plain_error(status: int, text: str, headers: bytes = b"", *, oip: bool = False) -> Response:
    """Return the response for a failure of the transport itself."""
    text = errors.public_text(text)
    body: Any = text if oip else {"code": TRANSPORT_CODES[status], "message": text}
    return Response(encode_json({"error": body}), status, headers=headers)


#: Status of a refusal of a connection -> the setting of the limit that was reached.
_SETTINGS = {413: "server.max_body_bytes", 503: "server.max_pending_bytes"}


def limit_error(status: int, text: str) -> Response:
    """Return the response to a request that its connection refused, with the name of the limit."""
    return plain_error(status, f"{text} ({_SETTINGS[status]})" if status in _SETTINGS else text)


def encode_json(value: Any) -> bytes:
    """Encode compact JSON; supports NumPy arrays and integers beyond 64 bits."""
    return orjson.dumps(value, default=str, option=orjson.OPT_SERIALIZE_NUMPY)
