"""Work that several callers may wait for, and that none of them can stop.

A caller that hangs up stops waiting; the work runs to its end. Callers that request the same work meanwhile
wait for the same outcome.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hopline.errors import Unavailable

log = logging.getLogger(__name__)

KeyT = TypeVar("KeyT", bound=Hashable)
ResultT = TypeVar("ResultT")


@dataclass(slots=True)
class _Work(Generic[ResultT]):
    """Work under way, and how many callers wait for it now."""

    task: asyncio.Task[ResultT]
    num_callers: int = 0


class SharedWork(Generic[KeyT, ResultT]):
    """Work that equal callers share; `what` names it in the log."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._running: dict[KeyT, _Work[ResultT]] = {}

    def __contains__(self, key: KeyT) -> bool:
        work = self._running.get(key)
        return work is not None and not work.task.done()

    async def result(self, key: KeyT, make: Callable[[], Coroutine[Any, Any, ResultT]]) -> ResultT:
        """The outcome of the work that runs under a key; begins it where none does.

        Args:
            key: equal for work that is the same.
            make: the work.

        Raises:
            Unavailable: the server ends, and so did the work.
            Exception: whatever the work raised, for each caller.
        """
        work = self._running.get(key)
        if work is None or work.task.done():
            work = self._running[key] = _Work(asyncio.ensure_future(make()))
            work.task.add_done_callback(functools.partial(self._ended, key, work))
        work.num_callers += 1
        try:
            # not the task itself: to cancel a caller would cancel the work of the others
            return await asyncio.shield(work.task)
        except asyncio.CancelledError:
            if work.task.cancelled():
                raise Unavailable("the server is shutting down") from None
            raise
        finally:
            work.num_callers -= 1

    def _ended(self, key: KeyT, work: _Work[ResultT], task: asyncio.Task[ResultT]) -> None:
        if self._running.get(key) is work:
            del self._running[key]
        if not task.cancelled():
            error = task.exception()
            if error is not None and not work.num_callers:
                log.error("%s, which no caller waits for any more, failed: %s", self._what, error)

    async def join(self) -> None:
        """Wait until all of it has ended."""
        while self._running:
            await asyncio.wait([work.task for work in self._running.values()])

    async def close(self) -> None:
        """Stop all of it."""
        for work in self._running.values():
            work.task.cancel()
        await self.join()
