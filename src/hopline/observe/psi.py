"""Population stability index: how far current values are from a reference.

A `Sketch` counts values in fixed bins that were derived from a reference; `compare` compares two sketches
with the same bins. Only sums: no clock, no models, no files.

    PSI = sum over bins of (p - q) ln(p / q)        p, q: shares of the reference and of current values

Rules of thumb: below 0.1 nothing changed, above 0.25 something did. They are valid for large samples only:
if nothing changed, PSI is not 0 but about (bins - 1)(1/n + 1/m), 0.09 for two samples of 200 in ten bins
(to second order PSI is the chi-square statistic of two samples over their size). `psi_noise` is that
expectation, and `psi_limit` the value that chance does not exceed; use both, as `Comparison` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Self, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

Counts: TypeAlias = NDArray[np.int64]

#: Standard deviations by which `psi_limit` exceeds chance: one false alarm in 30,000 comparisons.
CHANCE = 4.0
#: Name of the bin of missing values.
MISSING = "missing"


class NumberBins(msgspec.Struct, frozen=True, tag="number"):
    """Intervals of numbers, and one more bin for missing values (NaN, None, not a number).

    Attributes:
        edges: ascending; bin i holds edges[i - 1] < value <= edges[i], the last but one larger values.
    """

    edges: tuple[float, ...]

    @property
    def num_bins(self) -> int:
        """Number of bins, including that of missing values."""
        return len(self.edges) + 2

    def count(self, values: Any) -> Counts:
        """Count values in each bin: int64 [num_bins]."""
        numbers = as_numbers(values)
        at = np.searchsorted(np.array(self.edges, np.float64), numbers, side="left")
        at[np.isnan(numbers)] = self.num_bins - 1
        return np.bincount(at, minlength=self.num_bins)

    def names(self) -> tuple[str, ...]:
        """The names of the bins."""
        if not self.edges:
            return ("any", MISSING)
        texts = [f"{edge:.6g}" for edge in self.edges]
        between = [f"{low} to {high}" for low, high in pairwise(texts)]
        return (f"up to {texts[0]}", *between, f"above {texts[-1]}", MISSING)


def number_bins(reference: Any, num_bins: int = 10, *, at_least: float = 0.0) -> NumberBins:
    """Bins with about equal shares of the reference.

    A value that alone makes up a share (0 of a column that is mostly 0) gets its own bin, so that moves to
    either side of it are visible.

    Args:
        reference: numbers; missing values are ignored.
        num_bins: most shares (a value with its own bin may add one).
        at_least: width of each bin between two edges; finer differences are none.
    """
    numbers = as_numbers(reference)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return NumberBins(())
    # Edges are values that occur: values between two of them may not exist.
    cuts = np.quantile(numbers, np.arange(1, num_bins) / num_bins, method="inverted_cdf")
    edges, times = np.unique(cuts, return_counts=True)
    if at_least:
        wide = [edges[0]]
        for edge in edges[1:]:
            if edge - wide[-1] >= at_least:
                wide.append(edge)
        return NumberBins(tuple(map(float, wide)))
    own = np.nextafter(edges[times > 1], -np.inf)
    return NumberBins(tuple(np.unique(np.concatenate([edges, own])).tolist()))


class Sketch(msgspec.Struct):
    """Counts of a quantity in fixed bins; msgspec can encode and decode it.

    Attributes:
        bins: the bins; they never change.
        counts: one per bin.
    """

    bins: NumberBins
    counts: list[int] = []

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * self.bins.num_bins
        if len(self.counts) != self.bins.num_bins or min(self.counts) < 0:
            raise ValueError(f"{self.bins.num_bins} bins need as many counts, none below 0")

    @classmethod
    def of(cls, bins: Any, values: Any) -> Self:
        """Count these values in new bins."""
        return cls(bins, bins.count(values).tolist())

    @property
    def num_values(self) -> int:
        """Number of counted values."""
        return sum(self.counts)


class Comparison(NamedTuple):
    """A comparison of current values with their reference.

    Attributes:
        psi: the index.
        noise: expected index if nothing had changed.
        limit: the index that chance does not exceed.
        num_reference, num_current: values on each side.
        bin: name of the bin that adds most to the index; "" if none does.
    """

    psi: float
    noise: float
    limit: float
    num_reference: int
    num_current: int
    bin: str

    @property
    def excess(self) -> float:
        """The index minus its expectation without change, to compare with 0.1 and 0.25."""
        return max(0.0, self.psi - self.noise)

    def above(self, threshold: float) -> bool:
        """True if it exceeds a threshold, not by chance; False without values on both sides."""
        return self.excess > threshold and self.psi > self.limit


def compare(reference: Sketch, current: Sketch) -> Comparison:
    """Compare two sketches with the same bins.

    Raises: ValueError: their bins differ.
    """
    if reference.bins != current.bins:
        raise ValueError("sketches of different bins cannot be compared")
    num_reference, num_current = reference.num_values, current.num_values
    terms = psi_terms(reference.counts, current.counts)
    occupied = sum(1 for a, b in zip(reference.counts, current.counts, strict=True) if a or b)
    most = int(terms.argmax())
    return Comparison(
        float(terms.sum()),
        psi_noise(num_reference, num_current, occupied),
        psi_limit(num_reference, num_current, occupied),
        num_reference,
        num_current,
        reference.bins.names()[most] if terms[most] > 0 else "",
    )


def psi_terms(
    reference: Sequence[int], current: Sequence[int], smoothing: float = 0.5
) -> NDArray[np.float64]:
    """The part of each bin in the index, float64 [num_bins], all at least 0, and 0 for equal shares.

    Args:
        reference, current: counts by bin.
        smoothing: pseudo-counts per bin, distributed by the mean of both shares. They pull both sides
            to a common point: an empty bin does not give infinity, and equal shares stay equal for all
            sizes (pseudo-counts distributed evenly would pull a small sample away from its reference). 0
            is the plain formula, which is inf if a bin is empty on one side only.

    Returns: the parts, whose sum is the index; 0 if a side is empty.
    """
    a, b = np.asarray(reference, np.float64), np.asarray(current, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"{a.shape[0]} bins cannot be compared with {b.shape[0]}")
    n, m = a.sum(), b.sum()
    if n == 0 or m == 0:
        return np.zeros(a.shape)
    middle = (a / n + b / m) / 2
    occupied = middle > 0
    pseudo = smoothing * occupied.sum()
    p = (a + pseudo * middle)[occupied] / (n + pseudo)
    q = (b + pseudo * middle)[occupied] / (m + pseudo)
    terms = np.zeros(a.shape)
    with np.errstate(divide="ignore"):
        terms[occupied] = (p - q) * (np.log(p) - np.log(q))
    return terms


def psi_noise(num_reference: int, num_current: int, bins: int) -> float:
    """Expected index of two samples of one distribution: (bins - 1)(1/n + 1/m); inf if one is empty.

    Valid for independent values. Many rows of one entity are not independent.

    Args:
        num_reference, num_current: n and m.
        bins: number of bins that are not empty on both sides.
    """
    if num_reference <= 0 or num_current <= 0:
        return math.inf
    return max(0, bins - 1) * (1 / num_reference + 1 / num_current)


def psi_limit(num_reference: int, num_current: int, bins: int, chance: float = CHANCE) -> float:
    """The index that two samples of one distribution exceed only by `chance` standard deviations.

    The chi-square quantile by Wilson and Hilferty's cube root (1931).
    """
    if num_reference <= 0 or num_current <= 0:
        return math.inf
    freedom = max(1, bins - 1)
    spread = 2 / (9 * freedom)
    quantile = freedom * (1 - spread + chance * math.sqrt(spread)) ** 3
    return quantile * (1 / num_reference + 1 / num_current)


def as_numbers(values: Any) -> NDArray[np.float64]:
    """Values as float64 [n]; NaN for values that are not numbers."""
    try:
        return np.asarray(values, np.float64).reshape(-1)
    except (TypeError, ValueError):
        return np.array([_number(value) for value in values], np.float64)


def _number(value: Any) -> float:
    try:
        return math.nan if value is None else float(value)
    except (TypeError, ValueError):
        return math.nan
