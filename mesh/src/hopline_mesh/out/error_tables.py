"""HTTP status and gRPC code of each error class of a watch, including those of `hopline.errors`."""

from __future__ import annotations

from hopline.errors import HoplineError
from hopline.transports.grpc_errors import GRPC_CODE as _GRPC_CODE
from hopline.transports.grpc_status import StatusCode
from hopline.transports.http_errors import HTTP_STATUS as _HTTP_STATUS
from hopline_mesh import errors

HTTP_STATUS: dict[type[HoplineError], int] = {
    **_HTTP_STATUS,
    errors.MeshError: 500,
    errors.SnapshotInvalid: 400,
    errors.SourceUnavailable: 503,
    errors.QueryFailed: 502,
    errors.IncidentNotFound: 404,
    errors.StateDamaged: 500,
}

GRPC_CODE: dict[type[HoplineError], StatusCode] = {
    **_GRPC_CODE,
    errors.MeshError: StatusCode.INTERNAL,
    errors.SnapshotInvalid: StatusCode.INVALID_ARGUMENT,
    errors.SourceUnavailable: StatusCode.UNAVAILABLE,
    errors.QueryFailed: StatusCode.INTERNAL,
    errors.IncidentNotFound: StatusCode.NOT_FOUND,
    errors.StateDamaged: StatusCode.INTERNAL,
}
