"""What to admit, when to run and where: pure decisions; the clock is an argument."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """Bounds of one model's queue and batches.

    Attributes:
        max_rows: predicted rows of one batch; a request above it runs alone.
        max_bytes: predicted working memory of one batch.
        queue_delay_s: wait so long after the oldest request for company; 0 batches what is waiting.
        max_queue_rows: predicted rows that may wait.
        inline_cost_us: predicted cost up to which a batch runs on the event loop.
    """

    max_rows: int
    max_bytes: int
    queue_delay_s: float
    max_queue_rows: int
    inline_cost_us: float

    def admits(self, queued_rows: int, rows: int) -> bool:
        """Whether a request of `rows` may join a queue of `queued_rows`; an empty queue takes any."""
        return queued_rows == 0 or queued_rows + rows <= self.max_queue_rows

    def fits(self, batch_rows: int, batch_bytes: int, rows: int, num_bytes: int) -> bool:
        """Whether a request may join a batch that has something in it."""
        return batch_rows + rows <= self.max_rows and batch_bytes + num_bytes <= self.max_bytes

    def wait_s(self, oldest: float, queued_rows: int, now: float) -> float:
        """Seconds until a queue should run whose oldest request came at `oldest`; 0 is now."""
        if queued_rows >= self.max_rows:
            return 0.0
        return max(0.0, oldest + self.queue_delay_s - now)


class CostModel:
    """Predicts microseconds of a batch from its predicted rows.

    An exponentially weighted mean of the cost of a row over recent batches, above a fixed cost for
    each batch. Warm tables make rows cheaper; the mean follows within some tens of batches. Costs are
    processor time: a thread that waits for the interpreter would make its batch look dear, and a batch
    that looks dear is sent to a thread.

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

    def observe(self, rows: int, elapsed_us: float) -> None:
        """Learn from a batch that took `elapsed_us` of processor time."""
        if rows > 0:
            seen = max(0.0, elapsed_us - self.fixed_us) / rows
            self.us_per_row += 0.05 * (seen - self.us_per_row)
