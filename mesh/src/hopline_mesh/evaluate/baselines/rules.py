"""Plain rules: bounds for each series from its own normal values."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopline_mesh.evaluate.baselines.bounds import Bounded
from hopline_mesh.evaluate.baselines.rows import Values

#: Least interquartile range, as a share of the median: a series that hardly moves would have none.
_LEAST = 0.01


def percentile(percent: float = 99.0, **options: Any) -> Bounded:
    """Return a detector with a bound at a percentile of the normal values; for options see `Bounded`."""
    return Bounded(
        "percentile", lambda values: _from_zero(np.nanpercentile(values, percent, axis=0)), **options
    )


def maximum(times: float = 1.2, **options: Any) -> Bounded:
    """Return a detector with a bound at a multiple of the largest normal value."""
    return Bounded("maximum", lambda values: _from_zero(times * np.nanmax(values, axis=0)), **options)


def sigma(sigmas: float = 6.0, **options: Any) -> Bounded:
    """Return a detector with bounds at a number of standard deviations from the mean, on both sides."""

    def bounds(values: Values) -> tuple[Values, Values]:
        return np.nanmean(values, axis=0), sigmas * np.nanstd(values, axis=0)

    return Bounded("sigma", bounds, **options)


def robust(ranges: float = 5.0, **options: Any) -> Bounded:
    """Return a detector with bounds at a number of interquartile ranges from the median.

    The scorer of BARO (Pham et al., 2024, https://arxiv.org/abs/2405.09330): suspects are ranked by the
    largest distance from the median, in interquartile ranges. BARO's change point detection is not part of
    it.
    """

    def bounds(values: Values) -> tuple[Values, Values]:
        low, middle, high = np.nanpercentile(values, [25, 50, 75], axis=0)
        spread = np.maximum(high - low, _LEAST * np.abs(middle))
        # A series that is always 0, such as errors that never happen, has no range to measure by.
        return middle, ranges * np.where(spread > 0, spread, np.nan)

    return Bounded("robust", bounds, **options)


def _from_zero(reach: Values) -> tuple[Values, Values]:
    return np.zeros_like(reach), reach
