"""Latencies as log-normal distributions, defined by mean and variance.

Waiting times and service times are skewed with a long tail. A log-normal distribution has this form, and
its quantiles and shares have closed forms.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def normal_cdf(z: Floats) -> Floats:
    """Return the standard normal CDF at z; error below 1e-7 (Abramowitz and Stegun 26.2.17)."""
    a = np.abs(z)
    t = 1.0 / (1.0 + 0.2316419 * a)
    poly = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = poly * np.exp(-0.5 * a * a) * 0.3989422804014327
    return np.where(z > 0, 1.0 - tail, tail)


def parameters(mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Return mu and sigma of the logarithm; a mean of 0 is treated as 1e-6."""
    mean = np.maximum(mean, 1e-6)
    squared = np.log1p(np.maximum(variance, 0.0) / (mean * mean))
    return np.log(mean) - squared / 2, np.sqrt(np.maximum(squared, 1e-8))


def share_above(bound: Floats, mean: Floats, variance: Floats) -> Floats:
    """Return the share of values above a bound."""
    mu, sigma = parameters(mean, variance)
    return 1.0 - normal_cdf((np.log(bound) - mu) / sigma)


def quantile(share: float, mean: Floats, variance: Floats, stuck: Floats, stuck_ms: Floats) -> Floats:
    """Return a quantile of latencies, of which some are stuck until a timeout.

    Args:
        share: such as 0.99.
        mean, variance: of those that are not stuck.
        stuck: share that is stuck, with the latency `stuck_ms`.
    """
    mu, sigma = parameters(mean, variance)
    within = np.clip(share / np.maximum(1.0 - stuck, 1e-9), 1e-6, 1.0 - 1e-6)
    smooth = np.exp(mu + sigma * _normal_quantile(within))
    return np.where(
        share >= 1.0 - stuck,
        stuck_ms,
        np.where(stuck > 0.0, np.minimum(smooth, np.maximum(stuck_ms, mean)), smooth),
    )


def _normal_quantile(share: Floats) -> Floats:
    """Return the inverse of `normal_cdf`; error below 4.5e-4 (Abramowitz and Stegun 26.2.23)."""
    tail = np.minimum(share, 1.0 - share)
    t = np.sqrt(-2.0 * np.log(tail))
    z = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (
        1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    )
    return np.where(share < 0.5, -z, z)
