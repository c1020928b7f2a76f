"""Errors of stores that are other people's code: which of them are worth another try.

Feast and PyG stand before any number of backends, and each raises its own driver's errors. What they have
in common is the builtins, and the names that drivers give to errors of their connections.
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
#: OSErrors that stay until a file or a permission is corrected.
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def translated(error: Exception, what: str) -> FeatureStoreError:
    """The error to raise in place of `error`; `what` was being done, "Feast: reading 'account'"."""
    if isinstance(error, FeatureStoreError):
        return error
    # Only the first line: some are pages long (torch lists all of its backends).
    said = str(error).partition("\n")[0][:_LONGEST]
    told = f"{what}: {type(error).__name__}: {said}"
    return FeatureStoreUnavailable(told) if is_transient(error) else FeatureStoreError(told)


def is_transient(error: BaseException) -> bool:
    """Whether it looks like trouble of a connection: of the error itself, or of what it was raised from."""
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
