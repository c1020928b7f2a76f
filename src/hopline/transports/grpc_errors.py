"""gRPC's table from error class to status code. It covers all classes of `hopline.errors`."""

from __future__ import annotations

import enum
from collections.abc import Mapping

from hopline import errors


class StatusCode(enum.IntEnum):
    """The 17 status codes of gRPC, by the names and numbers of its specification (doc/statuscodes.md)."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class CallError(Exception):
    """A failure with a status that no error of Hopline has.

    Attributes:
        code: the status code.
        name: the stable code, as over HTTP.
    """

    def __init__(self, code: StatusCode, text: str, name: str) -> None:
        super().__init__(text)
        self.code = code
        self.name = name


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
        return [("hopline-error", error.name)]
    trailers = [("hopline-error", error.code)]
    if isinstance(error, _RETRIED):
        trailers.append(("retry-after-ms", str(int(error.retry_after_s * 1000))))
    return trailers


_RETRIED = (errors.Overloaded, errors.Unavailable, errors.ModelNotReady, errors.FeatureStoreUnavailable)


def grpc_code(
    error: errors.HoplineError, codes: Mapping[type[errors.HoplineError], StatusCode] = GRPC_CODE
) -> StatusCode:
    """Return the code of an error; a subclass without its own line has its parent's code.

    Args:
        codes: by class; an application may add its own errors.
    """
    return next(codes[cls] for cls in type(error).__mro__ if cls in codes)
