"""Compares each series with the mean and standard deviation of its normal values, on both sides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.baselines.bounds import Bounded
from hopline_mesh.evaluate.baselines.rows import Values
from hopline_mesh.evaluate.recording import Recording


class Sigma(Bounded):
    """A bound at a number of standard deviations.

    Args:
        sigmas: maximum distance from the mean, in standard deviations.
        min_duration_s, columns: see `Bounded`.
    """

    def __init__(
        self,
        *,
        sigmas: float = 6.0,
        min_duration_s: float = MIN_DURATION_S,
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__("sigma", min_duration_s=min_duration_s, columns=columns)
        self._sigmas = sigmas

    def bounds(self, values: Values) -> tuple[Values, Values]:
        """See `Bounded.bounds`."""
        return np.nanmean(values, axis=0), self._sigmas * np.nanstd(values, axis=0)


def make(recording: Recording, min_duration_s: float) -> Sigma:
    """Create the detector with its documented settings."""
    return Sigma(min_duration_s=min_duration_s)
