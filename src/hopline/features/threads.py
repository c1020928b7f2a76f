"""Separate threads of a store, for clients that block.

asyncio's threads are shared by all code, and one hanging store would block them all.
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
