"""A request on its way to its outcome: one record from the transport to the answer.

    transport ─► Work ─► split | mirror ─► response cache ─► look-up ─► admission ─► queue ─► computer
                  ▲                                                                              │
                  └──────────────────────────── deliver(outcome), once ◄────────────────────────┘

Each step takes a `Work` with `accept(work)`. A step that keeps the work for later is its `holder`, and is
notified when the request is withdrawn.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from hopline.errors import HoplineError, Unavailable
from hopline.scheduling.policy import NORMAL
from hopline.types import OnPart, ScoreRequest

log = logging.getLogger(__name__)

#: Requests of fewer predicted rows may be computed on the event loop.
MANY_ROWS = 2048


class Holder(Protocol):
    """A step that keeps requests until they have their outcome."""

    def withdraw(self, work: Work) -> None:
        """Stop working on a request that has not ended: its caller does not wait for it any more."""
        ...


class Reservation(Protocol):
    """The place of a request that a version has admitted."""

    def leave(self) -> None:
        """Give the place back; called once."""
        ...


class Work(msgspec.Struct, eq=False, gc=False):
    """One request from the transport that read it to its outcome. To the transport, a `Ticket`.

    Attributes:
        request: from the caller.
        deliver: called on the event loop with the outcome, once, unless the request is cancelled. A plain
            call: a future costs a callback through the loop, which is a tenth of a cheap request.
        deadline: on time.monotonic()'s clock; set by `Admission`.
        lane: of its priority, see `policy.py`; set by `Admission`.
        rows, num_bytes: predicted cost.
        num_seeds: rows that it asks for.
        entered: when it was admitted, on time.monotonic()'s clock; a queue sets when it was queued.
        ended: True once it has its outcome, or needs none.
        holder: the step that has it now; None before the first one, and after the end.
        admission: where it holds a place; None where it holds none.
        direct, below: predicted rows by hop, see `PredictedRows`; direct is -1 where they are those of any
            node.
        needs_thread: True if it is never computed on the event loop; of requests of MANY_ROWS or more.
        fetch: outcome of reading missing feature rows; None if none were missing.
        number: as a model's own process calls it.
        on_part: gets parts of the outcome as they come, where the model has any; None where no caller
            wants them.
    """

    request: ScoreRequest
    deliver: Callable[[Any], object]
    deadline: float = 0.0
    lane: int = NORMAL
    rows: int = 0
    num_bytes: int = 0
    num_seeds: int = 1
    entered: float = 0.0
    ended: bool = False
    holder: Holder | None = None
    admission: Reservation | None = None
    direct: float = -1.0
    below: float = 0.0
    needs_thread: bool = False
    fetch: Any = None
    number: int = 0
    on_part: OnPart | None = None

    @property
    def request_id(self) -> str:
        """For the log."""
        return self.request.request_id

    def cancel(self) -> None:
        """Withdraw the request; nothing is delivered any more."""
        if not self.ended and self.holder is not None:
            self.holder.withdraw(self)

    def end(self) -> bool:
        """Release the place that admission gave. Returns: True if the request had not ended before."""
        if self.ended:
            return False
        self.ended = True
        self.holder = None
        if self.admission is not None:
            self.admission.leave()
            self.admission = None
        return True

    def finish(self, outcome: object) -> bool:
        """`end`, then `report`: each request comes here, so no call is spent on them."""
        if self.ended:
            return False
        self.ended = True
        self.holder = None
        admission = self.admission
        if admission is not None:
            self.admission = None
            admission.leave()
        try:
            self.deliver(outcome)
        except Exception:  # as in `report`
            log.exception("an answer could not be delivered")
        return True

    def report(self, outcome: object) -> None:
        """Deliver the outcome of a request that has ended."""
        try:
            self.deliver(outcome)
        except Exception:  # the boundary: a receiver's failure must not cost the others their answers
            log.exception("an answer could not be delivered")


class LargerThanPredicted(Exception):
    """A batch reads far more rows than was predicted; raised before they are read.

    A batch of several is split, and a request that is larger alone goes back to the queue, to wait and run
    as what it is.

    Args:
        rows: that it reads at least.
    """

    def __init__(self, rows: int) -> None:
        super().__init__(f"{rows} rows")
        self.rows = rows


class Observer(Protocol):
    """Gets notified of what happened; must be cheap."""

    def batch(
        self, batch: Sequence[Work], outcomes: Sequence[Any], queue_s: Sequence[float], compute_s: float
    ) -> None:
        """A batch ran and was delivered; all but `compute_s` have one entry for each request."""
        return

    def late(self, work: Work, error: HoplineError) -> None:
        """A request's deadline passed, or it gave way to another one; it has its error."""
        return

    def outcome(self, code: str, count: int = 1) -> None:
        """Requests ended: "ok", "cancelled" or an error's code."""
        return

    def postponed(self, work: Work) -> None:
        """A request lacks something: fetch it, then call `resume`; called on the event loop."""
        return

    def larger(self, work: Work) -> None:
        """A request reads far more rows than was predicted: its `rows` say now how many; it waits again."""
        return


class Released(Observer):
    """The observer of a queue that was released: a batch may be under way where a drain was cut short."""


def refuse_all(batch: Sequence[Work]) -> Sequence[Any]:
    """Runner of a batcher that was released."""
    return [Unavailable("the model was unloaded") for _ in batch]


def predicted_rows(batch: Sequence[Work]) -> int:
    """Rows that were predicted for a batch."""
    return sum([work.rows for work in batch])
