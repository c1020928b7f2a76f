"""Bins of categories, and sketches of these or of numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self, TypeAlias

import msgspec
import numpy as np

from hopline.observe.psi import MISSING, Counts, NumberBins
from hopline.observe.psi import Sketch as NumberSketch

OTHER = "other"


class CategoryBins(msgspec.Struct, frozen=True, tag="category"):
    """The most frequent categories, one bin for all others, and one for missing values (None, NaN).

    Attributes:
        categories: the categories as text.
    """

    categories: tuple[str, ...]

    @property
    def num_bins(self) -> int:
        """Number of bins, including those of other and of missing values."""
        return len(self.categories) + 2

    def count(self, values: Any) -> Counts:
        """Count values in each bin: int64 [num_bins]."""
        place = {category: at for at, category in enumerate(self.categories)}
        other = len(place)
        counts = np.zeros(self.num_bins, np.int64)
        for value, count in category_counts(values).items():
            counts[other + 1 if value is None else place.get(value, other)] += count
        return counts

    def names(self) -> tuple[str, ...]:
        """The names of the bins."""
        return (*self.categories, OTHER, MISSING)


Bins: TypeAlias = NumberBins | CategoryBins

#: Twenty equal bins of [0, 1]: for probabilities before there is a reference.
PROBABILITY_BINS = NumberBins(tuple(step / 20 for step in range(1, 20)))
#: Powers of two from 0: for degrees.
DEGREE_BINS = NumberBins((0.0, *(float(2**power) for power in range(20))))


class Sketch(NumberSketch):
    """As `NumberSketch`, also of values with a text form, in `CategoryBins`."""

    bins: Bins  # type: ignore[assignment]

    def update(self, values: Any) -> None:
        """Count values: numbers or None."""
        self.counts = [
            mine + new for mine, new in zip(self.counts, self.bins.count(values).tolist(), strict=True)
        ]

    def add(self, other: Sketch) -> None:
        """Add the counts of another sketch with the same bins.

        Raises: ValueError: its bins differ.
        """
        if other.bins != self.bins:
            raise ValueError("sketches of different bins cannot be added")
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]

    def empty_copy(self) -> Self:
        """A sketch with the same bins and no counts."""
        return type(self)(self.bins)

    def shares(self) -> list[float]:
        """Share of each bin; all 0 if nothing was counted."""
        total = self.num_values or 1
        return [count / total for count in self.counts]


def category_bins(reference: Any, top: int = 20) -> CategoryBins:
    """The `top` most frequent categories of the reference, ties in order of their names."""
    known = category_counts(reference)
    known.pop(None, None)
    frequent = sorted(known.items(), key=lambda item: (-item[1], item[0] or ""))[:top]
    return CategoryBins(tuple(category for category, _ in frequent if category is not None))


def category_counts(values: Any) -> Counter[str | None]:
    """Count each value as text; None is the key of missing values."""
    counts: Counter[str | None] = Counter()
    seen: Iterable[tuple[Any, int]]
    if isinstance(values, np.ndarray) and values.dtype != object:
        distinct, times = np.unique(values.reshape(-1), return_counts=True)
        seen = zip(distinct.tolist(), times.tolist(), strict=True)
    else:
        seen = Counter(values).items()
    for value, count in seen:
        counts[_text(value)] += count
    return counts


def _text(value: Any) -> str | None:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, bool) or (isinstance(value, float) and value.is_integer()):
        value = int(value)  # equal values have one name: 1, 1.0 and True are also one key of a Counter
    return str(value)
