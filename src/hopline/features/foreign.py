"""Errors of third-party stores: which of them are worth a retry.

Feast and PyG have many backends, each with its own driver's errors. Common to them are the builtins, and
the usual names of connection errors.
"""

from __future__ import annotations

from hopline.errors import FeatureStoreError, FeatureStoreUnavailable

_LONGEST = 500
_ENDINGS = (
    "ConnectError",
    "ConnectionError",
    "InterfaceError",
    "OperationalError",
    "ServiceUnavailable",
    "Throttled",
    "Timeout",
    "TimeoutError",
    "TooManyRequests",
    "Unavailable",
)
#: OSErrors that remain until a file or a permission is corrected.
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def translated(error: Exception, what: str) -> FeatureStoreError:
    """Return the error to raise instead of `error`; `what` is the action, "Feast: reading 'account'"."""
    if isinstance(error, FeatureStoreError):
        return error
    # Only the first line: some texts are very long (torch lists all of its backends).
    text = str(error).partition("\n")[0][:_LONGEST]
    message = f"{what}: {type(error).__name__}: {text}"
    return FeatureStoreUnavailable(message) if is_transient(error) else FeatureStoreError(message)


def is_transient(error: BaseException) -> bool:
    """Return whether the error, or one of its causes, looks like a connection error."""
    seen: BaseException | None = error
    while seen is not None:
        if _is_transient_itself(seen):
            return True
        seen = seen.__cause__
    return False


def _is_transient_itself(error: BaseException) -> bool:
    if isinstance(error, _LASTING):
        return False
    if isinstance(error, OSError):
        return True
    # SQLite has one class for "database is locked" and for a missing table.
    if "no such" in str(error):
        return False
    return any(cls.__name__.endswith(_ENDINGS) for cls in type(error).__mro__)
