"""Limit of the tokens that a client may use in a minute, over all generative models.

A bucket holds one minute's worth and fills evenly (`scheduling/limiter.py`). What a text uses is known only
as it is generated, so a request is admitted while there are tokens, and tokens are charged as they come: a
text that runs is not cut, and the client's next request waits until the debt is paid.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from hopline.errors import RateLimited
from hopline.scheduling.limiter import LocalLimits, Rate

if TYPE_CHECKING:
    from hopline.scheduling.shared_limiter import Bucket, Limits

#: Clients that are remembered; those that were active longest ago are forgotten.
_MOST_CLIENTS = 65_536


class TokenRates:
    """See the module; one for each worker, over buckets that workers share.

    Args:
        default: tokens a minute of a client without its own rate; 0 is any number. Clients without a
            name have one bucket together.
        open_limits: opens the buckets; called once some client has a rate.
        clock: nanoseconds, monotonic, the same for all workers of a host.
    """

    def __init__(
        self,
        default: int = 0,
        open_limits: Callable[[], Limits] = LocalLimits,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._default = default
        self._open_limits = open_limits
        self._clock = clock
        self._limits = open_limits() if default else None
        self._own: OrderedDict[str, int] = OrderedDict()
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def set(self, client: str, per_minute: int | None) -> None:
        """Give a client its own rate; None takes it away."""
        self._buckets.pop(client, None)
        if per_minute is None:
            self._own.pop(client, None)
            return
        self._limits = self._limits or self._open_limits()
        self._own[client] = per_minute
        self._own.move_to_end(client)
        while len(self._own) > _MOST_CLIENTS:
            self._own.popitem(last=False)

    def check(self, client: str) -> None:
        """Refuse a request of a client that has used its tokens.

        Raises: RateLimited: with the time until it has some again.
        """
        bucket = self._bucket(client)
        wait_ns = 0 if bucket is None else bucket.wait(self._clock())
        if bucket is not None and wait_ns:
            who = f"client {client!r}" if client else "all clients without a key together"
            raise RateLimited(
                f"{who} may use {bucket.rate.burst} tokens per minute; they are used for the next "
                f"{wait_ns / 1e9:.1f} s",
                wait_ns / 1e9,
            )

    def charge(self, client: str, tokens: int) -> None:
        """Count tokens that a client has used."""
        bucket = self._bucket(client) if tokens else None
        if bucket is not None:
            bucket.charge(tokens, self._clock())

    def _bucket(self, client: str) -> Bucket | None:
        if self._limits is None:
            return None
        found = self._buckets.get(client)
        if found is None:
            per_minute = self._own.get(client, self._default)
            if not per_minute:
                return None
            # A name that no rate of requests has: the buckets may be in one file.
            rate = Rate(per_minute / 60, per_minute)
            found = self._limits.bucket(f"tokens of {client}", rate, self._clock())
            self._buckets[client] = found
            while len(self._buckets) > _MOST_CLIENTS:
                self._buckets.popitem(last=False)
        return found
