"""The detector, its checkpoints, and the swap after a training.

On the thread of the steps, but for quick steps, which the loop does itself; never on two threads at once.
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
from hopline_mesh.incident import Verdict
from hopline_mesh.out.board import Scores
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.state import Seen
from hopline_mesh.state.keeper import Keeper
from hopline_mesh.tagae.live import LiveState


class KeptDetector(Protocol):
    """A detector that can be kept over a restart."""

    @property
    def thresholds(self) -> Mapping[str, float]:
        """Column, such as "node.p99_ms" -> spreads at which its score is 1."""

    def step(self, snapshot: Snapshot, context: Context, /) -> Verdict:
        """Judge the next interval; see `Detector`."""

    def scores(self, snapshot: Snapshot) -> Scores:
        """Scores of the nodes of the snapshot that was judged last."""

    def live(self, snapshot: Snapshot) -> LiveState:
        """Embeddings that follow events after the snapshot that was judged last."""

    def export(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """All that it knows; the arrays are copies."""


class Learning(Protocol):
    """Trains beside the loop.

    Attributes:
        trained: whether the detector that there is was trained.
    """

    trained: bool

    def saw(self, seen: Seen, verdict: Verdict) -> None:
        """Take note of an interval that was judged."""

    def advance(self, names: Sequence[str], seen: Seen) -> KeptDetector | None:
        """Begin, go on with or end a training.

        Called after each step, on the thread of the steps; must not take long.

        Args:
            names: of the roster.
            seen: the newest interval.

        Returns: a detector that takes the place of the one there is, up to date.
        """

    def close(self) -> None:
        """End a training that is under way."""


#: A step that took less is done by the loop itself. Handed over it takes up to twice as long: the thread
#: that it goes to and the one that helps with it begin on the same processor.
QUICK_S = 0.005
#: How much larger than the mesh that was quick another one may be.
_LIKE = 1.25


def _size_of(snapshot: Snapshot) -> int:
    return len(snapshot.nodes) + len(snapshot.edge_src)


@dataclass(frozen=True, slots=True)
class Judged:
    """One interval that was judged."""

    verdict: Verdict
    scores: Scores


class Judge:
    """Steps a detector and keeps what it learned. Not for use by several threads at once.

    Args:
        shape: the settings and columns that kept state is for.
        checkpoint_s: seconds between checkpoints.
        learning: None never trains.
        shown: gives what else a checkpoint shall hold, fit for JSON.
    """

    def __init__(
        self,
        detector: KeptDetector,
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
        """Whether an interval can be judged at once, and not by another thread."""
        return self._took_s < QUICK_S and _size_of(snapshot) <= _LIKE * self._size

    def rouse(self) -> None:
        """An interval is about to be judged: whoever helps with that wakes up while it is made ready."""
        rouse = getattr(self.detector, "rouse", None)
        if rouse is not None:
            rouse()

    def judge(self, snapshot: Snapshot, context: Context) -> Judged:
        """Judge the next interval."""
        began = time.perf_counter()
        verdict = self.detector.step(snapshot, context)
        self._newest = snapshot
        judged = Judged(verdict, self.detector.scores(snapshot))
        self._took_s, self._size = time.perf_counter() - began, _size_of(snapshot)
        return judged

    def live(self) -> LiveState:
        """Embeddings that follow events from the newest interval on; see `Tagae.live`.

        Raises:
            ModelNotReady: nothing was judged since the start, or the detector has no model.
        """
        if self._newest is None:
            raise ModelNotReady(
                "there are no embeddings yet: they come with the first interval", retry_after_s=15.0
            )
        return self.detector.live(self._newest)

    def keep(self, snapshot: Snapshot, context: Context, verdict: Verdict) -> None:
        """Keep an interval that was judged and told, and now and then all that was learned."""
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
            self.detector = trained
            self._kept_at = None  # a restart must not go back to what was before

    def checkpoint(self) -> None:
        """Keep what was learned up to the newest interval; nothing before the first."""
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
        """Keep all, and end a training that is under way."""
        if self._learning is not None:
            self._learning.close()
        self.checkpoint()
