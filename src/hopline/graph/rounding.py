"""Refuses numbers that float32 cannot hold: features, edge attributes and weights are stored as float32.

In a build, `Rounding` examines whole columns:

Integers and booleans must be exact: they may be codes, whose last bit matters. The same applies to float64
columns in which all values are integers. For other columns the rounding must be negligible compared to the
range of the column: seconds since 1970 are rounded by up to 64, which is more than the difference between
two events of one minute; 0.1 is rounded too, which is harmless.

Later numbers of a column come one by one, in events and requests: `hopline.float32` refuses integers that
float32 would change. It accepts them in columns that the graph's schema lists as `rounded`: those of
`--round`, and those of fractions beyond `EXACT`, whose last digits were negligible in the build.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from hopline.errors import GraphError
from hopline.float32 import EXACT, inexact_integers
from hopline.types import AnyArray

# Largest rounding error, as a part of the column's range: of values below EXACT, of larger ones (such as
# times with fractions). float32 rounds by 3e-8 of the value, so the error is larger for a narrow range far
# from 0.
_NEGLIGIBLE, _NEGLIGIBLE_LARGE = 1e-4, 1e-7
_ADVICE = (
    "Number codes from 0 on or split them into several columns, subtract a reference from times, or, if "
    "rounding is harmless, list the column in NodeTable.rounded (`hopline graph build`: --round COLUMN)"
)
#: From here on every float64 is an integer, which proves nothing.
_WHOLE = 2.0**53


class Rounding:
    """Measures what float32 would lose of a matrix, in chunks.

    Args:
        dtype: of the matrix. allowed: positions of columns that may be rounded. columns: how many it has.
    """

    def __init__(self, dtype: np.dtype[np.generic], allowed: Collection[int], columns: int) -> None:
        self._dtype = dtype
        self._allowed = frozenset(allowed)
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
                self._note(inexact_integers(chunk), chunk, begin)
        elif self._dtype.kind == "f" and self._dtype.itemsize > 2:  # float16 ends at 65,504
            if self._integers.any():
                whole = (np.floor(chunk) == chunk) & (np.abs(chunk) < _WHOLE)
                self._integers &= (whole | ~np.isfinite(chunk)).all(axis=0)
            if self._dtype.itemsize > 4:
                self._add_doubles(chunk, begin)
            elif len(chunk):
                self._low = np.minimum(self._low, chunk.min(axis=0))
                self._high = np.maximum(self._high, chunk.max(axis=0))

    def _add_doubles(self, chunk: AnyArray, begin: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            # Values that are not finite, or become so, are refused elsewhere.
            error = np.abs(chunk - chunk.astype(np.float32))
        known = np.isfinite(error)
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

    @property
    def accepted(self) -> tuple[int, ...]:
        """Columns that may be rounded: the allowed ones, and those of fractions beyond `EXACT`."""
        beyond = np.maximum(self._high, -self._low) >= EXACT
        return tuple(sorted(self._allowed.union(np.flatnonzero(beyond & ~self._integers).tolist())))

    def check(self, what: str, names: Sequence[str] = ()) -> None:
        """Raise GraphError if a column loses precision that may matter."""
        for column in np.flatnonzero(self._inexact).tolist():
            if column in self._allowed:
                continue
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
