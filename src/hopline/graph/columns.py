"""Checks and converts the columns of node and edge tables. Every error says where and how many.

Features, edge attributes and weights are stored as float32; numbers that it cannot hold are refused.
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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import GraphError
from hopline.float32 import EXACT, inexact_integers
from hopline.graph.tables import as_array
from hopline.types import AnyArray, FloatArray, Progress, silent

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


class _Rounding:
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


_CHUNK_BYTES = 32 << 20


def matrix(
    value: Any,
    what: str,
    *,
    dtype: str = "float32",
    names: Sequence[str] = (),
    rows: int | None = None,
    rounded: Sequence[str | int] = (),
    progress: Progress = silent,
) -> tuple[NDArray[np.floating[Any]], tuple[int, ...]]:
    """A finite, C-contiguous, read-only matrix of `dtype`, and the columns that may be rounded.

    A value in this form already is not copied, so that features may be larger than memory.

    Args:
        value: [n, d] or [n] of any real dtype.
        what: for error messages.
        names: column names, for error messages.
        rows: the required number of rows, if known.
        rounded: columns, by name or position, that may lose precision.
    Returns: the matrix; and the ascending positions of `rounded` and of columns that float32 rounds by a
        negligible amount, though they have numbers beyond its exact integers.
    Raises: GraphError: wrong shape or dtype; NaN or infinite values; values too large for `dtype`, or
        that lose precision that may matter (see the module); unknown columns in `rounded`.
    """
    array = as_array(value, what)
    if array.dtype.kind not in "fiub":
        raise GraphError(f"{what} must be real numbers; got dtype {array.dtype}{_not_numbers(value)}")
    if array.ndim == 1:
        array = array.reshape(-1, 1)
    if array.ndim != 2:
        raise GraphError(f"{what} must be a matrix [n, d]; got shape {array.shape}")
    if rows is not None and len(array) != rows:
        raise GraphError(f"{what}: {len(array)} rows; there must be {rows}, one for each edge")
    as_it_is = array.dtype == dtype and array.flags.c_contiguous
    result = array if as_it_is else np.empty(array.shape, dtype)
    rounding = _Rounding(array.dtype, positions(rounded, names, array.shape[1], what), array.shape[1])
    _fill_and_check(array, result, what, names, rounding, progress)
    # Numba treats a memory map as a slow subclass; the view is a plain array over the same pages.
    plain: NDArray[np.floating[Any]] = read_only(np.asarray(result))
    return plain, rounding.accepted


def positions(columns: Sequence[str | int], names: Sequence[str], count: int, what: str) -> tuple[int, ...]:
    """Positions of columns. Raises: GraphError: there is no such column."""
    names = [names] if isinstance(names, str) else list(names)
    found = []
    for column in columns:
        at = names.index(column) if column in names else column
        if not isinstance(at, int | np.integer) or not 0 <= at < count:
            known = ", ".join(map(repr, names[:30])) or f"0 to {count - 1}, without names"
            raise GraphError(f"{what}: no column {column!r} that could be rounded; the columns are {known}")
        found.append(int(at))
    return tuple(found)


def _fill_and_check(
    array: AnyArray,
    result: AnyArray,
    what: str,
    names: Sequence[str],
    rounding: _Rounding,
    progress: Progress,
) -> None:
    step = max(1, _CHUNK_BYTES // max(1, array.shape[1] * array.itemsize))
    bad_values, bad_rows, first = 0, 0, None
    for begin in range(0, len(array), step):
        rows = slice(begin, begin + step)
        if result is not array:
            with np.errstate(over="ignore"):  # an overflow is reported below, with its place
                result[rows] = array[rows]
        rounding.add(array[rows], begin)
        finite = np.isfinite(result[rows])
        if not finite.all():
            in_row = np.count_nonzero(~finite, axis=1)
            bad_values += int(in_row.sum())
            bad_rows += int(np.count_nonzero(in_row))
            if first is None:
                row = int(np.flatnonzero(in_row)[0])
                first = (begin + row, int(np.flatnonzero(~finite[row])[0]))
        progress(what, min(1.0, (begin + step) / len(array)))
    if first is None:
        rounding.check(what, names)
        return
    row, column = first
    value = array[row, column]
    named = f" ({names[column]!r})" if column < len(names) else ""
    why = (
        f"do not fit into {result.dtype} (largest {np.finfo(result.dtype).max:g})"
        if np.isfinite(value)
        else "are NaN or infinite"
    )
    raise GraphError(
        f"{what}: {bad_values} values in {bad_rows} rows {why}; the first is {value} in row {row} (the "
        f"first row is 0), column {column}{named}. Fill, clip or drop them before building"
    )


def _not_numbers(value: Any) -> str:
    """Columns of a DataFrame that are not numeric."""
    if not hasattr(value, "dtypes") or not hasattr(value, "columns"):
        return ""
    bad = [str(name) for name in value.columns if getattr(value[name].dtype, "kind", "O") not in "fiub"]
    hint = "leave them out, encode them, or keep them for preprocessing: NodeTable(columns=frame)"
    return f" (columns without numbers: {', '.join(bad)}); {hint}" if bad else ""


def weights(value: Any, what: str, rows: int, *, rounded: bool = False) -> tuple[FloatArray, bool]:
    """Edge weights float32 [rows], read-only; and whether they may be rounded.

    Raises: GraphError: a number of rows other than `rows`, NaN or infinite weights.
    """
    found, accepted = matrix(vector(value, what, rows), what, rows=rows, rounded=(0,) if rounded else ())
    return found.reshape(-1), bool(accepted)


#: Rows that are compared in one piece.
_CHUNK = 65_536


def check_whole(stored: Any, given: Any, names: Sequence[str], rounded: Collection[int], what: str) -> None:
    """Check that a narrow dtype leaves columns of integers unchanged: they may be codes.

    Args:
        stored: [N, d]. given: the same numbers as they came.
        names: of columns, or empty. rounded: columns that may change.
    """
    whole, same = np.ones((2, stored.shape[1]), np.bool_)
    for start in range(0, len(stored), _CHUNK):
        piece = slice(start, start + _CHUNK)
        one, other = (np.asarray(rows[piece], np.float32) for rows in (stored, given))
        whole &= (other == np.rint(other)).all(axis=0)
        same &= (one == other).all(axis=0)
    for column in np.flatnonzero(whole & ~same).tolist():
        if column not in rounded:
            raise GraphError(
                f"{what}: the dtype changes the integers of {names[column] if names else column!r}, which "
                "may be codes. Store the features as float32, or, for counts, list the column in rounded= "
                "(`--round COLUMN`)"
            )


def column_names(names: Sequence[str], columns: int, what: str) -> tuple[str, ...]:
    """The names as a tuple. Raises: GraphError: not one distinct string for each column."""
    result = (names,) if isinstance(names, str) and names else tuple(names)
    if not result:
        return ()
    if not all(isinstance(name, str) for name in result):
        raise GraphError(f"{what} must be strings; got {result!r}")
    if len(result) != columns:
        raise GraphError(f"{what}: {len(result)} names for {columns} columns")
    if len(set(result)) != len(result):
        twice = sorted({name for name in result if result.count(name) > 1})
        raise GraphError(f"{what} must be distinct; repeated: {', '.join(map(repr, twice))}")
    return result


def read_only(array: Any) -> Any:
    """A view that cannot be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def vector(value: Any, what: str, rows: int) -> AnyArray:
    """One value for each edge, [rows]. Raises: GraphError: another shape."""
    array = as_array(value, what)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array.reshape(-1)
    if array.ndim != 1:
        raise GraphError(f"{what} must be a vector, one number for each edge; got shape {array.shape}")
    if len(array) != rows:
        raise GraphError(f"{what}: {len(array)} values; there must be {rows}, one for each edge")
    return array
