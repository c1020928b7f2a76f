"""Observed values of requests by quantity, before they are counted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from hopline.observe.psi import as_numbers, number_bins
from hopline_drift.bins import DEGREE_BINS, Bins, category_bins

Kind: TypeAlias = Literal["input", "output", "graph", "neighbor", "edge"]


class Quantity(NamedTuple):
    """A watched quantity.

    Attributes:
        kind: "input": a raw feature of the node or a column of the request; "output": of the answer;
            "graph": of the node's position in the graph; "neighbor": a feature's mean over in-neighbours;
            "edge": a column of the edges from them.
        name: name of the column or quantity.
    """

    kind: Kind
    name: str


#: Probability of the positive class, or of the top class.
SCORE = Quantity("output", "score")
#: The value of a regression.
VALUE = Quantity("output", "value")
LABEL = Quantity("output", "label")
DEGREE = "degree"
_NUMBERS = "fiu"


class Observed:
    """Values by quantity.

    Attributes:
        num_requests: requests with these values.
        num_rows: rows of these requests.
    """

    def __init__(self) -> None:
        self.num_requests = 0
        self.num_rows = 0
        self._chunks: dict[Quantity, list[Any]] = {}
        self._categories: set[Quantity] = set()
        #: Quantities with concatenated values, so that they are joined only once.
        self._joined: set[Quantity] = set()

    def numbers(self, quantity: Quantity, values: Any) -> None:
        """Add numbers; NaN or None is a missing value."""
        self._take(quantity, values)

    def categories(self, quantity: Quantity, values: Any) -> None:
        """Add categories."""
        self._categories.add(quantity)
        self._take(quantity, values)

    def column(self, quantity: Quantity, values: Any) -> None:
        """Add values that are numbers or categories, by their type."""
        if isinstance(values, np.ndarray) and values.dtype != object:
            is_number = values.dtype.kind in _NUMBERS
        else:
            first = next((value for value in values if value is not None), None)
            is_number = isinstance(first, int | float | np.number) and not isinstance(first, bool)
            if first is None and quantity not in self._categories:
                is_number = True  # does not determine the type
        (self.numbers if is_number else self.categories)(quantity, values)

    def quantities(self) -> Iterator[Quantity]:
        """All quantities with values."""
        return iter(self._chunks)

    def values(self, quantity: Quantity) -> Any:
        """All values of a quantity: float64 [n] for numbers, else a list; empty without values."""
        chunks = self._chunks.get(quantity, [])
        if len(chunks) == 1 and quantity in self._joined:
            return chunks[0]
        joined: Any
        if quantity in self._categories:
            joined = [value for chunk in chunks for value in _items(chunk)]
        elif all(type(chunk) is list for chunk in chunks):  # many small requests: one conversion for all
            joined = as_numbers([value for chunk in chunks for value in chunk])
        else:
            joined = np.concatenate([np.empty(0), *[as_numbers(chunk) for chunk in chunks]])
        if chunks:
            self._chunks[quantity] = [joined]
            self._joined.add(quantity)
        return joined

    def add(self, other: Observed) -> None:
        """Add all values of another instance."""
        self.num_requests += other.num_requests
        self.num_rows += other.num_rows
        self._categories |= other._categories
        for quantity in other._chunks:
            self._take(quantity, other.values(quantity))

    def _take(self, quantity: Quantity, values: Any) -> None:
        self._chunks.setdefault(quantity, []).append(values)
        self._joined.discard(quantity)

    def bins(self, quantity: Quantity) -> Bins:
        """Bins for comparing later values with these."""
        if quantity in self._categories:
            return category_bins(self.values(quantity))
        if quantity.kind == "graph" and quantity.name.startswith(DEGREE):
            return DEGREE_BINS
        return number_bins(self.values(quantity))


def _items(chunk: Any) -> Any:
    return chunk.tolist() if isinstance(chunk, np.ndarray) else chunk
