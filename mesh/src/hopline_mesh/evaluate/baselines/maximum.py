"""Compares each series with the largest of its normal values, plus a margin."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.baselines.bounds import Bounded
from hopline_mesh.evaluate.baselines.rows import Values
from hopline_mesh.evaluate.recording import Recording


class Maximum(Bounded):
    """A bound at a multiple of the largest normal value.

    Args:
        times: factor on the largest normal value.
        min_duration_s, columns: see `Bounded`.
    """

    def __init__(
        self,
        *,
        times: float = 1.2,
        min_duration_s: float = MIN_DURATION_S,
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__("maximum", min_duration_s=min_duration_s, columns=columns)
        self._times = times

    def bounds(self, values: Values) -> tuple[Values, Values]:
        """See `Bounded.bounds`."""
        reach = self._times * np.nanmax(values, axis=0)
        return np.zeros_like(reach), reach


def make(recording: Recording, min_duration_s: float) -> Maximum:
    """Create the detector with its documented settings."""
    return Maximum(min_duration_s=min_duration_s)
