"""Keeps an event loop awake for a moment after an answer, if the next request is likely to follow.

An idle loop sleeps, and waking it needs longer than answering a lookup. With one client that sends its next
request after each answer, that was half of the time of each answer (docs/log.md). Waiting awake is only
worth its CPU time if a request comes. After each wait without a request, more answers pass before the next
wait, as in hypervisors before they halt a processor (KVM's adaptive halt polling).
"""

from __future__ import annotations

import asyncio
import time

#: Most answers between two waits.
_MOST_SKIPPED = 1023


class Spinner:
    """Waits awake for the next request after an answer.

    Args:
        spin_s: how long to wait awake, seconds; 0 never waits.

    Attributes:
        is_on: whether it ever waits awake.
        num_pending: requests that other threads work on. Those threads need the interpreter more.
    """

    def __init__(self, spin_s: float) -> None:
        self._spin_s = spin_s
        self.is_on = spin_s > 0.0
        self.num_pending = 0
        self._until = 0.0
        self._spinning = False
        self._came = False
        self._penalty = self._skip = 0

    def came(self) -> None:
        """Record that a request arrived."""
        self._came = True

    def answered(self) -> None:
        """Record that an answer was sent, and maybe wait awake for the next request."""
        if self._spinning:
            if self._came:
                self._came = False
                self._penalty = 0
                self._until = time.monotonic() + self._spin_s
            return
        if self._skip:
            self._skip -= 1
            return
        self._spinning, self._came = True, False
        self._until = time.monotonic() + self._spin_s
        self._wait(asyncio.get_running_loop())

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reschedule in the loop's next turn; for that, the loop polls for input without sleeping."""
        if not self.num_pending:
            if time.monotonic() < self._until:
                loop.call_soon(self._wait, loop)
                return
            self._penalty = min(2 * self._penalty + 1, _MOST_SKIPPED)
            self._skip = self._penalty
        elif self._came:
            self._penalty = 0
        self._spinning = False
