"""Pure decisions about admission, order, time and place of batches; the clock is an argument.

Priorities are three lanes. A waiting request's *rank* is when it came plus the handicap of its lane, and
the smallest rank goes first. A queue is therefore served in order of arrival, in which "high" overtakes
what came up to 0.25 s before it, and nothing for ever: once a request has waited for longer than its
handicap, no later request goes before it. The same rank says who gives way when a queue is full: a
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
#: How much of an error is learned from one batch: from most; from a long one that was far off.
_SLOW, _FAST = 0.05, 0.5
#: Times what was predicted that one batch may say: it may have waited for a page of memory.
_CLIP = 8.0
#: Bounds of what is learned. No memory is as fast as the second: batches that only look small things up
#: must not make a million rows look cheap.
_LEAST_FIXED_US, _LEAST_ROW_US = 1.0, 0.02
#: What is not believed of a few batches before the first request: that a row costs less than this.
_FIRST_ROW_US = 0.1


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Bounds of one model's queue and batches.

    Attributes:
        max_rows: predicted rows of one batch; a request above it runs alone.
        max_bytes: predicted working memory of one batch.
        queue_delay_s: wait so long after the oldest request for company; 0 batches what is waiting.
        max_queue_us: predicted processor time that may wait.
        max_queue_rows: predicted rows that may wait; 0 for any number.
        inline_cost_us: predicted cost up to which a batch runs on the event loop.
        slice_us: as `inline_cost_us`, and the longest batch, while other models share the loop.
    """

    max_rows: int
    max_bytes: int
    queue_delay_s: float
    max_queue_us: float
    inline_cost_us: float
    max_queue_rows: int = 0
    slice_us: float = 500.0

    def too_full(
        self, queued_us: int, held_us: int, queued_rows: int = 0, rows: int = 0, lane: int = NORMAL
    ) -> str:
        """Why a request may not join a queue; "" where it may. An empty queue takes any.

        Args:
            queued_us, queued_rows: predicted for what waits.
            held_us, rows: predicted for the request.
        """
        if not queued_us:
            return ""
        share, for_low = (_LOW_SHARE, " for low priority") if lane == LOW else (1.0, "")
        max_us = share * self.max_queue_us
        if queued_us + held_us > max_us:
            return (
                f"the queue holds {queued_us / 1e3:.1f} ms of predicted processor time; "
                f"{held_us / 1e3:.1f} ms more would pass the limit of {max_us / 1e3:g} ms{for_low} "
                "(max_queue_ms)"
            )
        if self.max_queue_rows and queued_rows + rows > share * self.max_queue_rows:
            return (
                f"the queue holds {queued_rows} predicted rows; {rows} more would pass the limit of "
                f"{int(share * self.max_queue_rows)}{for_low} (max_queue_rows)"
            )
        return ""

    def wait_s(self, oldest: float, queued_rows: int, now: float) -> float:
        """Seconds until a queue should run whose oldest request came at `oldest`; 0 is now."""
        if queued_rows >= self.max_rows:
            return 0.0
        return max(0.0, oldest + self.queue_delay_s - now)

    def slice_rows(self, cost: CostModel, first_rows: int) -> int | None:
        """Rows of a batch that keeps a shared loop for at most a slice.

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
    """The lane whose last request gives way to one that comes now; None where none does.

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
    """Predicts microseconds of a batch from the rows that it reads: `fixed_us + us_per_row * rows`.

    Both are learned from batches that ran. An error goes to the one and the other by their parts in the
    prediction (normalised least mean squares): small batches show the fixed cost, large ones the
    cost of a row. A batch says a little; one that was long and far from what was predicted says much,
    since those are what others feel.

    Costs are processor time: a thread that waits for the interpreter would make its batch look dear, and a
    batch that looks dear is sent to a thread.

    Args:
        fixed_us: of any batch, before the first observation.
        us_per_row: likewise.
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
        """Learn from a batch that read `rows` and took `elapsed_us` of processor time."""
        if rows <= 0:
            return
        by_rows_us = self.us_per_row * rows
        predicted_us = self.fixed_us + by_rows_us
        if elapsed_us > _CLIP * predicted_us:
            elapsed_us = _CLIP * predicted_us
        is_off = not 0.5 * predicted_us <= elapsed_us <= 2.0 * predicted_us
        gain = _FAST if is_off and max(elapsed_us, predicted_us) > _LONG_US else _SLOW
        power = self.fixed_us**2 + by_rows_us**2 + 1e-9
        step = gain * (elapsed_us - predicted_us) / power
        self.fixed_us = max(_LEAST_FIXED_US, self.fixed_us + step * self.fixed_us**2)
        self.us_per_row = max(_LEAST_ROW_US, self.us_per_row + step * by_rows_us * self.us_per_row)

    def begin(self, rows: Sequence[int], elapsed_us: Sequence[float]) -> None:
        """Begin with what batches took before the first request, the smallest first."""
        first, last = rows[0], rows[-1]
        if last <= first:
            return
        self.us_per_row = max(_FIRST_ROW_US, (elapsed_us[-1] - elapsed_us[0]) / (last - first))
        self.fixed_us = max(_LEAST_FIXED_US, elapsed_us[0] - self.us_per_row * first)
