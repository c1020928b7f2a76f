"""A circuit breaker: decides whether to send requests to a store. The clock is an argument.

closed ── too many failures ──► open ── the pause is over ──► half open: one probe
   ▲                             ▲                               │
   │                             └────────── it failed ──────────┤
   └──────────────────────────── it succeeded ───────────────────┘
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hopline.features.window import SlidingWindow

BreakerState = Literal["closed", "open", "half_open"]
_OK, _FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class BreakerPolicy:
    """Rules of a breaker: when it opens, and how soon it tries again.

    Attributes:
        failure_share: opens if at least this share of the calls in the window failed …
        min_calls: … of at least this many calls.
        window_s: length of the window, seconds.
        max_in_a_row: opens after this many failures without a success in between, independent of the
            window. Under much traffic the window is full of successes and would detect an outage late;
            under little traffic it never has `min_calls`.
        pause_s: seconds from the failure that opened it to the next probe. It does not grow during an
            outage: a recovered store waits for at most this time, and one probe per pause is little
                traffic.
        jitter: the pause varies by up to this share, so that workers do not probe together.
        probe_s: after this time, a probe without a result is dropped; the next call is the probe.
    """

    failure_share: float = 0.5
    min_calls: int = 5
    window_s: float = 1.0
    max_in_a_row: int = 10
    pause_s: float = 0.25
    jitter: float = 0.2
    probe_s: float = 0.25


class CircuitBreaker:
    """Stops requests to a failing store, and detects when it has recovered.

    Every call that `allow` permits should be followed by `record`, or by `abandon` if it was cancelled
    without a result. A call that does neither delays the next probe by `probe_s`.

    Attributes:
        state: "closed", "open" or "half_open".
    """

    __slots__ = ("_counts_from", "_in_a_row", "_policy", "_rng", "_until", "_window", "state")

    def __init__(
        self, policy: BreakerPolicy | None = None, rng: Callable[[], float] = random.random
    ) -> None:
        self._policy = policy or BreakerPolicy()
        self._rng = rng
        self._window = SlidingWindow(self._policy.window_s)
        self._in_a_row = 0
        self.state: BreakerState = "closed"
        #: Open: end of the pause. Half open: end of the probe.
        self._until = 0.0
        #: Calls that began before this belong to an earlier state and are ignored.
        self._counts_from = float("-inf")

    def allow(self, now: float) -> bool:
        """Return True if a call is permitted; if open, the first call after the pause is the probe."""
        if self.state == "closed":
            return True
        if now < self._until:
            return False
        self.state = "half_open"
        self._until = now + self._policy.probe_s
        self._counts_from = now
        return True

    def record(self, ok: bool, now: float, began: float | None = None) -> None:
        """Record the result of a call.

        Args:
            ok: True if the store answered in time.
            now: current time.
            began: time of `allow`; None for the current state.
        """
        if self.state == "open" or (began is not None and began < self._counts_from):
            return
        if self.state == "half_open":
            if ok:
                self._window.clear()
                self._in_a_row = 0
                self.state = "closed"
            else:
                self._open(now)
            return
        self._window.add(_OK if ok else _FAILED, now)
        if ok:
            self._in_a_row = 0
        elif self._trips():
            self._open(now)

    def abandon(self, now: float, began: float) -> None:
        """Record a call that was cancelled without a result; if it was the probe, the next call is."""
        if self.state == "half_open" and began >= self._counts_from:
            self._until = now

    def _trips(self) -> bool:
        """Count a failure; return True if the limit is reached."""
        policy = self._policy
        self._in_a_row += 1
        if self._in_a_row >= policy.max_in_a_row:
            return True
        successes, failures = self._window.totals
        calls = successes + failures
        return calls >= policy.min_calls and failures >= policy.failure_share * calls

    def _open(self, now: float) -> None:
        policy = self._policy
        self.state = "open"
        self._until = now + policy.pause_s * (1.0 + policy.jitter * (2.0 * self._rng() - 1.0))
