"""The interface of a detector: that of the watch, or a simple one that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hopline_mesh.changes import Context
from hopline_mesh.incident import Verdict
from hopline_mesh.snapshot import Snapshot


class Detector(Protocol):
    """Learns what is normal, then judges intervals in order."""

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """Learn from normal intervals, oldest first; replaces all previous state."""

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """Judge the next interval.

        Args:
            snapshot: later than all previous ones; same roster and schema.
            context: planned changes and troubles at that time.
        """
