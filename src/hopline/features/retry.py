"""Whether and when a failed call is tried again: a pure decision; the clock is an argument."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from hopline.features.window import SlidingWindow

_CALL, _RETRY = 0, 1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Bounds of retries.

    Attributes:
        max_retries: of one call.
        share: retries are at most this share of the calls in the window, so that an outage adds no more
            than that to the traffic. Few calls earn none: below 1 / share in the window nothing is
            tried again.
        window_s: seconds of calls that count.
        backoff_s: a retry waits between 0 and this ("full jitter"), twice as long for each further one.
        min_left_s: time that must be left after the wait, or the answer could not be in time.
    """

    max_retries: int = 1
    share: float = 0.1
    window_s: float = 10.0
    backoff_s: float = 0.002
    min_left_s: float = 0.002


class RetryBudget:
    """Earns retries from calls and spends them; one for each store.

    Args:
        policy: see there.
        rng: numbers in [0, 1), for the back-off.
    """

    __slots__ = ("_policy", "_rng", "_window")

    def __init__(self, policy: RetryPolicy | None = None, rng: Callable[[], float] = random.random) -> None:
        self._policy = policy or RetryPolicy()
        self._rng = rng
        self._window = SlidingWindow(self._policy.window_s)

    def called(self, now: float) -> None:
        """A call goes out for the first time."""
        self._window.add(_CALL, now)

    def take(self, num_tried: int, now: float, deadline: float) -> float | None:
        """Spend one retry.

        Args:
            num_tried: retries of this call so far.
            now: the present.
            deadline: when the answer is of no use any more.

        Returns: seconds to wait before the retry; None if there is none, and nothing was spent.
        """
        policy = self._policy
        if num_tried >= policy.max_retries:
            return None
        wait_s: float = self._rng() * policy.backoff_s * 2**num_tried
        if now + wait_s + policy.min_left_s > deadline:
            return None
        self._window.advance(now)
        calls, retries = self._window.totals
        if retries + 1 > policy.share * calls:
            return None
        self._window.add(_RETRY, now)
        return wait_s
