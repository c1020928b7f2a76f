"""Each series against the 99th percentile of its own normal values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline_mesh.evaluate.baselines.bounds import Bounded
from hopline_mesh.evaluate.baselines.rows import Values
from hopline_mesh.evaluate.recording import Recording


class Percentile(Bounded):
    """Args:
    percent: of its own normal values that a series may not exceed.
    min_duration_s, columns: see `Bounded`.
    """

    def __init__(
        self, *, percent: float = 99.0, min_duration_s: float = 120.0, columns: Sequence[str] | None = None
    ) -> None:
        super().__init__("percentile", min_duration_s=min_duration_s, columns=columns)
        self._percent = percent

    def bounds(self, values: Values) -> tuple[Values, Values]:
        """See `Bounded.bounds`."""
        reach = np.nanpercentile(values, self._percent, axis=0)
        return np.zeros_like(reach), reach


def make(recording: Recording) -> Percentile:
    """At its documented setting."""
    return Percentile()
