"""Latencies as log-normal distributions, defined by mean and variance.

Waiting times and service times are skewed with a long tail. A log-normal distribution has this form, and
its quantiles and shares have closed forms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class Latencies(NamedTuple):
    """Distributions of latencies, one for each service or call path: float64 [n] each."""

    mean_ms: Floats  # of requests that are not stuck
    variance: Floats  # of these
    stuck: Floats  # share of requests that wait for a timeout
    stuck_ms: Floats  # latency of those

    def of(self, rows: NDArray[np.int64]) -> Latencies:
        """Return the distributions of some rows."""
        return Latencies(*(values[rows] for values in self))

    def overall_ms(self) -> Floats:
        """Return the mean of all requests [n]."""
        return (1.0 - self.stuck) * self.mean_ms + self.stuck * self.stuck_ms

    def quantile(self, share: float) -> Floats:
        """Return a quantile of all requests [n], such as that of 0.99."""
        mu, sigma = _parameters(self.mean_ms, self.variance)
        within = np.clip(share / np.maximum(1.0 - self.stuck, 1e-9), 1e-6, 1.0 - 1e-6)
        smooth = np.exp(mu + sigma * _normal_quantile(within))
        longest = np.maximum(self.stuck_ms, self.mean_ms)
        return np.where(
            share >= 1.0 - self.stuck,
            self.stuck_ms,
            np.where(self.stuck > 0.0, np.minimum(smooth, longest), smooth),
        )

    def buckets(self, bounds_ms: Floats) -> Floats:
        """Return the share of requests between ascending bounds [n, len(bounds_ms) + 1]."""
        mu, sigma = _parameters(self.mean_ms, self.variance)
        below = normal_cdf((np.log(bounds_ms) - mu[:, None]) / sigma[:, None])
        late = self.stuck_ms[:, None] <= bounds_ms
        below = (1.0 - self.stuck)[:, None] * below + self.stuck[:, None] * late
        shares: Floats = np.maximum(np.diff(below, axis=1, prepend=0.0, append=1.0), 0.0)
        shares /= shares.sum(axis=1, keepdims=True)
        return shares

    def sums(self, counts: Floats) -> Floats:
        """Return sums over so many requests [4, n], which can be added to others."""
        mean, stuck = self.mean_ms, counts * self.stuck
        return np.stack([counts * mean, counts * (self.variance + mean**2), stuck, stuck * self.stuck_ms])

    @classmethod
    def of_sums(cls, sums: Sequence[Floats], counts: Floats) -> Latencies:
        """Return the distributions of which `sums` returned these values."""
        mean, square, stuck, stuck_ms = sums
        some = np.maximum(counts, 1e-12)
        mean = mean / some
        variance = np.maximum(square / some - mean**2, 0.0)
        return cls(mean, variance, stuck / some, stuck_ms / np.maximum(stuck, 1e-12))


def normal_cdf(z: Floats) -> Floats:
    """Return the standard normal CDF at z; error below 1e-7 (Abramowitz and Stegun 26.2.17)."""
    a = np.abs(z)
    t = 1.0 / (1.0 + 0.2316419 * a)
    poly = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = poly * np.exp(-0.5 * a * a) * 0.3989422804014327
    return np.where(z > 0, 1.0 - tail, tail)


def _parameters(mean: Floats, variance: Floats) -> tuple[Floats, Floats]:
    """Return mu and sigma of the logarithm; a mean of 0 is treated as 1e-6."""
    mean = np.maximum(mean, 1e-6)
    squared = np.log1p(np.maximum(variance, 0.0) / (mean * mean))
    return np.log(mean) - squared / 2, np.sqrt(np.maximum(squared, 1e-8))


def share_above(bound: Floats, mean: Floats, variance: Floats) -> Floats:
    """Return the share of values above a bound."""
    mu, sigma = _parameters(mean, variance)
    return 1.0 - normal_cdf((np.log(bound) - mu) / sigma)


def _normal_quantile(share: Floats) -> Floats:
    """Return the inverse of `normal_cdf`; error below 4.5e-4 (Abramowitz and Stegun 26.2.23)."""
    tail = np.minimum(share, 1.0 - share)
    t = np.sqrt(-2.0 * np.log(tail))
    z = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (
        1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308))
    )
    return np.where(share < 0.5, -z, z)
