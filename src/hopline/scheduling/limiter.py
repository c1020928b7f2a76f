"""Token buckets: limits of how many requests of a client are admitted in any interval, or how much it uses.

Times are integers of nanoseconds; the clock is an argument.

A bucket of `burst` tokens that fills at `rate_per_s` is stored as one integer, the time at which it is full
again (the generic cell rate algorithm, ITU-T I.371). Integers are exact, so rounding never adds a token: in
any window of t seconds at most burst + rate · t requests are admitted. Processes share only one word per
bucket (`shared_limiter.py`).
"""

from __future__ import annotations

import math
from typing import NamedTuple

#: Limit of buckets; beyond it, the longest full ones are dropped, which loses nothing.
_MAX_BUCKETS = 65_536
#: Longest time, in nanoseconds, for which what was charged beyond a bucket's content can refuse requests.
MAX_DEBT_NS = 86_400 * 10**9


class Rate(NamedTuple):
    """A rate limit.

    Attributes:
        per_s: requests per second, above 0.
        burst: requests that may arrive at the same time, at least 1.
    """

    per_s: float
    burst: int

    @staticmethod
    def of(per_s: float | None, burst: int | None) -> Rate | None:
        """Build a rate. The default burst is one second's worth; None if there is no limit."""
        if not per_s:
            return None
        # A rate below one in 1,000 s would not fit in 63 bits of nanoseconds.
        return Rate(max(per_s, 0.001), burst if burst is not None else max(1, int(per_s)))

    @property
    def interval_ns(self) -> int:
        """Time from one token to the next, rounded up: a bucket is never faster than its rate."""
        return math.ceil(1e9 / self.per_s)


def converted(full_at_ns: int, now_ns: int, interval_ns: int, burst: int, rate: Rate) -> int:
    """The time at which a bucket is full again if its rate changes now.

    A debt keeps its time, but a client waits no longer than with the same tokens, or the same debt, at the
    new rate. Else one that was refused for 1,000 s would be refused as long at a thousand times the rate.

    Args:
        interval_ns, burst: of the rate until now.
        rate: from now on.
    """
    if full_at_ns <= now_ns:
        return full_at_ns
    tokens = burst - (full_at_ns - now_ns) / interval_ns  # negative: a debt
    missing_ns = math.ceil((rate.burst - min(tokens, rate.burst)) * rate.interval_ns)
    return min(full_at_ns, now_ns + missing_ns)


class LocalBucket:
    """The bucket of a server of one process: admits requests of one client, or counts what it uses."""

    __slots__ = ("_interval_ns", "_tolerance_ns", "full_at_ns", "rate")

    def __init__(self, rate: Rate, full_at_ns: int = 0) -> None:
        self.rate = rate
        self.full_at_ns = full_at_ns
        self._interval_ns = rate.interval_ns
        self._tolerance_ns = (rate.burst - 1) * rate.interval_ns

    def take(self, now_ns: int) -> int:
        """Admit a request and return 0, or return the nanoseconds until one is admitted."""
        begin = self.full_at_ns
        if begin < now_ns:
            begin = now_ns
        else:
            wait_ns = begin - now_ns - self._tolerance_ns
            if wait_ns > 0:
                return wait_ns
        self.full_at_ns = begin + self._interval_ns
        return 0

    def wait(self, now_ns: int) -> int:
        """Return the nanoseconds until `take` would admit a request, without admitting one."""
        return max(0, self.full_at_ns - now_ns - self._tolerance_ns)

    def charge(self, count: int, now_ns: int) -> None:
        """Take `count` tokens, even if there are fewer: then none is there until the debt is paid.

        A negative count returns tokens, up to a full bucket.
        """
        full_at_ns = max(self.full_at_ns, now_ns) + count * self._interval_ns
        self.full_at_ns = min(full_at_ns, now_ns + self._tolerance_ns + MAX_DEBT_NS)


class LocalLimits:
    """The buckets of a server of one process."""

    def __init__(self) -> None:
        self._buckets: dict[str, LocalBucket] = {}

    def bucket(self, name: str, rate: Rate, now_ns: int) -> LocalBucket:
        """Return the bucket of a client; `converted` says how its level changes with its rate."""
        found = self._buckets.get(name)
        if found is not None and found.rate == rate:
            return found
        if found is None and len(self._buckets) >= _MAX_BUCKETS:
            self._forget()
        full_at_ns = 0
        if found is not None:
            full_at_ns = converted(found.full_at_ns, now_ns, found.rate.interval_ns, found.rate.burst, rate)
        made = self._buckets[name] = LocalBucket(rate, full_at_ns)
        return made

    def _forget(self) -> None:
        """Drop the half of the buckets that are full the longest, or will be full first."""
        by_time = sorted(self._buckets, key=lambda name: self._buckets[name].full_at_ns)
        for name in by_time[: len(by_time) // 2]:
            del self._buckets[name]
