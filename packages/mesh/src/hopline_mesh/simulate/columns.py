"""Rows with named columns, such as those of all pods."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Columns:
    """Rows that are added and dropped; each column is an attribute, an array that may be changed."""

    def __init__(self, columns: np.dtype[np.void]) -> None:
        self._rows: NDArray[np.void] = np.zeros(0, columns)

    def __getattr__(self, column: str) -> NDArray[Any]:
        if column.startswith("_") or column not in (self._rows.dtype.names or ()):
            raise AttributeError(column)
        return self._rows[column]

    def __len__(self) -> int:
        return len(self._rows)

    def added(self, count: int) -> NDArray[np.void]:
        """Add rows of zeros at the end; returns them, to be filled."""
        self._rows = np.concatenate([self._rows, np.zeros(count, self._rows.dtype)])
        return self._rows[len(self._rows) - count :]

    def keep(self, rows: NDArray[np.bool_] | Sequence[bool]) -> None:
        """Drop all other rows."""
        self._rows = self._rows[np.asarray(rows, dtype=bool)]
