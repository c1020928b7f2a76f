"""Compares each series with the 99th percentile of its normal values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.baselines.bounds import Bounded
from hopline_mesh.evaluate.baselines.rows import Values
from hopline_mesh.evaluate.recording import Recording


class Percentile(Bounded):
    """A bound at a percentile of the normal values.

    Args:
        percent: percentile of the series' normal values.
        min_duration_s, columns: see `Bounded`.
    """

    def __init__(
        self,
        *,
        percent: float = 99.0,
        min_duration_s: float = MIN_DURATION_S,
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__("percentile", min_duration_s=min_duration_s, columns=columns)
        self._percent = percent

    def bounds(self, values: Values) -> tuple[Values, Values]:
        """See `Bounded.bounds`."""
        reach = np.nanpercentile(values, self._percent, axis=0)
        return np.zeros_like(reach), reach


def make(recording: Recording, min_duration_s: float) -> Percentile:
    """Create the detector with its documented settings."""
    return Percentile(min_duration_s=min_duration_s)
