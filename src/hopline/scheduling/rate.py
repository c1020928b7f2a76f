"""A token bucket; the clock is an argument."""

from __future__ import annotations


class TokenBucket:
    """Lets `rate` requests a second through on average, and `burst` in a burst.

    Args:
        rate: tokens a second.
        burst: the most tokens that gather; at least 1.
        now: seconds, on the clock of later calls; the bucket begins full.
    """

    __slots__ = ("_at", "_tokens", "burst", "rate")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = max(1.0, burst)
        self._tokens = self.burst
        self._at = now

    def take(self, now: float) -> float:
        """Take a token; returns 0, or the seconds until there is one, having taken none."""
        self._gather(now)
        if self._tokens >= 1.0:
            self._tokens -= 1.0
            return 0.0
        return (1.0 - self._tokens) / self.rate

    def put(self) -> None:
        """Give a token back that was taken for nothing."""
        self._tokens = min(self.burst, self._tokens + 1.0)

    def wait_s(self, now: float) -> float:
        """What `take` would return; takes nothing."""
        self._gather(now)
        return 0.0 if self._tokens >= 1.0 else (1.0 - self._tokens) / self.rate

    def _gather(self, now: float) -> None:
        if now > self._at:
            self._tokens = min(self.burst, self._tokens + (now - self._at) * self.rate)
            self._at = now
