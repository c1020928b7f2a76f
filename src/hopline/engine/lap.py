"""Stages of a batch's time: a watch that the engine presses when one stage of the work ends.

All time since `start` is assigned to the stage that ends next, so no time between stages is lost:

    start ──ids, plan, sampling──► sampled ──gather, layers, state cache, head──► computed ──split──► end
"""

from __future__ import annotations

from time import perf_counter


class LapWatch:
    """Stopwatch of one model, used by the thread that computes its batch; 0.1 µs for each press.

    Attributes:
        sample_s, compute_s: seconds since `start`, over all parts of a batch (time cuts, inline nodes).
    """

    __slots__ = ("_last", "compute_s", "sample_s")

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A batch begins."""
        self.sample_s = self.compute_s = 0.0
        self._last = perf_counter()

    def sampled(self) -> None:
        """Ids are looked up and neighbours sampled."""
        now = perf_counter()
        self.sample_s += now - self._last
        self._last = now

    def computed(self) -> None:
        """States, or outputs of states, are computed."""
        now = perf_counter()
        self.compute_s += now - self._last
        self._last = now
