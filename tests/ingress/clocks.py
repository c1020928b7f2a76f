"""A clock that tests turn."""

from __future__ import annotations


class Clock:
    """Seconds since the epoch when called, and nanoseconds of a monotonic clock beside it."""

    def __init__(self, now: float = 1_800_000_000.0) -> None:
        self.now = now
        self.ns = 0

    def __call__(self) -> float:
        return self.now

    def monotonic_ns(self) -> int:
        return self.ns

    def pass_s(self, seconds: float) -> None:
        self.now += seconds
        self.ns += round(seconds * 1e9)
