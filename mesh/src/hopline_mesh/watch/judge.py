"""The detector, its checkpoints, and the swap after a training.

Runs on the thread of the steps, except quick steps, which the loop runs; never on two threads together.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from hopline.errors import ModelNotReady
from hopline_mesh.changes import Context
from hopline_mesh.detect.live import LiveState
from hopline_mesh.incident import Verdict
from hopline_mesh.out.board import Scores
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.state import Seen
from hopline_mesh.state.keeper import Keeper


class SavedDetector(Protocol):
    """A detector whose state survives a restart."""

    @property
    def thresholds(self) -> Mapping[str, float]:
        """Column, such as "node.p99_ms" -> deviation, in spreads, at which its anomaly score is 1."""

    def step(self, snapshot: Snapshot, context: Context, /) -> Verdict:
        """Judge the next interval; see `Detector`."""

    def scores(self, snapshot: Snapshot) -> Scores:
        """Return the anomaly scores of the nodes of the newest judged snapshot."""

    def live(self, snapshot: Snapshot) -> LiveState:
        """Return deviations that follow events after the newest judged snapshot."""

    def adopt(self, before: Any, /) -> None:
        """Continue the open incidents of the detector that this one replaces; same kind and roster."""

    def export(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return its whole state; the arrays are copies."""


class Learning(Protocol):
    """Trains in the background.

    Attributes:
        trained: whether the present detector was trained.
    """

    trained: bool

    def saw(self, seen: Seen, verdict: Verdict) -> None:
        """Note a judged interval."""

    def advance(self, names: Sequence[str], seen: Seen) -> SavedDetector | None:
        """Begin, continue or end a training.

        Called after each step, on the thread of the steps; must not take long.

        Args:
            names: of the roster.
            seen: the newest interval.

        Returns: a detector, up to date, that replaces the present one; else None.
        """

    def export(self) -> Mapping[str, tuple[float, float]]:
        """Return the times to leave out of trainings by incident; JSON-compatible."""

    def close(self) -> None:
        """Stop a running training."""


#: The loop itself runs a step if the previous one was faster than this: another thread would start later.
QUICK_S = 0.005
#: Maximum size of a mesh for a quick step, relative to the mesh of the previous step.
_MAX_GROWTH = 1.25


def _size_of(snapshot: Snapshot) -> int:
    return len(snapshot.nodes) + len(snapshot.edge_src)


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of one interval."""

    verdict: Verdict
    scores: Scores


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
        detector: SavedDetector,
        keeper: Keeper,
        *,
        shape: Mapping[str, Any],
        checkpoint_s: float = 300.0,
        learning: Learning | None = None,
        shown: Callable[[], dict[str, Any]] = dict,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.detector = detector
        self._keeper = keeper
        self._shape = shape
        self._checkpoint_s = checkpoint_s
        self._learning = learning
        self._shown = shown
        self._monotonic = monotonic
        self._kept_at: float | None = None
        self._newest: Snapshot | None = None
        self._took_s = math.inf
        self._size = 0

    def is_quick(self, snapshot: Snapshot) -> bool:
        """Whether the event loop can judge an interval itself, without another thread."""
        return self._took_s < QUICK_S and _size_of(snapshot) <= _MAX_GROWTH * self._size

    def judge(self, snapshot: Snapshot, context: Context) -> Judged:
        """Judge the next interval."""
        began = time.perf_counter()
        verdict = self.detector.step(snapshot, context)
        self._newest = snapshot
        judged = Judged(verdict, self.detector.scores(snapshot))
        self._took_s, self._size = time.perf_counter() - began, _size_of(snapshot)
        return judged

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
        now = self._monotonic()
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
