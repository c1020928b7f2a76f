"""Every error Hopline raises on purpose.

    HoplineError
    ├── BadRequest (ValueError)            the request is wrong; nothing was done
    │   ├── NodeNotFound (LookupError)     ids that are not in the graph; the message lists all
    │   │   └── EdgeNotFound               as NodeNotFound, for ids of edges
    │   ├── RequestTooLarge                more nodes, neighbours or bytes than the limits allow
    │   └── UnsupportedEncoding            the Content-Encoding of the body is not supported
    ├── ModelNotFound (LookupError)        no such model or version
    ├── ModelNotReady                      known, but not loaded, or failed to load (with the reason)
    ├── Overloaded                         refused before any work; has `retry_after_s`
    │   └── RateLimited                    a rate limit of the client or the model is reached
    ├── Unauthenticated (PermissionError)  no API key or token, or an invalid one
    ├── PermissionDenied (PermissionError) the client is known but not allowed to do this
    ├── Conflict                           a change that the current state does not allow (a second rollout)
    ├── Unavailable                        draining or shutting down; has `retry_after_s`
    │   ├── IssuerUnavailable (ConnectionError)  the keys of a token's issuer are not known yet
    │   ├── RepositoryUnavailable (ConnectionError)  a model repository does not respond now
    │   ├── SnapshotUnavailable (ConnectionError)  the address of snapshots does not respond now
    │   ├── StoreUnavailable (ConnectionError)  the store of a fleet's state does not respond now
    │   ├── GraphStoreUnavailable (ConnectionError)  the store of a graph's edges does not respond now
    │   ├── LogFull                    no disk space for a live graph's log; the change was not made
    │   ├── LogFailed                  writing a live graph's log failed; the change was not made
    │   ├── GraphBehind                the graph is older than the request needs; ask another host
    │   └── WriterUnavailable (ConnectionError)  a live graph's writer does not respond now
    ├── DeadlineExceeded (TimeoutError)    the request's own deadline passed
    ├── ArtifactError (ValueError)         a model folder that cannot be used
    │   ├── ArtifactCorrupted              a file's sha256 is not the recorded one
    │   ├── SchemaMismatch                 the model does not fit the graph: lists each difference
    │   ├── PipelineInvalid                a pipeline with a cycle, a mismatch or an unknown name
    │   └── PrecomputedFileError           damaged precomputed answers, or of another model or snapshot
    ├── GraphError (ValueError)            a graph that cannot be built or opened
    │   ├── LogDamaged                     a live graph's log or snapshot is damaged
    │   ├── SnapshotError                  a snapshot at an address cannot be used
    │   │   ├── SnapshotNotFound (LookupError)  the address has no such snapshot
    │   │   ├── SnapshotDamaged            a file is missing, or is not what the manifest says
    │   │   └── SnapshotTooLarge           the snapshot does not fit on this host's disk
    │   └── GraphStoreError                a graph store has no such graph, or its edges are damaged
    ├── FeatureStoreError (RuntimeError)   a feature store refuses a read, or its response is unusable
    │   ├── FeatureStoreUnavailable        it does not respond now; a retry may succeed
    │   ├── FeatureGroupNotFound (LookupError)  it does not have the group
    │   └── FeatureSchemaMismatch          its rows are not what the model was packaged for
    ├── BatchError (RuntimeError)          a batch run cannot start or continue; finished work is saved
    │   ├── RunMismatch (ValueError)       the work folder belongs to another run: lists each difference
    │   └── SinkError                      writing batch results to their destination failed
    ├── BrokerError (RuntimeError)         a message broker refuses a request
    │   └── BrokerUnavailable              it cannot be reached now; a retry may succeed
    ├── PackagingError (ValueError)        a model that cannot be packaged
    │   ├── NotServable                    a node's answer depends on more than its neighbourhood
    │   ├── NotSplittable                  cannot be split into row-wise stages (says where and why)
    │   └── ParityError                    packaged and PyG answers differ (says at which stage)
    ├── ConfigError (ValueError)           a bad or unknown setting, with its path
    └── RuntimeFailure (RuntimeError)      the model's runtime failed on a valid request

Errors do not depend on HTTP or gRPC: each transport has a table. This file is long because it has all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

#: Longest quotation of a caller's value in an error text, characters.
MAX_QUOTED = 200
#: Longest error text that is sent to a caller, characters (some list names).
MAX_TEXT = 2000
#: Quoted values and words of a text. Linear time: each character is read once.
_PARTS = re.compile(
    r"""(?<!\w)(?:'[^'\\]*(?:\\.[^'\\]*)*'?|"[^"\\]*(?:\\.[^"\\]*)*"?|`[^`]*`?)|[^\s'"`]+""", re.DOTALL
)


def quoted(value: object) -> str:
    """Return the `repr` of a caller's value for an error text, cut after 200 characters.

    The time does not depend on the size or depth of the value.
    """
    if isinstance(value, str | bytes | bytearray | memoryview):
        if len(value) <= MAX_QUOTED:
            return _cut(repr(value), MAX_QUOTED)
        unit = "characters" if isinstance(value, str) else "bytes"
        return f"{_cut(repr(value[:MAX_QUOTED]), MAX_QUOTED - 40)} ({len(value)} {unit})"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, list | tuple) and len(value) <= 20:
        items = (quoted(item) if isinstance(item, str | bytes | int | float) else "…" for item in value)
        return _cut(f"[{', '.join(items)}]", MAX_QUOTED)
    if isinstance(value, list | tuple | dict):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)} values"
    return _cut(repr(value), MAX_QUOTED)


def public_text(text: str) -> str:
    """Shorten an error text, and each value in it, before it is sent to a caller."""
    if len(text) <= MAX_QUOTED:
        return text
    text = text if len(text) <= 8 * MAX_TEXT else text[: 4 * MAX_TEXT] + text[-4 * MAX_TEXT :]
    return _cut(short_values(text), MAX_TEXT)


def short_values(text: str) -> str:
    """Shorten each value in an error text, such as a number of 5,000 digits; keeps the number of lines."""
    return _PARTS.sub(lambda found: _cut(found[0], MAX_QUOTED), text)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


class HoplineError(Exception):
    """Base of all errors.

    Attributes:
        code: stable and machine-readable.
        may_pass: True if the same call may succeed later although nothing was changed.
    """

    code = "internal"
    may_pass = False


class _MayPass(Exception):
    """An error whose cause may soon be gone.

    Attributes:
        retry_after_s: seconds after which a retry is likely to succeed.
    """

    may_pass = True

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class _Differs(Exception):
    """An error about two descriptions that differ.

    Attributes:
        differences: one sentence for each difference.
    """

    def __init__(self, message: str, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


class BadRequest(HoplineError, ValueError):
    """The request is wrong; the message says what is wrong and what would be right.

    Args:
        message: what is wrong.
        param: the field or parameter that is; None if it is not one, or not known.
    """

    code = "bad_request"

    def __init__(self, message: str = "", param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class NodeNotFound(BadRequest, LookupError):
    """Node ids that are not in the graph.

    Attributes:
        missing: every missing external id of the request, in request order.
    """

    code = "node_not_found"

    def __init__(self, message: str, missing: Sequence[int | str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class EdgeNotFound(NodeNotFound):
    """Edge ids that are not in the graph; with `as_of`, also those of later edges."""

    code = "edge_not_found"


class RequestTooLarge(BadRequest):
    """More nodes, neighbours or bytes than the limits of one request."""

    code = "request_too_large"


class UnsupportedEncoding(BadRequest):
    """The Content-Encoding of a body is not supported; the message lists the supported ones."""

    code = "unsupported_encoding"


class ModelNotFound(HoplineError, LookupError):
    """No model or version has that name; the message lists the existing ones.

    Args:
        message: what was not found.
        models: names of existing models, which not every caller may know; None for none.

    Attributes:
        brief: the message without the names of models.
    """

    code = "model_not_found"

    def __init__(self, message: str, models: Iterable[str] | None = None) -> None:
        self.brief = message
        if models is not None:
            message = f"{message}; there are: {', '.join(models) or 'none'}"
        super().__init__(message)


class ModelNotReady(_MayPass, HoplineError):
    """The model is known but cannot take requests now; the message says why."""

    code = "model_not_ready"


class Overloaded(_MayPass, HoplineError):
    """Refused at admission, before any work was done."""

    code = "overloaded"


class RateLimited(Overloaded):
    """A rate limit of the client or the model is reached; nothing was done.

    Attributes:
        per_s: requests a second that this process accepts for the model; 0 if another limit is reached.
    """

    code = "rate_limited"

    def __init__(self, message: str, retry_after_s: float = 1.0, per_s: float = 0.0) -> None:
        super().__init__(message, retry_after_s)
        self.per_s = per_s


class Unauthenticated(HoplineError, PermissionError):
    """The client is not authenticated: no key or token, or one that is wrong, expired or forged."""

    code = "unauthenticated"


class PermissionDenied(HoplineError, PermissionError):
    """The client is known but is not allowed to do this; the message names the missing permission."""

    code = "permission_denied"


class Conflict(HoplineError):
    """The current state does not allow this change; the message names the state."""

    code = "conflict"


class Unavailable(_MayPass, HoplineError):
    """The server is draining; send the request to another server."""

    code = "unavailable"


class IssuerUnavailable(Unavailable, ConnectionError):
    """The keys of a token's issuer are not known yet; retry."""

    code = "issuer_unavailable"


class RepositoryUnavailable(Unavailable, ConnectionError):
    """A model repository at a URL does not respond now; the message contains the driver's error."""

    code = "repository_unavailable"


class SnapshotUnavailable(Unavailable, ConnectionError):
    """The address of snapshots does not respond now, or refuses access; the message says which."""

    code = "snapshot_unavailable"


class StoreUnavailable(Unavailable, ConnectionError):
    """The store of a fleet's state does not respond now; the message says what happened to the change."""

    code = "store_unavailable"


class GraphStoreUnavailable(Unavailable, ConnectionError):
    """The store of a graph's edges does not respond now; the message says why. No edge is ever left out."""

    code = "graph_store_unavailable"


class LogFull(Unavailable):
    """The disk has no space for a live graph's log; the change was not made, earlier ones are saved."""

    code = "log_full"


class LogFailed(Unavailable):
    """A change of a live graph could not be made durable; the message says what happened to the change."""

    code = "log_failed"


class WriterUnavailable(Unavailable, ConnectionError):
    """The writer of a live graph does not respond now; the message says what happened to the change."""

    code = "writer_unavailable"


class GraphBehind(Unavailable):
    """The graph of this server is older than the version that the request needs; ask another server."""

    code = "graph_behind"


class DeadlineExceeded(HoplineError, TimeoutError):
    """The request's deadline passed before its answer was ready."""

    code = "deadline_exceeded"
    may_pass = True

    def __init__(self, message: str = "the request's deadline passed before its answer was ready") -> None:
        super().__init__(message)


class ArtifactError(HoplineError, ValueError):
    """A model folder that cannot be used."""

    code = "artifact_error"


class ArtifactCorrupted(ArtifactError):
    """A file of the artifact is missing or has another sha256, or `model.json` another digest."""

    code = "artifact_corrupted"


class SchemaMismatch(_Differs, ArtifactError):
    """The model was packaged for another graph schema."""

    code = "schema_mismatch"


class PipelineInvalid(ArtifactError):
    """A pipeline.toml that cannot be served: a cycle, a mismatch or an unknown name; the message lists all.

    Attributes:
        problems: one sentence for each problem.
    """

    code = "pipeline_invalid"

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class PrecomputedFileError(ArtifactError):
    """A precomputed file that cannot be used: damaged, truncated, or of another model or graph."""

    code = "precomputed_file_error"


class GraphError(HoplineError, ValueError):
    """A graph that cannot be built, opened or verified."""

    code = "graph_error"


class LogDamaged(GraphError):
    """The log or a snapshot of a live graph is damaged; the message names the file and what to do."""

    code = "log_damaged"


class SnapshotError(GraphError):
    """A snapshot at an address that cannot be used."""

    code = "snapshot_error"


class SnapshotNotFound(SnapshotError, LookupError):
    """The address has no such snapshot, or no pointer to one."""

    code = "snapshot_not_found"


class SnapshotDamaged(SnapshotError):
    """A file of a snapshot is missing, truncated or changed; the message names the file."""

    code = "snapshot_damaged"


class SnapshotTooLarge(SnapshotError):
    """A snapshot does not fit on this host's disk; the message gives the numbers."""

    code = "snapshot_too_large"


class GraphStoreError(GraphError):
    """A graph store does not have the graph, or what it has is damaged; a retry will not help."""

    code = "graph_store_error"


class FeatureStoreError(HoplineError, RuntimeError):
    """A feature store refuses a read, or its response is unusable; a retry will not help."""

    code = "feature_store_error"


class FeatureStoreUnavailable(_MayPass, FeatureStoreError):
    """A feature store does not respond now: no connection, too slow, or overloaded."""

    code = "feature_store_unavailable"


class FeatureGroupNotFound(FeatureStoreError, LookupError):
    """A feature store has no feature group of that name; the message lists the existing groups."""

    code = "feature_group_not_found"


class FeatureSchemaMismatch(FeatureStoreError):
    """The rows of a feature store do not fit the packaged model; the message lists each difference."""

    code = "feature_schema_mismatch"


class BatchError(HoplineError, RuntimeError):
    """A batch run cannot start or continue; finished work is saved, and the message says what to do."""

    code = "batch_error"


class RunMismatch(_Differs, BatchError, ValueError):
    """The work folder belongs to another run."""

    code = "run_mismatch"


class SinkError(BatchError):
    """Writing the results of a batch run to their destination failed."""

    code = "sink_error"


class BrokerError(HoplineError, RuntimeError):
    """A message broker refuses a request; a retry will not help."""

    code = "broker_error"


class BrokerUnavailable(_MayPass, BrokerError):
    """A message broker cannot be reached now."""

    code = "broker_unavailable"


class PackagingError(HoplineError, ValueError):
    """A model that cannot be packaged."""

    code = "packaging_error"


class NotSplittable(PackagingError):
    """The module cannot be split into row-wise stages; the message says where and why."""

    code = "not_splittable"


class NotServable(PackagingError):
    """A node's answer depends on more than its neighbourhood; the message says on what, and what to do."""

    code = "not_servable"


class ParityError(PackagingError):
    """The packaged model and the PyG module disagree; the message says where and by how much."""

    code = "parity_error"


class ConfigError(HoplineError, ValueError):
    """A bad or unknown setting; the message starts with its path."""

    code = "config_error"


class RuntimeFailure(HoplineError, RuntimeError):
    """The model's runtime failed on a request that was valid."""

    code = "runtime_failure"


_ALL = [each for each in globals().values() if isinstance(each, type) and issubclass(each, HoplineError)]
#: Code -> class, of the classes in this file: subclasses of other packages are none of a server's answers.
BY_CODE: dict[str, type[HoplineError]] = {each.code: each for each in _ALL}
