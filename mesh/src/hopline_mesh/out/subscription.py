"""Verdicts for one reader that may be slower than they come."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from hopline_mesh.incident import Verdict


class Subscription:
    """A short queue of verdicts; where it is full, the oldest one makes room.

    Args:
        depth: verdicts that wait at most.
        leave: called once, when nobody reads any more.
    """

    def __init__(self, depth: int, leave: Callable[[Subscription], object]) -> None:
        self._waiting: deque[Verdict] = deque(maxlen=depth)
        self._came = asyncio.Event()
        self._dropped = 0
        self._leave = leave

    def put(self, verdict: Verdict) -> None:
        """Hand a verdict in; never waits."""
        if len(self._waiting) == self._waiting.maxlen:
            self._dropped += 1
        self._waiting.append(verdict)
        self._came.set()

    async def get(self) -> tuple[Verdict, int]:
        """The oldest verdict that waits, and how many were dropped before it since the last call."""
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        dropped, self._dropped = self._dropped, 0
        return self._waiting.popleft(), dropped

    def close(self) -> None:
        """Read no more."""
        self._leave(self)
