"""The errors that only a mesh watch raises. The command line prints each `HoplineError` as one line.

    MeshError                          a watch cannot start or continue
    ├── SnapshotInvalid (ValueError)   a snapshot of a mesh, or a recording, is invalid
    ├── SourceUnavailable (ConnectionError)  Prometheus, Kubernetes or Alertmanager is unavailable
    ├── QueryFailed                    one of them refuses a request, or sends an invalid response
    ├── IncidentNotFound (LookupError) no incident with this id is stored
    └── StateDamaged (ValueError)      the saved state is damaged, or of another version

Their HTTP statuses and gRPC codes are in `out/error_tables.py`.
"""

from hopline.errors import HoplineError


class MeshError(HoplineError):
    """A watch of a mesh cannot start or continue."""

    code = "mesh_error"


class SnapshotInvalid(MeshError, ValueError):
    """A snapshot of a mesh, or a recording, is invalid; the message says where and why."""

    code = "snapshot_invalid"


class SourceUnavailable(MeshError, ConnectionError):
    """Prometheus, Kubernetes or Alertmanager is unavailable now; retry later."""

    code = "source_unavailable"


class QueryFailed(MeshError):
    """Prometheus, Kubernetes or Alertmanager refuses a request, or sends an invalid response."""

    code = "query_failed"


class IncidentNotFound(MeshError, LookupError):
    """No incident has this id, or it ended so long ago that it is not stored any more."""

    code = "incident_not_found"


class StateDamaged(MeshError, ValueError):
    """The saved state of a watch is damaged, or of another version; the message names the file."""

    code = "state_damaged"
