"""Limits on a batch while it is planned and computed, checked between the steps, before each step's work.

    plan ────► level by level: reserve(bytes), look() ──► sample
    execute ──► level by level, chunk by chunk: look() ──► compute

A batch stops early when no caller waits for it any more, when it reads far more rows than predicted, or
when it needs more memory than a request may have. A fused plan is bounded by its fanouts: no check.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hopline.errors import DeadlineExceeded, RequestTooLarge

if TYPE_CHECKING:
    from hopline.scheduling.work import Work

#: Bytes for each sampled edge: its source and position, an entry in the hash of ids (up to two slots of 12
#: bytes for each id) and in the array of distinct ids, and its row.
EDGE_BYTES = 64


class Guard:
    """Checks one batch against its limits; see the module.

    Args:
        max_bytes: of one batch; a batch of several requests is split before it is refused.
        some_rows: rows that any batch may read; `larger` is called beyond that.
        larger: (requests of the batch, rows that it reads) -> the exception to raise, or None.
        clock: of deadlines, seconds.
        few_rows: see below.

    Attributes:
        batch: requests that are being answered; empty if no caller waits: then nothing is limited.
        rows: that the batch reads as far as is known: distinct ids of each level, and sampled edges. The
            planner adds to it.
        num_bytes: of arrays that the present plan allocates.
        few_rows: a batch of at most so many rows is too short to be checked between its steps.
    """

    __slots__ = ("_clock", "_larger", "_max_bytes", "_some_rows", "batch", "few_rows", "num_bytes", "rows")

    def __init__(
        self,
        max_bytes: int = sys.maxsize,
        some_rows: int = sys.maxsize,
        larger: Callable[[Sequence[Any], int], Exception | None] = lambda batch, rows: None,
        clock: Callable[[], float] = time.monotonic,
        few_rows: int = -1,
    ) -> None:
        self.few_rows = few_rows
        self._max_bytes = max_bytes
        self._some_rows = some_rows
        self._larger = larger
        self._clock = clock
        self.batch: Sequence[Work] = ()
        self.num_bytes = self.rows = 0

    def look_at(self, rows: int) -> None:
        """Call `look` as if `rows` more rows had been read; call it before reading them.

        Raises: as `look`.
        """
        self.rows += rows
        try:
            self.look()
        finally:
            self.rows -= rows

    def look(self) -> None:
        """Check whether the batch may continue.

        Raises:
            DeadlineExceeded: no caller waits for the batch any more.
            Exception: the one that `larger` returns.
        """
        batch = self.batch
        if not batch:
            return
        if self.rows > self._some_rows:
            found = self._larger(batch, self.rows)
            if found is not None:
                raise found
        now = self._clock()
        for item in batch:
            if item.deadline > now and not item.ended:
                return
        raise DeadlineExceeded("the request's deadline passed while its answer was computed")

    def reserve(self, num_bytes: int, num_edges: int) -> None:
        """Check whether the arrays of the next step may be allocated.

        Args:
            num_edges: edges that the arrays hold, for the message.

        Raises:
            RequestTooLarge: the arrays would exceed the limit.
            Exception: the one that `larger` returns for several requests that are too large together.
        """
        self.num_bytes += num_bytes
        if self.num_bytes <= self._max_bytes or not self.batch:
            return
        if len(self.batch) > 1:
            found = self._larger(self.batch, sys.maxsize)
            if found is not None:
                raise found
        raise RequestTooLarge(
            f"the request reads {num_edges} neighbours at one layer, and needs "
            f"{self.num_bytes / 2**20:.0f} MiB of memory with those above; at most "
            f"{self._max_bytes / 2**20:.0f} MiB are allowed (limits.max_request_bytes). "
            "Request fewer nodes in one call, or package the model with fanouts or --max-degree"
        )
