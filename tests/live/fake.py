"""A keeper in memory, whose disk is as slow and as full as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from hopline.errors import HoplineError
from hopline.graph.live.changes import Applied, Changes


class FakeKeeper:
    """Applies everything; knows event ids.

    Attributes:
        steps: batches of each step, as numbers of events.
        gate: a step begins when it is set.
        refuse: raised by the next step that has more events than `refuse_above`.
    """

    def __init__(self) -> None:
        self.sequence = self.snapshot_sequence = self.bytes_since_snapshot = 0
        self.filled = 0.25
        self.confirmed = 0
        self.follows = False
        self.positions: dict[str, Any] = {}
        self.steps: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.refuse: BaseException | None = None
        self.refuse_above = 0
        self.snapshot_problem: HoplineError | None = None
        self.ids: set[str] = set()
        self._own = threading.Lock()

    def apply(self, batches: Sequence[Changes]) -> list[Applied]:
        assert self._own.acquire(blocking=False), "two threads at once"
        try:
            self.gate.wait(10)
            if self.refuse is not None and any(each.num_events > self.refuse_above for each in batches):
                raise self.refuse
            self.steps.append([each.num_events for each in batches])
            return [self._apply(each) for each in batches]
        finally:
            self._own.release()

    def _apply(self, changes: Changes) -> Applied:
        duplicates = [i for i, each in enumerate(changes.event_ids) if each in self.ids]
        self.ids |= set(changes.event_ids)
        self.positions |= changes.positions
        count = changes.num_events - len(duplicates)
        self.sequence += bool(count)
        self.bytes_since_snapshot += 10 * count
        return Applied(self.sequence, count, tuple(duplicates))

    def affected(self, since: int) -> tuple[int, dict[str, Any]]:
        return self.sequence, {"user": ["a", "ü"], "item": np.arange(since, self.sequence)}

    def begin_snapshot(self) -> int | None:
        return None if self.sequence == self.snapshot_sequence else self.sequence

    def confirm(self) -> None:
        self.confirmed += 1

    def write_snapshot(self, draft: int) -> None:
        if self.snapshot_problem is not None:
            raise self.snapshot_problem
        self.snapshot_sequence, self.bytes_since_snapshot = draft, 0
