"""The health of a connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from hopline.brokers.base import Health

log = logging.getLogger(__name__)


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

    def health(self) -> Health:
        """The present health."""
        return self._health

    @property
    def ok(self) -> bool:
        """True if the last call succeeded."""
        return not self._health.reason

    def good(self) -> None:
        """Record a success."""
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

    def leave(self) -> None:
        """Record that the connection is closed: later ends are not failures."""
        self._left = True
