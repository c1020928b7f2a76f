"""Trains a detector on a recording's training period and runs it on the test period."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from hopline_mesh.changes import Context
from hopline_mesh.evaluate.recording import Recording
from hopline_mesh.evaluate.scores import GRACE_S, Scores, score
from hopline_mesh.incident import Verdict
from hopline_mesh.snapshot import Snapshot


class Detector(Protocol):
    """Learns what is normal, then judges intervals in order: that of the watch, or a simple one."""

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """Learn from normal intervals, oldest first; replaces all previous state."""

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """Judge the next interval.

        Args:
            snapshot: later than all previous ones; same roster and schema.
            context: planned changes and troubles at that time.
        """


@dataclass(frozen=True)
class Judgement:
    """The verdicts of a detector on a test, and its times.

    Attributes:
        verdicts: one for each snapshot, oldest first.
        fit_s: seconds of the training.
        step_ms: median milliseconds of an interval.
    """

    verdicts: list[Verdict]
    fit_s: float
    step_ms: float

    def score(self, recording: Recording, *, grace_s: float = GRACE_S) -> Scores:
        """Compare the verdicts with the events of the recording."""
        return score(
            self.verdicts, recording.test_events(), interval_s=recording.interval_s, grace_s=grace_s
        )


def judge(
    detector: Detector, recording: Recording, *, progress: Callable[[int, int], None] | None = None
) -> Judgement:
    """Train a detector, then run it on the test.

    Args:
        recording: in playing order (`Recording.in_playing_order`).
        progress: called with the number of judged snapshots, and the total.
    """
    began = time.perf_counter()
    detector.fit(*recording.training())
    fit_s = time.perf_counter() - began
    snapshots, contexts = recording.testing()
    verdicts, times = [], []
    for number, (snapshot, context) in enumerate(zip(snapshots, contexts, strict=True), start=1):
        began = time.perf_counter()
        verdicts.append(detector.step(snapshot, context))
        times.append(time.perf_counter() - began)
        if progress is not None:
            progress(number, len(snapshots))
    return Judgement(verdicts, fit_s, 1e3 * median(times) if times else 0.0)
