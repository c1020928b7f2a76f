"""Work of recorders outside the event loop: a bounded queue and a thread that empties it.

The loop adds items and never waits; items beyond the bound are dropped and counted. The thread polls ten
times a second instead of being woken up: a wake-up costs more than a record.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from hopline.observe.metrics import Counter

log = logging.getLogger(__name__)

_LOOK_S = 0.1

T = TypeVar("T")


class BackgroundQueue(Generic[T]):
    """A bounded queue and its thread, which runs from now on.

    Args:
        name: name of the thread, also in log messages.
        work: called on the thread with pending items; may stop before the last one.
        room: most pending items, in the unit of `put`'s `count`.
        dropped: counts dropped items.
        close_s: how long `close` waits for pending items.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Iterator[T]], None],
        room: int,
        dropped: Counter,
        close_s: float = 5.0,
    ) -> None:
        self._name = name
        self._work = work
        self._room = room
        self._dropped = dropped
        self._close_s = close_s
        self._pending: deque[tuple[T, int]] = deque()
        # only the loop changes _num_put, only the thread _num_taken
        self._num_put = self._num_taken = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, item: T, count: int = 1) -> None:
        """Add an item that counts as `count` items; never waits."""
        if self._num_put - self._num_taken + count > self._room:
            self._dropped.value += count
            return
        self._num_put += count
        self._pending.append((item, count))

    async def close(self) -> None:
        """Process pending items for up to `close_s`."""
        self._stop.set()
        await asyncio.to_thread(self._thread.join, self._close_s)
        if self._thread.is_alive():
            log.warning("%s: stopped with %d pending", self._name, self._num_put - self._num_taken)

    def _run(self) -> None:
        stopping = False
        while not stopping:
            stopping = self._stop.wait(_LOOK_S)
            if not self._pending:
                continue
            try:
                self._work(self._take())
            except Exception:  # the boundary: nothing would restart this thread
                log.exception("%s: records are lost", self._name)

    def _take(self) -> Iterator[T]:
        while self._pending:
            item, count = self._pending.popleft()
            yield item
            self._num_taken += count
