"""Token buckets: how many requests of a client are admitted in any stretch of time.

Knows integers of nanoseconds; the clock is an argument.

A bucket of `burst` tokens that fills at `rate_per_s` is kept as one integer, the time at which it is full
again (the generic cell rate algorithm, ITU-T I.371). In integers no rounding ever adds a token: in any
window of t seconds at most burst + rate · t requests are admitted, and one word is all that processes have
to share (`shared_limiter.py`).
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

#: Beyond it those are forgotten that are full the longest, which changes nothing for them.
_MAX_BUCKETS = 65_536


class Rate(NamedTuple):
    """A rate, and how much of it may come in one burst.

    Attributes:
        per_s: requests a second, above 0.
        burst: requests that may come together, at least 1.
    """

    per_s: float
    burst: int

    @staticmethod
    def of(per_s: float | None, burst: int | None) -> Rate | None:
        """A rate; without a burst it admits one second's worth in a burst. None where there is no limit."""
        if not per_s:
            return None
        # Slower ones than one in 1,000 s would not fit into 63 bits of nanoseconds.
        return Rate(max(per_s, 0.001), burst if burst is not None else max(1, int(per_s)))

    @property
    def interval_ns(self) -> int:
        """From one token to the next, rounded up: a bucket is never faster than its rate."""
        return math.ceil(1e9 / self.per_s)


class Bucket(Protocol):
    """Admits requests of one client."""

    rate: Rate

    def take(self, now_ns: int) -> int:
        """0 where the request is admitted, else the nanoseconds until one would be."""
        ...


class Limits(Protocol):
    """The buckets of all clients."""

    def bucket(self, name: str, rate: Rate) -> Bucket:
        """The bucket of a client, with what it has left, also where its rate is another now."""
        ...


class LocalBucket:
    """The bucket of a server of one process."""

    __slots__ = ("_interval_ns", "_tolerance_ns", "full_at_ns", "rate")

    def __init__(self, rate: Rate, full_at_ns: int = 0) -> None:
        self.rate = rate
        self.full_at_ns = full_at_ns
        self._interval_ns = rate.interval_ns
        self._tolerance_ns = (rate.burst - 1) * rate.interval_ns

    def take(self, now_ns: int) -> int:
        """See `Bucket`."""
        begin = self.full_at_ns
        if begin < now_ns:
            begin = now_ns
        else:
            wait_ns = begin - now_ns - self._tolerance_ns
            if wait_ns > 0:
                return wait_ns
        self.full_at_ns = begin + self._interval_ns
        return 0


class LocalLimits:
    """The buckets of a server of one process."""

    def __init__(self) -> None:
        self._buckets: dict[str, LocalBucket] = {}

    def bucket(self, name: str, rate: Rate) -> LocalBucket:
        """See `Limits`."""
        found = self._buckets.get(name)
        if found is not None and found.rate == rate:
            return found
        if found is None and len(self._buckets) >= _MAX_BUCKETS:
            self._forget()
        made = self._buckets[name] = LocalBucket(rate, 0 if found is None else found.full_at_ns)
        return made

    def _forget(self) -> None:
        """Drop the half of the buckets that are full the longest, or will be the soonest."""
        by_time = sorted(self._buckets, key=lambda name: self._buckets[name].full_at_ns)
        for name in by_time[: len(by_time) // 2]:
            del self._buckets[name]
