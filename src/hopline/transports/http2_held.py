"""The memory of one connection's requests.

A small amount is free, so that small requests need not use the budget; more is reserved in the budget.
"""

from __future__ import annotations

from typing import Final

from hopline.transports.budget import Budget

#: Bytes of a connection's requests that need not be reserved.
FREE_BYTES: Final = 64 * 1024
#: Least amount that is reserved at a time, and unit of the release.
_STEP_BYTES = 256 * 1024


class Held:
    """Counts the memory of a connection's unanswered requests.

    Args:
        budget: memory budget of the process.

    Attributes:
        num_bytes: memory of unanswered requests.
        num_arriving: part of it for requests that are incomplete or have not begun.
        num_allowed: limit of `num_bytes` without a new reservation. Below it, callers change `num_bytes`
            directly.
    """

    __slots__ = ("_budget", "num_allowed", "num_arriving", "num_bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.num_allowed = FREE_BYTES
        self.num_bytes = 0
        self.num_arriving = 0

    def allow(self, num_bytes: int) -> bool:
        """Reserve memory for this total; return False if the budget has no room."""
        missing = num_bytes - self.num_allowed
        for wanted in (max(missing, _STEP_BYTES), missing):
            if self._budget.take(wanted):
                self.num_allowed += wanted
                return True
        return False

    def shrink(self) -> None:
        """Release the unused part of the reservation."""
        keep = max(FREE_BYTES, self.num_bytes)
        if keep == FREE_BYTES or self.num_allowed - keep > 2 * _STEP_BYTES:
            self._budget.give_back(self.num_allowed - keep)
            self.num_allowed = keep
