"""A retry budget: decides whether and when a failed call is retried. The clock is an argument."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from hopline.features.window import SlidingWindow

_CALL, _RETRY = 0, 1


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Limits of retries.

    Attributes:
        max_retries: limit for one call.
        share: retries are at most this share of the calls in the window, so that an outage adds at most
            this to the traffic. With fewer calls than 1 / share in the window, nothing is retried.
        window_s: length of the window, seconds.
        backoff_s: a retry waits between 0 and this time ("full jitter"), doubled for each further one.
        min_left_s: remaining time needed after the wait, since otherwise the response would be too late.
    """

    max_retries: int = 1
    share: float = 0.1
    window_s: float = 10.0
    backoff_s: float = 0.002
    min_left_s: float = 0.002


class RetryBudget:
    """Counts calls, and grants retries in proportion; one for each store."""

    __slots__ = ("_policy", "_rng", "_window")

    def __init__(self, policy: RetryPolicy | None = None, rng: Callable[[], float] = random.random) -> None:
        self._policy = policy or RetryPolicy()
        self._rng = rng
        self._window = SlidingWindow(self._policy.window_s)

    def called(self, now: float) -> None:
        """Count the first attempt of a call."""
        self._window.add(_CALL, now)

    def take(self, num_tried: int, now: float, deadline: float) -> float | None:
        """Take one retry from the budget.

        Args:
            num_tried: retries of this call so far.
            now: current time.
            deadline: time after which the response is useless.

        Returns: seconds to wait before the retry; None if none is granted.
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
