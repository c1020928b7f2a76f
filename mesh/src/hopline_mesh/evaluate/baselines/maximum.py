"""Each series against the largest of its own normal values, and a margin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline_mesh.evaluate.baselines.bounds import Bounded
from hopline_mesh.evaluate.baselines.rows import Values
from hopline_mesh.evaluate.recording import Recording


class Maximum(Bounded):
    """Args:
    times: the largest normal value times this may not be exceeded.
    min_duration_s, columns: see `Bounded`.
    """

    def __init__(
        self, *, times: float = 1.2, min_duration_s: float = 120.0, columns: Sequence[str] | None = None
    ) -> None:
        super().__init__("maximum", min_duration_s=min_duration_s, columns=columns)
        self._times = times

    def bounds(self, values: Values) -> tuple[Values, Values]:
        """See `Bounded.bounds`."""
        reach = self._times * np.nanmax(values, axis=0)
        return np.zeros_like(reach), reach


def make(recording: Recording) -> Maximum:
    """At its documented setting."""
    return Maximum()
