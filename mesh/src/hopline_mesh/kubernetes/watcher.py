"""All that is watched of a cluster, from the first list to the last stream; what the watch loop asks.

Without a cluster, or where it refuses, the watch of the mesh goes on and says what is missing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from hopline_mesh.changes import Context
from hopline_mesh.kubernetes.api import Api, Timeouts
from hopline_mesh.kubernetes.credentials import Credentials
from hopline_mesh.kubernetes.feed import ChangeFeed
from hopline_mesh.kubernetes.reflector import Pace, Reflector, Tally
from hopline_mesh.kubernetes.resources import NODE_EVENTS, RESOURCES
from hopline_mesh.kubernetes.scope import Scope
from hopline_mesh.snapshot import Gap


class KubernetesWatch:
    """Watches a cluster while it is open (`async with`).

    Args:
        credentials: None watches nothing, and `gaps` says why.
        feed: keeps what is heard; None makes one.
        scope: namespaces that are watched. Where all are given by name, the account needs rights in these
            alone.
        absent: why there are no credentials, for people; "" where that is as it was wanted.
    """

    def __init__(
        self,
        credentials: Credentials | None,
        feed: ChangeFeed | None = None,
        *,
        scope: Scope | None = None,
        absent: str = "",
        pace: Pace | None = None,
        timeouts: Timeouts | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.feed = feed or ChangeFeed()
        self._absent = absent
        self._clock = clock
        self._api = Api(credentials, timeouts) if credentials is not None else None
        self._reflectors: list[Reflector] = []
        self._tasks: list[asyncio.Task[None]] = []
        if self._api is None:
            return
        scope, pace = scope or Scope(), pace or Pace()
        for resource in RESOURCES:
            for namespace in scope.places():
                if namespace is not None and resource is NODE_EVENTS:
                    continue  # Machines are in no namespace that somebody would name.
                self._reflectors.append(
                    Reflector(self._api, resource, namespace, scope, self.feed, pace, clock=clock)
                )

    async def __aenter__(self) -> Self:
        self._tasks = [
            asyncio.create_task(each.run(), name=f"kubernetes {each.name}") for each in self._reflectors
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._api is not None:
            await self._api.close()

    async def wait_listed(self, timeout_s: float) -> bool:
        """Wait until everything was listed once that may be, or the time is over.

        Returns: whether everything was listed.
        """
        waits = [each.answered.wait() for each in self._reflectors]
        try:
            await asyncio.wait_for(asyncio.gather(*waits), timeout_s)
        except TimeoutError:
            return False
        return all(each.synced.is_set() for each in self._reflectors)

    def context(self, now_s: float) -> Context:
        """Planned changes and troubles as far as they are known."""
        return self.feed.context(now_s)

    def gaps(self) -> tuple[Gap, ...]:
        """What is not heard of at present, and why."""
        gaps = [Gap("kubernetes", self._absent)] if self._absent else []
        for task, reflector in zip(self._tasks, self._reflectors, strict=False):
            if task.done() and not task.cancelled() and task.exception() is not None:
                gaps.append(Gap(f"kubernetes.{reflector.name}", f"stopped: {task.exception()!r}"))
            elif reflector.missing():
                gaps.append(Gap(f"kubernetes.{reflector.name}", reflector.missing()))
        return tuple(gaps)

    def tallies(self) -> dict[str, Tally]:
        """What was done for each resource so far."""
        return {each.name: each.tally for each in self._reflectors}
