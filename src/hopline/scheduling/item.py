"""What a queue needs to know of a request, and who is told what became of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from hopline.errors import HoplineError, Unavailable

log = logging.getLogger(__name__)


class Item(Protocol):
    """What the batcher needs to know of a request.

    Attributes:
        deliver: called on the event loop with the outcome, once, unless the item was withdrawn. A plain
            call: a future costs a callback through the loop, which is a tenth of a cheap request.
        rows, num_bytes: predicted cost.
        deadline: on `time.monotonic()`'s clock; inf for none.
        lane: of its priority; see `policy.py`.
        enqueued: set by the batcher.
        ended: whether it has its outcome; set by the batcher, or by who withdraws it.
    """

    @property
    def deliver(self) -> Callable[[Any], object]:
        """See above."""
        ...

    rows: int
    num_bytes: int
    deadline: float
    lane: int
    enqueued: float
    ended: bool


class LargerThanPredicted(Exception):
    """A batch reads far more rows than was predicted; raised before they are read.

    A batch of several is split, and a request that is so by itself goes back to the queue, to wait and run
    as what it is.

    Args:
        rows: that it reads at least.
    """

    def __init__(self, rows: int) -> None:
        super().__init__(f"{rows} rows")
        self.rows = rows


#: What a request may have in place of an answer; None postpones it.
Unanswered: TypeAlias = HoplineError | LargerThanPredicted | None


class Observer(Protocol):
    """Is told what happened; must be cheap."""

    def batch(
        self, items: Sequence[Any], outcomes: Sequence[Any], queue_s: Sequence[float], compute_s: float
    ) -> None:
        """A batch ran and was delivered; all but `compute_s` have one entry for each item."""

    def late(self, item: Any, error: HoplineError) -> None:
        """An item's deadline passed; it was told so."""

    def outcome(self, code: str, count: int = 1) -> None:
        """Requests ended: "ok", "cancelled" or an error's code."""

    def postponed(self, item: Any) -> None:
        """An item lacks something: get it, then call `resume`; called on the event loop."""

    def larger(self, item: Any) -> None:
        """An item reads far more rows than was predicted: its `rows` say now how many; it waits again."""


class Nobody:
    """Who is told once a batcher was released: a batch may be under way where a drain was cut short."""

    def batch(
        self, items: Sequence[Any], outcomes: Sequence[Any], queue_s: Sequence[float], compute_s: float
    ) -> None:
        """Nobody counts."""

    def late(self, item: Any, error: HoplineError) -> None:
        """Nobody counts."""

    def outcome(self, code: str, count: int = 1) -> None:
        """Nobody counts."""

    def postponed(self, item: Any) -> None:
        """Nobody can bring what it lacks."""

    def larger(self, item: Any) -> None:
        """Nobody remembers."""


def refuse_all(batch: list[Any]) -> Sequence[Any]:
    """What runs batches of a batcher that was released."""
    return [Unavailable("the model was unloaded") for _ in batch]


def predicted_rows(batch: Sequence[Item]) -> int:
    """Rows that were predicted for a batch."""
    return sum([item.rows for item in batch])


def deliver_to(item: Item, outcome: object) -> None:
    """Give a request its outcome."""
    try:
        item.deliver(outcome)
    except Exception:  # the boundary: a receiver's failure must not cost the others their answers
        log.exception("an answer could not be delivered")
