"""Outcomes of a batch's events, over all attempts to apply them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hopline.graph.live.changes import Applied, Rejected
from hopline.types import IdArray


class Outcome:
    """The outcomes of `num_events` events.

    Attributes:
        applied: bool [num_events], those that changed the graph while this batch was applied. An event that
            was applied here and is a duplicate in a later attempt counts as applied.
        duplicate: bool [num_events].
        rejected: order -> reason.
        sequence: the version that contains them.
    """

    def __init__(self, num_events: int) -> None:
        self.applied: NDArray[np.bool_] = np.zeros(num_events, np.bool_)
        self.duplicate: NDArray[np.bool_] = np.zeros(num_events, np.bool_)
        self.rejected: dict[int, Rejected] = {}
        self.sequence = 0

    def take(self, answer: Applied, orders: IdArray | None = None) -> None:
        """Add an answer of the writer.

        Args:
            orders: int64, the events of the answer, in its order; None means all.
        """
        about = np.arange(len(self.applied)) if orders is None else orders
        rest = np.ones(len(about), np.bool_)
        self.sequence = answer.sequence
        for order in about.tolist():
            self.rejected.pop(order, None)
        for each in answer.rejected:
            order = int(about[each.order])
            rest[each.order] = False
            self.rejected[order] = Rejected(order, each.code, each.reason)
        again = about[list(answer.duplicates)]
        rest[list(answer.duplicates)] = False
        self.duplicate[again] = ~self.applied[again]
        self.applied[about[rest]] = True

    def first(self, code: str) -> Rejected | None:
        """The first event that was rejected with a code; None if there is none."""
        return min(
            (e for e in self.rejected.values() if e.code == code), key=lambda e: e.order, default=None
        )

    def counts(self) -> Mapping[str, int]:
        """Events by outcome."""
        found = Counter(each.code for each in self.rejected.values())
        found["applied"], found["duplicate"] = int(self.applied.sum()), int(self.duplicate.sum())
        return {name: count for name, count in found.items() if count}
