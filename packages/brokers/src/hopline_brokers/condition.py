"""The base of all sources, queues and sinks: an address, the health of its connection, one loop that polls.

A broker's own base class adds its settings, its connection and its errors in words; then a source or a
queue writes what one read is, and what it does with messages that are done.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from hopline.brokers.base import Gap, Health, Message
from hopline.retry import Backoff
from hopline_brokers.address import Address

log = logging.getLogger("hopline.brokers")


class Condition:
    """Records failures and successes of a connection; every change is logged once.

    Args:
        what: the connection, for the log: "kafka://host:9092/edges".
        clock: seconds since 1970.
    """

    def __init__(self, what: str, clock: Callable[[], float] = time.time) -> None:
        self._what = what
        self._clock = clock
        self._health = Health("not connected yet", clock())
        self._left = False
        self._backoff = Backoff()

    def health(self) -> Health:
        """The present health."""
        return self._health

    @property
    def ok(self) -> bool:
        """True if the last call succeeded."""
        return not self._health.reason

    def good(self) -> None:
        """Record a success."""
        self._backoff.reset()
        if self._health.reason:
            was, self._health = self._health, Health("", self._clock())
            log.info("%s: connected after %.1f s", self._what, self._health.since_s - was.since_s)

    def bad(self, reason: str) -> None:
        """Record a failure; `since_s` stays that of the first failure in a row."""
        if self._left:
            return
        if self._health.ok or self._health.reason == "not connected yet":
            log.warning("%s: %s", self._what, reason)
        since_s = self._clock() if self._health.ok else self._health.since_s
        self._health = Health(reason or "unknown failure", since_s)

    def wait_s(self) -> float:
        """Seconds to wait after a failure: more after each one in a row."""
        return self._backoff.next()

    def leave(self) -> None:
        """Record that the connection is closed: later ends are not failures."""
        self._left = True


class Connected:
    """An address of a broker, and the health of the connection to it.

    Args:
        address: of a topic.
        clock: seconds, for waits.
        shown: the connection in the log; by default the address.
    """

    #: Errors of the driver that show a failed connection, not a bug of the caller.
    failures: tuple[type[BaseException], ...] = ()

    def __init__(
        self, address: Address, clock: Callable[[], float] = time.monotonic, shown: str = ""
    ) -> None:
        self._address = address
        self._clock = clock
        self._condition = Condition(shown or str(address))

    def health(self) -> Health:
        """The health of the connection."""
        return self._condition.health()

    def _words(self, error: BaseException) -> str:
        """An error of the driver in words."""
        raise NotImplementedError

    def _bad(self, error: BaseException) -> None:
        """Record a failure of the connection."""
        self._condition.bad(self._words(error))


class Reader(Connected):
    """A source or a queue, which reads until messages come or the time is up; see `Connected`."""

    #: Longest wait of one read, seconds: so `close` need not wait long, and a dead connection is noticed.
    slice_s = 1.0

    def __init__(
        self, address: Address, clock: Callable[[], float] = time.monotonic, shown: str = ""
    ) -> None:
        super().__init__(address, clock, shown)
        self._gaps: list[Gap] = []
        self._closing = False

    async def poll(self, max_messages: int, max_wait_s: float) -> list[Message]:
        """As `Source.poll`."""
        end = self._clock() + max_wait_s
        while not self._closing:
            try:
                left_s = max(0.0, end - self._clock())
                if messages := await self._read(max_messages, min(self.slice_s, left_s)):
                    return messages
            except self.failures as error:
                self._bad(error)
                await asyncio.sleep(min(self._condition.wait_s(), max(0.0, end - self._clock())))
            if self._clock() >= end:
                break
        return []

    async def _read(self, max_messages: int, wait_s: float) -> list[Message]:
        """The next messages, without waiting for more; connects first if need be.

        Raises: one of `failures`.
        """
        raise NotImplementedError

    def take_gaps(self) -> list[Gap]:
        """As `Source.take_gaps`; a queue has none."""
        gaps, self._gaps = self._gaps, []
        return gaps
