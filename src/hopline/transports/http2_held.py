"""What one connection's requests hold of the process's memory.

A little is free, so that small requests cost no look at the budget; what is more is reserved in it.
"""

from __future__ import annotations

from typing import Final

from hopline.transports.budget import Budget

#: Bytes of a connection's requests that need not be reserved.
FREE_BYTES: Final = 64 * 1024
#: Bytes reserved at a time, at least, and released at a time.
_STEP_BYTES = 256 * 1024


class Held:
    """Bytes that one connection holds of the process's budget.

    Args:
        budget: of the process.

    Attributes:
        num_bytes: of requests that are not answered.
        num_arriving: those of them whose requests are not whole, or have not been begun with.
        num_allowed: bytes that may be held by now. Below it, holders only count `num_bytes`.
    """

    __slots__ = ("_budget", "num_allowed", "num_arriving", "num_bytes")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.num_allowed = FREE_BYTES
        self.num_bytes = 0
        self.num_arriving = 0

    def allow(self, num_bytes: int) -> bool:
        """Reserve what is missing to hold so many bytes in all; False where the process has no room."""
        missing = num_bytes - self.num_allowed
        for wanted in (max(missing, _STEP_BYTES), missing):
            if self._budget.take(wanted):
                self.num_allowed += wanted
                return True
        return False

    def shrink(self) -> None:
        """Release what is no longer needed."""
        keep = max(FREE_BYTES, self.num_bytes)
        if keep == FREE_BYTES or self.num_allowed - keep > 2 * _STEP_BYTES:
            self._budget.give_back(self.num_allowed - keep)
            self.num_allowed = keep
