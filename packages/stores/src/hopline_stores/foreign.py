"""Client libraries of third-party stores: separate threads, and which of their errors are worth a retry.

Clients that block have threads per store: asyncio's threads are shared by all code, and one hanging store
would block them all. Feast and PyG have many backends, each with its own driver's errors. Common to them
are the builtins, and the usual names of connection errors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hopline.errors import FeatureStoreError, FeatureStoreUnavailable

_T = TypeVar("_T")


class Threads:
    """A thread pool that is opened and closed with its store.

    Args:
        store: name of the store in errors.
        kind: the threads are named "hopline-<kind>".
        count: number of threads.
    """

    def __init__(self, store: str, kind: str, count: int) -> None:
        self._store = store
        self._kind = kind
        self._count = count
        self._pool: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Open the pool; threads start with the first calls."""
        self._pool = ThreadPoolExecutor(self._count, f"hopline-{self._kind}")

    def close(self) -> None:
        """Drop waiting calls; running calls finish, but are not waited for."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[[], _T]) -> _T:
        """Call `function` in a thread. A call that is cancelled while it waits for a thread never starts.

        Raises:
            FeatureStoreError: the pool is not open.
            FeatureStoreUnavailable: it was closed before a thread was free.
        """
        if self._pool is None:
            raise FeatureStoreError(f"{self._store} is not open")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, function)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._pool is None and task is not None and not task.cancelling():
                raise FeatureStoreUnavailable(f"{self._store} was closed") from None
            raise


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
