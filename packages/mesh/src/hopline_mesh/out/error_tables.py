"""HTTP status and gRPC code of each error class of a watch, including those of `hopline.errors`."""

from __future__ import annotations

from hopline.errors import HoplineError
from hopline.transports.grpc_errors import GRPC_CODE as _GRPC_CODE
from hopline.transports.http_errors import HTTP_STATUS as _HTTP_STATUS
from hopline_mesh import errors
from turnserve.grpc.status import StatusCode

_OWN = {
    errors.MeshError: (500, StatusCode.INTERNAL),
    errors.SnapshotInvalid: (400, StatusCode.INVALID_ARGUMENT),
    errors.SourceUnavailable: (503, StatusCode.UNAVAILABLE),
    errors.QueryFailed: (502, StatusCode.INTERNAL),
    errors.IncidentNotFound: (404, StatusCode.NOT_FOUND),
    errors.StateDamaged: (500, StatusCode.INTERNAL),
}
HTTP_STATUS: dict[type[HoplineError], int] = _HTTP_STATUS | {kind: row[0] for kind, row in _OWN.items()}
GRPC_CODE: dict[type[HoplineError], StatusCode] = _GRPC_CODE | {kind: row[1] for kind, row in _OWN.items()}

#: Settings of the server in texts of its parts -> those of the watch; the size of bodies is none of them.
_SETTINGS = {
    "auth.clients_file": "clients_file",
    "tls.cert_file": "cert_file",
    "tls.key_file": "key_file",
    " (server.max_body_bytes)": "",
}


def own_text(text: str) -> str:
    """Return a text of the server's parts with the names of the watch's settings."""
    for name, own in _SETTINGS.items():
        text = text.replace(name, own)
    return text
