"""Refuses numbers that float32 cannot hold: features, edge attributes and weights are stored as float32.

Integers and booleans must be exact: they may be codes, whose last bit matters. The same applies to float64
columns in which all values are integers. For other columns the rounding must be negligible compared to the
range of the column: seconds since 1970 are rounded by up to 64, which is more than the difference between
two events of one minute; 0.1 is rounded too, which is harmless.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopline.errors import GraphError
from hopline.types import AnyArray

#: float32 holds every integer up to this exactly.
EXACT = 2**24
# Largest rounding error, as a part of the column's range: of values below EXACT, of larger ones (such as
# times with fractions). float32 rounds by 3e-8 of the value, so the error is larger for a narrow range far
# from 0.
_NEGLIGIBLE, _NEGLIGIBLE_LARGE = 1e-4, 1e-7
_ADVICE = (
    "Number codes from 0 on or split them into several columns, subtract a reference from times, or, if "
    "rounding is harmless, round them to float32 yourself (`hopline graph build`: --round COLUMN)"
)


class Rounding:
    """Measures what float32 would lose of a matrix, in chunks.

    Args:
        dtype: of the matrix. columns: how many it has.
    """

    def __init__(self, dtype: np.dtype[np.generic], columns: int) -> None:
        self._dtype = dtype
        self._inexact = np.zeros(columns, np.int64)
        self._first = np.full(columns, -1, np.int64)
        self._value = np.zeros(columns, dtype)
        self._integers = np.ones(columns, bool)
        self._error = np.zeros(columns)
        self._low, self._high = np.full(columns, np.inf), np.full(columns, -np.inf)

    def add(self, chunk: AnyArray, begin: int) -> None:
        """Check rows [n, columns], of which the first is row `begin`."""
        if self._dtype.kind in "iu":
            if self._dtype.itemsize >= 4 and chunk.size and (chunk.max() > EXACT or chunk.min() < -EXACT):
                self._note(_inexact_integers(chunk), chunk, begin)
        elif self._dtype.kind == "f" and self._dtype.itemsize > 4:
            self._add_floats(chunk, begin)

    def _add_floats(self, chunk: AnyArray, begin: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            # Values that are not finite, or become so, are refused elsewhere.
            error = np.abs(chunk - chunk.astype(np.float32))
        known = np.isfinite(error)
        # From 2**53 on every float64 is an integer, which proves nothing.
        whole = (np.floor(chunk) == chunk) & (np.abs(chunk) < 2.0**53)
        self._integers &= (whole | ~known).all(axis=0)
        error[~known] = 0
        self._error = np.maximum(self._error, error.max(axis=0, initial=0))
        self._low = np.minimum(self._low, np.where(known, chunk, np.inf).min(axis=0, initial=np.inf))
        self._high = np.maximum(self._high, np.where(known, chunk, -np.inf).max(axis=0, initial=-np.inf))
        self._note(error > 0, chunk, begin)

    def _note(self, inexact: NDArray[np.bool_], chunk: AnyArray, begin: int) -> None:
        self._inexact += np.count_nonzero(inexact, axis=0)
        for column in np.flatnonzero((self._first < 0) & inexact.any(axis=0)):
            row = int(inexact[:, column].argmax())
            self._first[column], self._value[column] = begin + row, chunk[row, column]

    def check(self, what: str, names: Sequence[str] = ()) -> None:
        """Raise GraphError if a column loses precision that may matter."""
        for column in np.flatnonzero(self._inexact).tolist():
            if self._dtype.kind == "f" and not self._integers[column]:
                spread = float(self._high[column] - self._low[column])
                limit = _NEGLIGIBLE if self._error[column] < 0.5 else _NEGLIGIBLE_LARGE
                if spread == 0 or self._error[column] <= limit * spread:
                    continue
                error = self._error[column]
                why = f"are rounded by up to {error:g} in float32; the column ranges over only {spread:g}"
            else:
                why = f"are integers that float32 cannot hold exactly (it holds all up to {EXACT:,})"
            named = repr(names[column]) if column < len(names) else column
            raise GraphError(
                f"{what}: {self._inexact[column]} {self._dtype} values of column {named} {why}; the first "
                f"is {self._value[column]} in row {self._first[column]}. {_ADVICE}"
            )


def _inexact_integers(chunk: AnyArray) -> NDArray[np.bool_]:
    rounded = chunk.astype(np.float32)
    # Beyond the range of the type, casting back is undefined.
    beyond = rounded >= 2.0 ** (8 * chunk.dtype.itemsize - (chunk.dtype.kind == "i"))
    with np.errstate(invalid="ignore"):
        lost: NDArray[np.bool_] = beyond | (np.where(beyond, 0, rounded).astype(chunk.dtype) != chunk)
    return lost
