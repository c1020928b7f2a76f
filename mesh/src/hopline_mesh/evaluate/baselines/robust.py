"""Compares each series with the median and the interquartile range of its normal values.

The scorer of BARO (Pham et al., 2024, https://arxiv.org/abs/2405.09330): suspects are ranked by the largest
distance from the median, in interquartile ranges. BARO's change point detection is not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.baselines.bounds import Bounded
from hopline_mesh.evaluate.baselines.rows import Values
from hopline_mesh.evaluate.recording import Recording

#: Least interquartile range, as a share of the median: a series that hardly moves would have none.
_LEAST = 0.01


class Robust(Bounded):
    """A bound at a number of interquartile ranges.

    Args:
        ranges: maximum distance from the median, in interquartile ranges.
        min_duration_s, columns: see `Bounded`.
    """

    def __init__(
        self,
        *,
        ranges: float = 5.0,
        min_duration_s: float = MIN_DURATION_S,
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__("robust", min_duration_s=min_duration_s, columns=columns)
        self._ranges = ranges

    def bounds(self, values: Values) -> tuple[Values, Values]:
        """See `Bounded.bounds`."""
        low, middle, high = np.nanpercentile(values, [25, 50, 75], axis=0)
        spread = np.maximum(high - low, _LEAST * np.abs(middle))
        # A series that is always 0, such as errors that never happen, has no range to measure by.
        return middle, self._ranges * np.where(spread > 0, spread, np.nan)


def make(recording: Recording, min_duration_s: float) -> Robust:
    """Create the detector with its documented settings."""
    return Robust(min_duration_s=min_duration_s)
