"""Admission of a request to a version, its deadline, and its lane.

A place that a request gets here is released when the request ends (`Work.end`), however it ends.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hopline.config.schema import Config
from hopline.errors import DeadlineExceeded, Overloaded, RateLimited, Unavailable
from hopline.scheduling.limiter import LocalLimits
from hopline.scheduling.policy import LANES
from hopline.scheduling.work import Work

if TYPE_CHECKING:
    from hopline.scheduling.shared_limiter import Bucket, Limits


@dataclass(frozen=True, slots=True)
class Deadlines:
    """The deadlines of requests.

    Attributes:
        timeout_s: of a request that names none.
        max_timeout_s: the longest that a request may name.
    """

    timeout_s: float
    max_timeout_s: float

    def of(self, named: float | None, now: float) -> float:
        """Deadline of a request.

        Args:
            named: the deadline that it names, on time.monotonic()'s clock.
            now: the same clock.

        Raises: DeadlineExceeded: that has passed.
        """
        if named is None:
            return now + self.timeout_s
        if named <= now:
            raise DeadlineExceeded("the request's deadline had passed when it arrived")
        return min(named, now + self.max_timeout_s)


def lanes_of(priority: str) -> Mapping[str, int]:
    """Lane by the priority that a request names: "normal", which is the default, is the model's own."""
    return {**LANES, "normal": LANES[priority]}


class Admission:
    """Admits requests to one version.

    Args:
        deadlines: of its requests.
        priority: of the model.
        max_open: requests that may be without an outcome; 0 is any number.
        bucket: of the model's rate; None where there is no limit.
        clock: seconds, monotonic.

    Attributes:
        num_open: admitted requests without an outcome.
        closed: why no request is admitted any more; "" while they are.
        retry_after_s: says when a place may be free.
    """

    def __init__(
        self,
        deadlines: Deadlines,
        priority: str = "normal",
        max_open: int = 0,
        bucket: Bucket | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_open = 0
        self.closed = ""
        self.retry_after_s: Callable[[], float] = lambda: 0.1
        self.has_rate = bucket is not None
        self._deadline = deadlines.of
        self._lanes = lanes_of(priority)
        self._max_open = max_open or sys.maxsize
        self._bucket = bucket
        self._clock = clock
        self._empty: asyncio.Event | None = None

    def admit(self, work: Work) -> None:
        """Give a request a place, a deadline and a lane.

        Raises:
            Unavailable: the version was closed.
            DeadlineExceeded: the request came too late.
            Overloaded: as many as may are under way.
        """
        if self.closed:
            raise Unavailable(self.closed)
        request = work.request
        now = self._clock()
        work.deadline = self._deadline(request.deadline, now)
        work.lane = self._lanes[request.priority]
        if self.num_open >= self._max_open:
            raise self._full()
        self.num_open += 1
        work.admission = self
        work.entered = now

    def leave(self) -> None:
        """Take a place back; called once by each request that was admitted."""
        self.num_open -= 1
        if self._empty is not None and not self.num_open:
            self._empty.set()
            self._empty = None

    def pay(self) -> None:
        """Take a token of the model's rate.

        Raises: RateLimited: there is none; says when there will be.
        """
        if self._bucket is not None and (wait_ns := self._bucket.take(self._now_ns())):
            raise self._limited(wait_ns)

    def refund(self) -> None:
        """Give a token back that was taken for a request which was refused."""
        if self._bucket is not None:
            self._bucket.charge(-1, self._now_ns())

    def check(self) -> None:
        """See whether a request that says nothing special would be refused for its rate or number.

        Raises: RateLimited, Overloaded.
        """
        if self._bucket is not None and (wait_ns := self._bucket.wait(self._now_ns())):
            raise self._limited(wait_ns)
        if self.num_open >= self._max_open:
            raise self._full()

    async def join(self) -> None:
        """Wait until no admitted request is without an outcome."""
        while self.num_open:
            self._empty = self._empty or asyncio.Event()
            await self._empty.wait()

    def _full(self) -> Overloaded:
        return Overloaded(
            f"{self.num_open} requests wait or run; no more may (max_concurrency)",
            retry_after_s=self.retry_after_s(),
        )

    def _now_ns(self) -> int:
        return int(self._clock() * 1e9)

    def _limited(self, wait_ns: int) -> RateLimited:
        assert self._bucket is not None
        per_s, wait_s = self._bucket.rate.per_s, wait_ns / 1e9
        return RateLimited(
            f"this model takes {per_s:g} requests a second (rate_per_s); the next one in "
            f"{max(wait_s, 0.001):.3f} s",
            retry_after_s=wait_s,
            per_s=per_s,
        )


def open_limits(config: Config) -> Limits:
    """The buckets of rates of this worker, which it shares with the other workers of its server."""
    worker = config.worker
    if worker.count == 1 or not worker.metrics_dir:
        return LocalLimits()
    from hopline.scheduling.shared_limiter import SharedLimits

    return SharedLimits(Path(worker.metrics_dir) / "limits", worker.count)
