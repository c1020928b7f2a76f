"""gRPC's table from error class to status code, which follows HTTP's."""

from __future__ import annotations

from collections.abc import Mapping

from hopline import errors
from hopline.transports.http_errors import HTTP_STATUS
from turnserve.grpc.status import CallError, StatusCode

#: HTTP status -> code, and the errors that have a separate code in gRPC.
_OF_STATUS = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    409: StatusCode.FAILED_PRECONDITION,
    413: StatusCode.INVALID_ARGUMENT,
    415: StatusCode.UNIMPLEMENTED,
    422: StatusCode.FAILED_PRECONDITION,
    429: StatusCode.RESOURCE_EXHAUSTED,
    500: StatusCode.INTERNAL,
    503: StatusCode.UNAVAILABLE,
    504: StatusCode.DEADLINE_EXCEEDED,
}
_CONFIGURED = (errors.FeatureGroupNotFound, errors.FeatureSchemaMismatch, errors.RunMismatch)
GRPC_CODE: dict[type[errors.HoplineError], StatusCode] = {
    **{cls: _OF_STATUS[status] for cls, status in HTTP_STATUS.items()},
    **dict.fromkeys(_CONFIGURED, StatusCode.FAILED_PRECONDITION),
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
}


def trailers_of(error: errors.HoplineError | CallError) -> list[tuple[str, str]]:
    """Return the metadata that every failed call ends with: the stable code, and when a retry may help."""
    if isinstance(error, CallError):
        name, retry_after_s = error.name, error.retry_after_s
    else:
        name, retry_after_s = error.code, error.retry_after_s if isinstance(error, _RETRIED) else None
    trailers = [("hopline-error", name)]
    if retry_after_s is not None:
        trailers.append(("retry-after-ms", str(int(retry_after_s * 1000))))
    return trailers


def text_of(error: CallError) -> str:
    """Return the text of an error, with the setting of the limit that was reached."""
    return f"{error} ({_SETTINGS[error.limit]})" if error.limit else str(error)


_SETTINGS = {"message_bytes": "server.max_body_bytes", "pending_bytes": "server.max_pending_bytes"}


_RETRIED = (errors.Overloaded, errors.Unavailable, errors.ModelNotReady, errors.FeatureStoreUnavailable)


def grpc_code(
    error: errors.HoplineError, codes: Mapping[type[errors.HoplineError], StatusCode] = GRPC_CODE
) -> StatusCode:
    """Return the code of an error; a subclass without its own line has its parent's code.

    Args:
        codes: by class; an application may add its own errors.
    """
    return next(codes[cls] for cls in type(error).__mro__ if cls in codes)
