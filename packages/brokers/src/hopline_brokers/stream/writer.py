"""The interface of a live graph's writer for the consumer, and retries while it is unavailable.

Two guarantees of the writer make a restart exact: a batch is durable and visible completely or not at all,
and an event with a known id is reported as a duplicate and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hopline.errors import BrokerUnavailable, HoplineError, Unavailable
from hopline.graph.live.changes import Applied, Changes, Ids
from hopline.graph.schema import GraphSchema
from hopline.retry import delays

logger = logging.getLogger("hopline.stream")

#: Seconds between two tries: the first, and the longest.
_FIRST_S, _LONGEST_S = 0.05, 5.0
ResultT = TypeVar("ResultT")
Sleep = Callable[[float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a live graph.

    Attributes:
        schema: of the graph.
        sequence: its present version.
        positions: source -> where to resume, from the newest batch that named it.
    """

    schema: GraphSchema
    sequence: int
    positions: Mapping[str, Any]


class Writer(Protocol):
    """Applies changes to a live graph."""

    async def standing(self) -> Standing:
        """The present state. Raises: Unavailable: try again. HoplineError: retrying does not help."""
        ...

    async def apply(self, batches: Sequence[Changes]) -> list[Applied]:
        """Make changes durable and visible; returns when they are.

        A batch without events makes its positions durable and no new version.

        Raises: Unavailable: not done, or unknown; repeating the call with the same event ids is safe.
        """
        ...

    async def affected(self, since: int) -> tuple[int, Mapping[str, Ids]]:
        """The present version, and node type -> ids of nodes whose answers changed after `since`."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class ServiceWait:
    """Retries calls of unavailable services with growing pauses, and logs that once.

    Args:
        note: called with the name of the service, and 1 when waiting begins, 0 when it ends.
        sleep: waits for seconds.
    """

    def __init__(
        self, note: Callable[[str, int], object] = lambda what, waiting: None, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._report = note
        self._sleep = sleep

    async def until_done(
        self,
        what: str,
        call: Callable[[], Awaitable[ResultT]],
        passing: tuple[type[HoplineError], ...] = (),
    ) -> ResultT:
        """The result of `call`, retried after each `Unavailable` or `BrokerUnavailable`.

        Args:
            passing: further errors that are retried.
        """
        waits = delays(_FIRST_S, _LONGEST_S)
        is_waiting = False
        waited_out: tuple[type[HoplineError], ...] = (Unavailable, BrokerUnavailable, *passing)
        while True:
            try:
                result = await call()
            except waited_out as error:
                if not is_waiting:
                    logger.warning("waiting for %s: %s", what, error)
                    self._report(what, 1)
                is_waiting = True
                await self._sleep(next(waits))
                continue
            if is_waiting:
                logger.info("%s: continuing", what)
                self._report(what, 0)
            return result
