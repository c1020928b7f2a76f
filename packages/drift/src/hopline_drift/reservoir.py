"""A uniform sample of a stream of unknown length, at the cost of an addition and a comparison per batch."""

from __future__ import annotations

import math
from random import Random

from hopline.answering.served import Ran
from hopline.errors import HoplineError
from hopline.types import ScoreRequest, ScoreResult

Sampled = tuple[ScoreRequest, ScoreResult | HoplineError]


class Reservoir:
    """Keeps `size` requests; each offered one has the same probability.

    Li's algorithm L (1994) computes in advance which request it selects next, so that the requests before
    it cost nothing.

    Attributes:
        items: the sample so far, without copies.
        num_seen: number of offered requests.
    """

    __slots__ = ("_chance", "_next", "_random", "_size", "items", "num_seen")

    def __init__(self, size: int, random: Random) -> None:
        self.items: list[Sampled] = []
        self.num_seen = 0
        self._size = size
        self._random = random
        self._next = 0
        self._chance = 1.0

    def offer(self, ran: Ran) -> None:
        """Select some requests of a batch, or none; requests without an outcome are skipped."""
        first = self.num_seen
        self.num_seen = end = first + len(ran.requests)
        while self._next < end:
            at = self._next - first
            outcome = ran.outcomes[at]
            if outcome is not None:
                self._take((ran.requests[at], outcome))
            if len(self.items) < self._size:
                self._next += 1
            else:
                self._skip()

    def _take(self, item: Sampled) -> None:
        if len(self.items) < self._size:
            self.items.append(item)
        else:
            self.items[self._random.randrange(self._size)] = item

    def _skip(self) -> None:
        self._chance *= self._uniform() ** (1 / self._size)
        if self._chance <= 0:  # underflow, after more requests than a server ever gets
            self._next = 2**63
            return
        self._next += int(math.log(self._uniform()) / math.log1p(-self._chance)) + 1

    def _uniform(self) -> float:
        return self._random.random() or 0.5  # in (0, 1): its logarithm exists
