"""A queue of verdicts for one reader, which may be slow."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from hopline_mesh.incident import Verdict


class Subscription:
    """A bounded queue of verdicts that drops the oldest one when it is full.

    Args:
        depth: maximum number of waiting verdicts.
        leave: called once, when the subscription is closed.
    """

    def __init__(self, depth: int, leave: Callable[[Subscription], object]) -> None:
        self._waiting: deque[Verdict] = deque(maxlen=depth)
        self._came = asyncio.Event()
        self._dropped = 0
        self._leave = leave

    def put(self, verdict: Verdict) -> None:
        """Add a verdict; never waits."""
        if len(self._waiting) == self._waiting.maxlen:
            self._dropped += 1
        self._waiting.append(verdict)
        self._came.set()

    async def get(self) -> tuple[Verdict, int]:
        """Return the oldest waiting verdict, and the number that was dropped since the last call."""
        while not self._waiting:
            self._came.clear()
            await self._came.wait()
        dropped, self._dropped = self._dropped, 0
        return self._waiting.popleft(), dropped

    def close(self) -> None:
        """End the subscription."""
        self._leave(self)
