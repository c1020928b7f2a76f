"""What the watch asks of whatever judges a mesh: TAGAE, or a baseline that it is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hopline_mesh.changes import Context
from hopline_mesh.incident import Verdict
from hopline_mesh.snapshot import Snapshot


class Detector(Protocol):
    """Learns what is normal, then judges one interval after the other."""

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """Learn from intervals that are taken as normal, oldest first; replaces what was learned before."""

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """Judge the next interval.

        Args:
            snapshot: later than all that were given before; same roster and schema.
            context: what is known of planned changes and troubles at that time.
        """
