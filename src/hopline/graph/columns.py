"""Checks and converts the columns of node and edge tables. Every error says where and how many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import GraphError
from hopline.graph.rounding import Rounding
from hopline.graph.tables import as_array
from hopline.types import AnyArray, FloatArray, Progress, silent

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
        that lose precision that may matter (see `rounding.py`); unknown columns in `rounded`.
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
    rounding = Rounding(array.dtype, positions(rounded, names, array.shape[1], what), array.shape[1])
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
    rounding: Rounding,
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
        f"{what}: {bad_values} values in {bad_rows} rows {why}; the first is {value} in row {row}, column "
        f"{column}{named}. Fill, clip or drop them before building"
    )


def _not_numbers(value: Any) -> str:
    """Columns of a DataFrame that are not numeric."""
    if not hasattr(value, "dtypes") or not hasattr(value, "columns"):
        return ""
    bad = [str(name) for name in value.columns if getattr(value[name].dtype, "kind", "O") not in "fiub"]
    return f" (columns without numbers: {', '.join(bad)}); leave them out, or encode them" if bad else ""


def weights(value: Any, what: str, rows: int, *, rounded: bool = False) -> tuple[FloatArray, bool]:
    """Edge weights float32 [rows], read-only; and whether they may be rounded.

    Raises: GraphError: a number of rows other than `rows`, NaN or infinite weights.
    """
    found, accepted = matrix(vector(value, what, rows), what, rows=rows, rounded=(0,) if rounded else ())
    return found.reshape(-1), bool(accepted)


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
