"""Every error that only a mesh watch raises. The command line says each in one line: a `HoplineError`.

    MeshError                          watching a mesh cannot start or go on
    ├── SnapshotInvalid (ValueError)   an interval of a mesh, or a folder of them, is wrong
    ├── SourceUnavailable (ConnectionError)  Prometheus, Kubernetes or Alertmanager cannot be asked now
    ├── QueryFailed                    one of them refuses what is asked, or answers what cannot be read
    ├── IncidentNotFound (LookupError) no incident of this id is kept
    └── StateDamaged (ValueError)      kept state of a watch is torn, or of another version

Their HTTP statuses and gRPC codes are in `out/error_tables.py`.
"""

from __future__ import annotations

from hopline.errors import HoplineError


class MeshError(HoplineError):
    """Watching a mesh cannot start or go on."""

    code = "mesh_error"


class SnapshotInvalid(MeshError, ValueError):
    """An interval of a mesh, or a folder of them, is not what it should be; says where and how."""

    code = "snapshot_invalid"


class SourceUnavailable(MeshError, ConnectionError):
    """Prometheus, Kubernetes or Alertmanager cannot be asked now; worth another try."""

    code = "source_unavailable"


class QueryFailed(MeshError):
    """Prometheus, Kubernetes or Alertmanager refuses what is asked, or answers what cannot be read."""

    code = "query_failed"


class IncidentNotFound(MeshError, LookupError):
    """No incident has this id, or it ended so long ago that it is not kept any more."""

    code = "incident_not_found"


class StateDamaged(MeshError, ValueError):
    """Kept state of a watch is torn, or of another version; says which file."""

    code = "state_damaged"
