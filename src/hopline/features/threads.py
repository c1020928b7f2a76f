"""Threads of a store's own, for clients that block.

Not asyncio's: those are shared with all else, and one store that hangs would hold them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hopline.errors import FeatureStoreError, FeatureStoreUnavailable

_T = TypeVar("_T")


class Threads:
    """A pool that is opened and closed with its store.

    Args:
        store: what errors call the store.
        kind: what the threads are called, "hopline-<kind>".
        count: of threads.
    """

    def __init__(self, store: str, kind: str, count: int) -> None:
        self._store = store
        self._kind = kind
        self._count = count
        self._pool: ThreadPoolExecutor | None = None

    def open(self) -> None:
        """Threads start when there is something to do."""
        self._pool = ThreadPoolExecutor(self._count, f"hopline-{self._kind}")

    def close(self) -> None:
        """Drop the calls that wait. Running calls finish, and no caller waits for them."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    async def run(self, function: Callable[[], _T]) -> _T:
        """Call `function` in a thread. A caller that is cancelled before a thread is free never calls.

        Raises:
            FeatureStoreError: the pool is not open.
            FeatureStoreUnavailable: it was closed before there was a thread.
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
