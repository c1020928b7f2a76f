"""The waits before something is tried again: pure numbers, for callers that sleep by their own clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import partial


def delays(
    first_s: float, longest_s: float, *, spread: float = 0.0, rng: Callable[[], float] = random.random
) -> Iterator[float]:
    """Seconds to wait before each further attempt, without end; doubled each time.

    Args:
        first_s, longest_s: the first wait, and the limit of all.
        spread: random share of each wait, so that many callers do not try together. With 0.5, a wait is
            between half and all of its length.
        rng: numbers in [0, 1).
    """
    wait_s = min(first_s, longest_s)
    while True:
        yield wait_s * (1.0 - spread + spread * rng()) if spread else wait_s
        wait_s = min(longest_s, 2.0 * wait_s)


class Backoff:
    """The waits before attempts at one thing, which begin with the first one again after a success.

    Args:
        first_s, longest_s, spread, rng: see `delays`.
        steady_s: an attempt that worked for longer than this counts as a success.

    Attributes:
        wait_s: the next wait.
    """

    def __init__(
        self,
        first_s: float = 0.05,
        longest_s: float = 2.0,
        *,
        spread: float = 0.5,
        steady_s: float = 30.0,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._delays = partial(delays, first_s, longest_s, spread=spread, rng=rng)
        self._steady_s = steady_s
        self._waits = self._delays()
        self.wait_s = next(self._waits)

    def next(self, worked_s: float = 0.0) -> float:
        """Seconds to wait before the next attempt.

        Args:
            worked_s: time for which the last attempt had worked.
        """
        if worked_s > self._steady_s:
            self.reset()
        wait_s = self.wait_s
        self.wait_s = next(self._waits)
        return wait_s

    def reset(self) -> None:
        """Begin with the first wait again: an attempt has succeeded."""
        self._waits = self._delays()
        self.wait_s = next(self._waits)
