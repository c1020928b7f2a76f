"""The state of a live graph, and retries while its writer or another service is unavailable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from hopline.errors import BrokerUnavailable, HoplineError, Unavailable
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
