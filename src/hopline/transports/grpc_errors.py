"""gRPC's table from error class to status code. It covers all classes of `hopline.errors`."""

from __future__ import annotations

from collections.abc import Mapping

from hopline import errors
from turnserve.grpc.status import CallError, StatusCode

GRPC_CODE: dict[type[errors.HoplineError], StatusCode] = {
    errors.HoplineError: StatusCode.INTERNAL,
    errors.BadRequest: StatusCode.INVALID_ARGUMENT,
    errors.NodeNotFound: StatusCode.NOT_FOUND,
    errors.RequestTooLarge: StatusCode.INVALID_ARGUMENT,
    errors.UnsupportedEncoding: StatusCode.UNIMPLEMENTED,
    errors.ModelNotFound: StatusCode.NOT_FOUND,
    errors.ModelNotReady: StatusCode.UNAVAILABLE,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.RateLimited: StatusCode.RESOURCE_EXHAUSTED,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: StatusCode.PERMISSION_DENIED,
    errors.Conflict: StatusCode.FAILED_PRECONDITION,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.IssuerUnavailable: StatusCode.UNAVAILABLE,
    errors.RepositoryUnavailable: StatusCode.UNAVAILABLE,
    errors.SnapshotUnavailable: StatusCode.UNAVAILABLE,
    errors.StoreUnavailable: StatusCode.UNAVAILABLE,
    errors.GraphStoreUnavailable: StatusCode.UNAVAILABLE,
    errors.LogFull: StatusCode.UNAVAILABLE,
    errors.LogFailed: StatusCode.UNAVAILABLE,
    errors.WriterUnavailable: StatusCode.UNAVAILABLE,
    errors.GraphBehind: StatusCode.UNAVAILABLE,
    errors.DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    errors.ArtifactError: StatusCode.FAILED_PRECONDITION,
    errors.ArtifactCorrupted: StatusCode.FAILED_PRECONDITION,
    errors.SchemaMismatch: StatusCode.FAILED_PRECONDITION,
    errors.PipelineInvalid: StatusCode.FAILED_PRECONDITION,
    errors.PrecomputedFileError: StatusCode.FAILED_PRECONDITION,
    errors.GraphError: StatusCode.INTERNAL,
    errors.LogDamaged: StatusCode.INTERNAL,
    errors.SnapshotError: StatusCode.FAILED_PRECONDITION,
    errors.SnapshotNotFound: StatusCode.NOT_FOUND,
    errors.SnapshotDamaged: StatusCode.FAILED_PRECONDITION,
    errors.SnapshotTooLarge: StatusCode.FAILED_PRECONDITION,
    errors.GraphStoreError: StatusCode.INTERNAL,
    errors.FeatureStoreError: StatusCode.INTERNAL,
    errors.FeatureStoreUnavailable: StatusCode.UNAVAILABLE,
    errors.FeatureGroupNotFound: StatusCode.FAILED_PRECONDITION,
    errors.FeatureSchemaMismatch: StatusCode.FAILED_PRECONDITION,
    errors.BatchError: StatusCode.INTERNAL,
    errors.RunMismatch: StatusCode.FAILED_PRECONDITION,
    errors.SinkError: StatusCode.INTERNAL,
    errors.BrokerError: StatusCode.INTERNAL,
    errors.BrokerUnavailable: StatusCode.UNAVAILABLE,
    errors.PackagingError: StatusCode.INTERNAL,
    errors.NotServable: StatusCode.INTERNAL,
    errors.NotSplittable: StatusCode.INTERNAL,
    errors.ParityError: StatusCode.INTERNAL,
    errors.ConfigError: StatusCode.INTERNAL,
    errors.RuntimeFailure: StatusCode.INTERNAL,
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
