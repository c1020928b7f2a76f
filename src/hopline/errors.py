"""Every error Hopline raises on purpose.

    HoplineError
    ├── BadRequest (ValueError)            the caller's request is wrong; nothing was done
    │   ├── NodeNotFound (LookupError)     ids that the graph does not have, all of them named
    │   ├── RequestTooLarge                more nodes, neighbours or bytes than the limits allow
    │   └── UnsupportedEncoding            a body in an encoding that is not undone here
    ├── ModelNotFound (LookupError)        no such model or version
    ├── ModelNotReady                      known, but not loaded (or failed to load: says why)
    ├── Overloaded                         refused before any work; carries `retry_after_s`
    │   └── RateLimited                    the caller or the model had its share of this second
    ├── Unauthenticated (PermissionError)  no key or token, or an invalid one
    ├── PermissionDenied (PermissionError) the caller is known, and lacks permission
    ├── Conflict                           a change that conflicts with another one (a second rollout)
    ├── Unavailable                        draining or shutting down; carries `retry_after_s`
    │   ├── RepositoryUnavailable (ConnectionError)  a model repository cannot be asked now
    │   ├── StoreUnavailable (ConnectionError)  the store of a fleet's state cannot be asked now
    │   ├── LogFull                    no room for a live graph's log; the change was not made
    │   ├── LogFailed                  the disk did not take a live graph's log; the change was not made
    │   └── WriterUnavailable (ConnectionError)  a live graph's writer cannot be asked now
    ├── DeadlineExceeded (TimeoutError)    the request's own deadline passed
    ├── ArtifactError (ValueError)         a model folder that cannot be used
    │   ├── ArtifactCorrupted              a file's sha256 is not the recorded one
    │   ├── SchemaMismatch                 the model does not fit the graph: each difference named
    │   ├── PipelineInvalid                a pipeline with a cycle, a mismatch or an unknown name
    │   └── PrecomputedFileError           a precomputed file: damaged, or of another model or snapshot
    ├── GraphError (ValueError)            a graph that cannot be built or opened
    │   └── LogDamaged                     a live graph's log or snapshot is not what was written
    ├── FeatureStoreError (RuntimeError)   a feature store refuses, or answers what cannot be used
    │   ├── FeatureStoreUnavailable        it cannot be asked now; worth another try
    │   ├── FeatureGroupNotFound (LookupError)  it has no such group
    │   ├── FeatureSchemaMismatch          its rows are not what the model was packaged for
    │   └── FeatureNotFound (LookupError)  a feature row is absent
    ├── BatchError (RuntimeError)          a batch run cannot start or continue; finished work is kept
    │   ├── RunMismatch (ValueError)       the work folder is of another run: each difference named
    │   └── SinkError                      writing batch results to their destination failed
    ├── BrokerError (RuntimeError)         a message broker refuses what is asked of it
    │   └── BrokerUnavailable              it cannot be reached now; worth another try
    ├── PackagingError (ValueError)        a model that cannot be packaged
    │   ├── NotServable                    an answer depends on more than a node's neighbourhood
    │   ├── NotSplittable                  cannot be split into row-wise stages (says where and why)
    │   └── ParityError                    packaged and PyG answers differ (says which stage)
    ├── ConfigError (ValueError)           a bad or unknown setting, with its path
    └── RuntimeFailure (RuntimeError)      the model's runtime failed on a valid request

Errors know nothing of HTTP or gRPC: each transport owns one table from class to status.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Characters of a caller's value that an error text quotes.
MAX_QUOTED = 200
#: Characters of an error text that is sent to a caller: some list names.
MAX_TEXT = 2000
#: Values in quotes, and words, of a text; whatever it is, each of its characters is read only once.
_PARTS = re.compile(
    r"""(?<!\w)(?:'[^'\\]*(?:\\.[^'\\]*)*'?|"[^"\\]*(?:\\.[^"\\]*)*"?|`[^`]*`?)|[^\s'"`]+""", re.DOTALL
)


def quoted(value: object) -> str:
    """A value that a caller sent, for an error text: its `repr`, cut after 200 characters.

    A value of any size or depth takes no longer than a short one.
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
    """An error text for a caller, from any source: its values are cut, and so is the whole text."""
    if len(text) <= MAX_QUOTED:
        return text
    if len(text) > 8 * MAX_TEXT:
        text = text[: 4 * MAX_TEXT] + text[-4 * MAX_TEXT :]
    return _cut(_PARTS.sub(lambda found: _cut(found[0], MAX_QUOTED), text), MAX_TEXT)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


class HoplineError(Exception):
    """Base of all errors. `code` is stable and machine-readable."""

    code = "internal"


class BadRequest(HoplineError, ValueError):
    """The request is wrong; the message names what was wrong and what would be right."""

    code = "bad_request"


class NodeNotFound(BadRequest, LookupError):
    """Node ids that the graph does not have.

    Attributes:
        missing: every absent external id of the request, in request order.
    """

    code = "node_not_found"

    def __init__(self, message: str, missing: Sequence[int | str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class RequestTooLarge(BadRequest):
    """More nodes, neighbours or bytes than one request may have."""

    code = "request_too_large"


class UnsupportedEncoding(BadRequest):
    """A body in an encoding that this server does not undo; the message lists those that it does."""

    code = "unsupported_encoding"


class ModelNotFound(HoplineError, LookupError):
    """No model or no version of that name; the message lists what there is."""

    code = "model_not_found"


class ModelNotReady(HoplineError):
    """The model is known but cannot take requests now; the message says why.

    Attributes:
        retry_after_s: seconds after which it may answer again.
    """

    code = "model_not_ready"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Overloaded(HoplineError):
    """Refused at admission, before any work was done.

    Attributes:
        retry_after_s: seconds after which a retry is likely to be admitted.
    """

    code = "overloaded"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RateLimited(Overloaded):
    """A client or a model has had the requests that it may have in this time; nothing was done."""

    code = "rate_limited"


class Unauthenticated(HoplineError, PermissionError):
    """The caller is unknown: no key or token, or one that is wrong, expired or forged."""

    code = "unauthenticated"


class PermissionDenied(HoplineError, PermissionError):
    """The caller is known and lacks a permission; the message names it."""

    code = "permission_denied"


class Conflict(HoplineError):
    """A change that does not fit the state things are in; the message says which state."""

    code = "conflict"


class Unavailable(HoplineError):
    """The server is draining; another one should be asked.

    Attributes:
        retry_after_s: seconds after which this address may answer again.
    """

    code = "unavailable"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RepositoryUnavailable(Unavailable, ConnectionError):
    """A model repository at a URL cannot be asked now; the message says what its driver said."""

    code = "repository_unavailable"


class StoreUnavailable(Unavailable, ConnectionError):
    """The store of a fleet's state cannot be asked now; the message says what became of the change."""

    code = "store_unavailable"


class LogFull(Unavailable):
    """The disk has no room for the log of a live graph; the change was not made, all before it is kept."""

    code = "log_full"


class LogFailed(Unavailable):
    """The disk failed to make a change of a live graph durable; the message says what became of it."""

    code = "log_failed"


class WriterUnavailable(Unavailable, ConnectionError):
    """The writer of a live graph cannot be asked now; the message says what became of the change."""

    code = "writer_unavailable"


class DeadlineExceeded(HoplineError, TimeoutError):
    """The request's deadline passed before its answer was ready."""

    code = "deadline_exceeded"


class ArtifactError(HoplineError, ValueError):
    """A model folder that cannot be used."""

    code = "artifact_error"


class ArtifactCorrupted(ArtifactError):
    """A file of the artifact is absent or its sha256 is not the recorded one."""

    code = "artifact_corrupted"


class SchemaMismatch(ArtifactError):
    """The model was packaged for another graph schema.

    Attributes:
        differences: one sentence for each difference.
    """

    code = "schema_mismatch"

    def __init__(self, message: str, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


class PipelineInvalid(ArtifactError):
    """A pipeline.toml that cannot be served: a cycle, a mismatch, an unknown name; all of it is named.

    Attributes:
        problems: one sentence for each thing that is wrong.
    """

    code = "pipeline_invalid"

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems)


class PrecomputedFileError(ArtifactError):
    """A precomputed file that cannot be used: damaged, cut off, or about another model or graph."""

    code = "precomputed_file_error"


class GraphError(HoplineError, ValueError):
    """A graph that cannot be built, opened or verified."""

    code = "graph_error"


class LogDamaged(GraphError):
    """The log or a snapshot of a live graph is not what was written; names the file and what to do."""

    code = "log_damaged"


class FeatureStoreError(HoplineError, RuntimeError):
    """A feature store refuses, or answers what cannot be used; asking again will not help."""

    code = "feature_store_error"


class FeatureStoreUnavailable(FeatureStoreError):
    """A feature store cannot be asked now: no connection, too slow, overloaded.

    Attributes:
        retry_after_s: seconds after which it may answer again.
    """

    code = "feature_store_unavailable"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class FeatureGroupNotFound(FeatureStoreError, LookupError):
    """A store has no feature group of that name; the message lists what there is."""

    code = "feature_group_not_found"


class FeatureSchemaMismatch(FeatureStoreError):
    """The rows of a store are not what the model was packaged for: each difference is named."""

    code = "feature_schema_mismatch"


class FeatureNotFound(FeatureStoreError, LookupError):
    """A feature row is absent (a short result is never returned)."""

    code = "feature_not_found"


class BatchError(HoplineError, RuntimeError):
    """A batch run cannot start or continue; finished work is kept, and the message says what to do."""

    code = "batch_error"


class RunMismatch(BatchError, ValueError):
    """The work folder belongs to another run.

    Attributes:
        differences: one sentence for each difference.
    """

    code = "run_mismatch"

    def __init__(self, message: str, differences: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.differences = tuple(differences)


class SinkError(BatchError):
    """Writing batch results to their destination failed."""

    code = "sink_error"


class BrokerError(HoplineError, RuntimeError):
    """A message broker refuses what is asked of it; asking again will not help."""

    code = "broker_error"


class BrokerUnavailable(BrokerError):
    """A message broker cannot be reached now.

    Attributes:
        retry_after_s: seconds after which it may answer again.
    """

    code = "broker_unavailable"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class PackagingError(HoplineError, ValueError):
    """A model that cannot be packaged."""

    code = "packaging_error"


class NotSplittable(PackagingError):
    """The module cannot be split into row-wise stages; says where and why."""

    code = "not_splittable"


class NotServable(PackagingError):
    """A node's answer depends on more than its neighbourhood; says on what, and what to do."""

    code = "not_servable"


class ParityError(PackagingError):
    """The packaged model and the PyG module disagree; says at which stage and by how much."""

    code = "parity_error"


class ConfigError(HoplineError, ValueError):
    """A bad or unknown setting; the message starts with its path."""

    code = "config_error"


class RuntimeFailure(HoplineError, RuntimeError):
    """The model's runtime failed on a request that was valid."""

    code = "runtime_failure"
