"""What to admit, in which order, when to run and where: pure decisions; the clock is an argument.

Priorities are three lanes. A waiting request's *rank* is when it came plus the handicap of its lane, and
the smallest rank goes first. A queue is therefore served in order of arrival, in which "high" overtakes
what came up to 0.25 s before it, and nothing for ever: once a request has waited for longer than its
handicap, nobody who comes later goes before it. The same rank says who gives way when a queue is full: a
newcomer may push out those that it would overtake, and no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: Lanes, in the order of `types.Priority`.
HIGH, NORMAL, LOW = 0, 1, 2
LANES = {"high": HIGH, "normal": NORMAL, "low": LOW}
#: Seconds by which each lane may be overtaken.
HANDICAP_S = (0.0, 0.25, 1.0)
#: "low" is refused once a queue is so full, so that there is room for the others.
_LOW_SHARE = 0.5
#: A batch of this cost is long: to mispredict it matters.
_LONG_US = 500.0


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Bounds of one model's queue and batches.

    Attributes:
        max_rows: predicted rows of one batch; a request above it runs alone.
        max_bytes: predicted working memory of one batch.
        queue_delay_s: wait so long after the oldest request for company; 0 batches what is waiting.
        max_queue_rows: predicted rows that may wait.
        inline_cost_us: predicted cost up to which a batch runs on the event loop.
        max_concurrency: requests that may be without their outcome; 0 for any number.
        slice_us: as `inline_cost_us`, and the longest batch, while other models share the loop.
    """

    max_rows: int
    max_bytes: int
    queue_delay_s: float
    max_queue_rows: int
    inline_cost_us: float
    max_concurrency: int = 0
    slice_us: float = 500.0

    def room(self, lane: int) -> int:
        """Predicted rows that may wait when a request of this lane joins them."""
        return int(self.max_queue_rows * _LOW_SHARE) if lane == LOW else self.max_queue_rows

    def admits(self, queued_rows: int, rows: int, lane: int = NORMAL) -> bool:
        """Whether a request of `rows` may join a queue of `queued_rows`; an empty queue takes any."""
        return queued_rows == 0 or queued_rows + rows <= self.room(lane)

    def wait_s(self, oldest: float, queued_rows: int, now: float) -> float:
        """Seconds until a queue should run whose oldest request came at `oldest`; 0 is now."""
        if queued_rows >= self.max_rows:
            return 0.0
        return max(0.0, oldest + self.queue_delay_s - now)

    def slice_rows(self, cost: CostModel, first_rows: int) -> int | None:
        """Rows of a batch that keeps a shared loop for at most a slice.

        Args:
            cost: of this model.
            first_rows: of the request that goes first.

        Returns: None where not even that one fits; it runs on a thread, in a batch of any size.
        """
        rows = cost.rows_within(min(self.slice_us, self.inline_cost_us))
        return rows if rows >= first_rows else None


def first_lane(heads: Sequence[float | None]) -> int:
    """The lane that goes next.

    Args:
        heads: when the first request of each lane came, None for an empty lane; at least one is not.
    """
    best, least = -1, float("inf")
    for lane, came in enumerate(heads):
        if came is not None and came + HANDICAP_S[lane] < least:
            best, least = lane, came + HANDICAP_S[lane]
    return best


def lane_to_displace(tails: Sequence[float | None], lane: int, now: float) -> int | None:
    """The lane whose last request gives way to one that comes now; None where nobody does.

    Args:
        tails: when the last request of each lane came, None for an empty lane.
        lane: of the newcomer.
    """
    rank = now + HANDICAP_S[lane]
    for other in (LOW, NORMAL):
        came = tails[other]
        if other > lane and came is not None and came + HANDICAP_S[other] > rank:
            return other
    return None


class CostModel:
    """Predicts microseconds of a batch from its predicted rows.

    An exponentially weighted mean of the cost of a row over recent batches, above a fixed cost for
    each batch. Warm tables make rows cheaper; the mean follows within some tens of batches, and within a
    few where a batch was long and far from what was predicted: those are what a shared loop feels.
    Costs are processor time: a thread that waits for the interpreter would make its batch look dear, and a
    batch that looks dear is sent to a thread.

    Args:
        fixed_us: of any batch.
        us_per_row: before the first observation.
    """

    def __init__(self, fixed_us: float = 30.0, us_per_row: float = 0.5) -> None:
        self.fixed_us = fixed_us
        self.us_per_row = us_per_row

    def predict_us(self, rows: int) -> float:
        """Microseconds that a batch of `rows` is likely to take."""
        return self.fixed_us + self.us_per_row * rows

    def rows_within(self, limit_us: float) -> int:
        """Rows of the largest batch that is likely to take at most `limit_us`; 0 where none is."""
        left_us = limit_us - self.fixed_us
        if left_us < self.us_per_row:
            return 0
        return int(min(left_us / max(self.us_per_row, 1e-9), 1e12))

    def observe(self, rows: int, elapsed_us: float) -> None:
        """Learn from a batch that took `elapsed_us` of processor time."""
        if rows > 0:
            predicted_us = self.predict_us(rows)
            seen = max(0.0, elapsed_us - self.fixed_us) / rows
            is_off = not 0.5 <= elapsed_us / predicted_us <= 2.0
            gain = 0.5 if is_off and max(elapsed_us, predicted_us) > _LONG_US else 0.05
            self.us_per_row += gain * (seen - self.us_per_row)
