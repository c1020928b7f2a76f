"""Client libraries of third-party stores: separate threads, and which of their errors are worth a retry.

Clients that block have threads per store: asyncio's threads are shared by all code, and one hanging store
would block them all. Feast and PyG have many backends, each with its own driver's errors. Common to them
are the builtins, and the usual names of connection errors.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopline.errors import ConfigError, FeatureStoreError, FeatureStoreUnavailable
from hopline.features.base import MAX_PROBLEMS, FeatureGroup, FeatureStore, FetchedRows
from hopline.features.ids import listed
from hopline.types import ExternalIds, FloatArray, IdArray

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


class ClientStore(FeatureStore):
    """A store over a client library: its calls block, and its errors are translated.

    Args:
        name: of the store in errors.
        setting: setting of the URL, for errors.
        num_threads: threads that call the library.
    """

    def __init__(self, name: str, setting: str, num_threads: int) -> None:
        self._name = name
        self._setting = setting
        self._threads = Threads(name, self.kind, num_threads)

    async def open(self) -> None:
        """Connect in a thread, and try to read.

        Raises: ConfigError: the library is missing, or the store cannot be used.
        """
        self._threads.open()
        try:
            await self._run("opening", self._connect)
            await self._run("a first read", self._probe)
        except (FeatureStoreError, ConfigError) as error:
            await self.close()
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{self._setting}: {error}") from error

    @abstractmethod
    def _connect(self) -> None:
        """Make the library's client."""

    @abstractmethod
    def _probe(self) -> object:
        """Read something."""

    async def _run(self, doing: str, function: Callable[..., _T], *args: Any) -> _T:
        """Call `function` in a thread, and translate the errors of the library and its backends."""
        try:
            return await self._threads.run(partial(function, *args))
        except (FeatureStoreError, ConfigError):
            raise
        except Exception as error:  # errors of any driver
            raise translated(error, f"{self._name}: {doing}") from error


class RowsById:
    """Rows of distinct ids, in the order in which a library was asked for them.

    Args:
        group: their schema.
        num_rows: number of ids.

    Attributes:
        values: float32 [n, dim]. found: bool [n].
        problems: row -> why it cannot be used; such a row counts as not found.
    """

    def __init__(self, group: FeatureGroup, num_rows: int) -> None:
        self.group = group
        self.values: FloatArray = np.zeros((num_rows, group.dim), np.float32)
        self.found: NDArray[np.bool_] = np.zeros(num_rows, np.bool_)
        self.problems: dict[int, str] = {}

    def answer(self, where: IdArray, ids: ExternalIds) -> FetchedRows:
        """Return the rows `where`, int64 [m], -1 for none, for `ids`."""
        self.found[list(self.problems)] = False
        found = where >= 0
        found[found] = self.found[where[found]]
        values = np.zeros((len(where), self.group.dim), np.float32)
        values[found] = self.values[where[found]]
        invalid = [
            (id, row) for id, row in zip(listed(ids), where.tolist(), strict=True) if row in self.problems
        ]
        problems = tuple(
            f"{self.group.name} {id}: {self.problems[row]}" for id, row in invalid[:MAX_PROBLEMS]
        )
        return FetchedRows(values, found, problems, len(invalid))


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
    """True if the error, or one of its causes, looks like a connection error."""
    if isinstance(error, OSError):
        transient = not isinstance(error, _LASTING)
    else:  # SQLite has one class for "database is locked" and for a missing table.
        named = any(cls.__name__.endswith(_ENDINGS) for cls in type(error).__mro__)
        transient = named and "no such" not in str(error)
    return transient or (error.__cause__ is not None and is_transient(error.__cause__))
