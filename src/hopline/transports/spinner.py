"""Keeps an event loop awake for a moment after an answer, where the next request follows immediately.

A loop that has nothing to do sleeps, and waking it takes longer than looking a node up: with one client
that asks, reads and asks again, that was half of each answer's time (docs/log.md). Waiting awake is only
worth its processor time where it pays, so each time it was useless, more answers pass before the next try,
as hypervisors do before they halt a processor (KVM's adaptive halt polling).
"""

from __future__ import annotations

import asyncio
import time

#: Answers that pass at most between two tries.
_MOST_SKIPPED = 1023


class Spinner:
    """Decides when and how long an event loop waits awake.

    Args:
        spin_s: how long to wait awake for the next request; 0 never does.

    Attributes:
        is_on: whether it ever waits awake.
        num_pending: requests that something else works on: those threads need the interpreter more.
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
        """A request came."""
        self._came = True

    def answered(self) -> None:
        """An answer left: wait awake for what follows it."""
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
        """Be called in the loop's next turn, which for that looks for input without sleeping."""
        if not self.num_pending:
            if time.monotonic() < self._until:
                loop.call_soon(self._wait, loop)
                return
            self._penalty = min(2 * self._penalty + 1, _MOST_SKIPPED)
            self._skip = self._penalty
        elif self._came:
            self._penalty = 0
        self._spinning = False
