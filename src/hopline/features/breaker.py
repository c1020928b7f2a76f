"""Whether a store should be asked at all: a pure decision; the clock is an argument.

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
    """When a breaker opens and how soon it tries again.

    Attributes:
        failure_share: opens when at least this share of the calls in the window failed …
        min_calls: … of at least so many.
        window_s: seconds of calls that count.
        max_in_a_row: opens after so many failures without a success between them, whatever the window
            says: under much traffic it is full of successes and an outage would be noticed late, under
            little it never has `min_calls`.
        pause_s: from a failure that opened it to the next probe. It does not grow while the outage lasts:
            it is what a recovered store waits for at most, and one probe each pause is little traffic.
        jitter: the pause is longer or shorter by up to this share, so that workers do not probe together.
        probe_s: a probe that has not reported for that time is abandoned; the next call is the probe.
    """

    failure_share: float = 0.5
    min_calls: int = 5
    window_s: float = 1.0
    max_in_a_row: int = 10
    pause_s: float = 0.25
    jitter: float = 0.2
    probe_s: float = 0.25


class CircuitBreaker:
    """Stops asking a store that fails, and finds out when it is back.

    Every call that `allow` lets through should be followed by `record`, or by `abandon` where it was
    cancelled before it could tell anything; a call that does neither delays the next probe by `probe_s`.

    Args:
        policy: see there.
        rng: numbers in [0, 1), for the jitter.

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
        #: Open: when the pause ends. Half open: when the probe is given up.
        self._until = 0.0
        #: Calls that began before this are stragglers of an earlier state and prove nothing.
        self._counts_from = float("-inf")

    def allow(self, now: float) -> bool:
        """Whether a call may go out; in the open state the first one after the pause is the probe."""
        if self.state == "closed":
            return True
        if now < self._until:
            return False
        self.state = "half_open"
        self._until = now + self._policy.probe_s
        self._counts_from = now
        return True

    def record(self, ok: bool, now: float, began: float | None = None) -> None:
        """A call succeeded or failed.

        Args:
            ok: whether the store answered in time.
            now: the present.
            began: when `allow` let it through; None means it is of the present state.
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
        """A call was cancelled before it could tell anything; if it was the probe, the next one is."""
        if self.state == "half_open" and began >= self._counts_from:
            self._until = now

    def _trips(self) -> bool:
        """Whether one more failure is too many."""
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
