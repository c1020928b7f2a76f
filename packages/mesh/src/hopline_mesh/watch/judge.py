"""The detector, its checkpoints, and the swap after a training. Runs on the thread of the steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from hopline.errors import ModelNotReady
from hopline_mesh.changes import Context
from hopline_mesh.detect import MeshDetector
from hopline_mesh.detect.live import LiveState
from hopline_mesh.incident import Verdict
from hopline_mesh.snapshot import FloatArray, Snapshot
from hopline_mesh.state import Seen
from hopline_mesh.state.keeper import Keeper
from hopline_mesh.watch.trainer import Trainer


class Judge:
    """Steps a detector and saves its state. Not thread-safe.

    Args:
        shape: the settings and columns that the saved state is for.
        checkpoint_s: seconds between checkpoints.
        learning: None never trains.
        shown: returns other content of a checkpoint, JSON-compatible.
    """

    def __init__(
        self,
        detector: MeshDetector,
        keeper: Keeper,
        *,
        shape: Mapping[str, Any],
        checkpoint_s: float = 300.0,
        learning: Trainer | None = None,
        shown: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.detector = detector
        self._keeper = keeper
        self._shape = shape
        self._checkpoint_s = checkpoint_s
        self._learning = learning
        self._shown = shown
        self._kept_at: float | None = None
        self._newest: Snapshot | None = None

    def judge(self, snapshot: Snapshot, context: Context) -> tuple[Verdict, FloatArray]:
        """Judge the next interval; returns also the anomaly scores of its services."""
        verdict = self.detector.step(snapshot, context)
        self._newest = snapshot
        return verdict, self.detector.scores(snapshot)

    def live(self) -> LiveState:
        """Return deviations that follow events after the newest interval; see `MeshDetector.live`.

        Raises:
            ModelNotReady: there is no verdict since the start.
        """
        if self._newest is None:
            raise ModelNotReady(
                "there are no deviations yet: they exist after the first interval", retry_after_s=15.0
            )
        return self.detector.live(self._newest)

    def keep(self, snapshot: Snapshot, context: Context, verdict: Verdict) -> None:
        """Save a judged interval, and a checkpoint when one is due."""
        self._keeper.keep(snapshot, context)
        self._learn(Seen(snapshot, context), verdict)
        now = time.monotonic()
        if self._kept_at is None or now - self._kept_at >= self._checkpoint_s:
            self._kept_at = now
            self.checkpoint()

    def _learn(self, seen: Seen, verdict: Verdict) -> None:
        if self._learning is None:
            return
        self._learning.saw(seen, verdict)
        trained = self._learning.advance(seen.snapshot.roster.names, seen)
        if trained is not None:
            trained.adopt(self.detector)
            self.detector = trained
            self._kept_at = None  # write a checkpoint now: a restart must not restore the previous detector

    def abnormal(self) -> dict[str, tuple[float, float]]:
        """Return the times to leave out of trainings by incident; JSON-compatible."""
        return {} if self._learning is None else dict(self._learning.export())

    def checkpoint(self) -> None:
        """Save the state as of the newest interval; does nothing before the first."""
        newest = self._newest
        if newest is None:
            return
        meta, arrays = self.detector.export()
        trained = self._learning is not None and self._learning.trained
        self._keeper.checkpoint(
            {"detector": meta, "shown": self._shown(), "trained": trained},
            arrays,
            time_s=newest.time_s,
            names=list(newest.roster.names),
            shape=self._shape,
        )

    def close(self) -> None:
        """Save the state, and stop a running training."""
        if self._learning is not None:
            self._learning.close()
        self.checkpoint()
