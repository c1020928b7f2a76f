"""The sample that a tabular model is packaged with: its columns, and its rows in both forms.

The estimator reads the form that it was fitted on (a DataFrame, or an array); the packaged model reads
columns in the form of requests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd

from hopline.artifact import GRAPH_INPUTS
from hopline.errors import PackagingError
from hopline_tabular.spec import Column

#: Anything that holds rows: a DataFrame, column name -> values, or an array [n, columns].
SampleLike: TypeAlias = Any

_WHERE = "pass the columns of requests in `columns`"


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows with columns of known types.

    Attributes:
        columns: in the estimator's order.
        rows: column name -> list of float, int, str or None.
        has_names: the estimator was fitted on named columns.
        nones: columns of strings whose absent values were None in training; elsewhere they were NaN.
        floats: columns of integers that were floats in training, since it lacked some values.
    """

    columns: tuple[Column, ...]
    rows: Mapping[str, list[Any]]
    has_names: bool
    nones: Collection[str] = ()
    floats: Collection[str] = ()

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(next(iter(self.rows.values()), ()))

    def of(self, rows: Mapping[str, list[Any]]) -> Sample:
        """Other rows of the same columns."""
        return Sample(self.columns, rows, self.has_names, self.nones, self.floats)

    def take(self, places: Iterable[int]) -> Sample:
        """Some of the rows."""
        chosen = list(places)
        return self.of({name: [values[place] for place in chosen] for name, values in self.rows.items()})

    def for_estimator(self) -> Any:
        """The rows as the estimator reads them: a DataFrame, or an array."""
        series = {column.name: self._series(column) for column in self.columns}
        frame = pd.DataFrame(series)
        return frame if self.has_names else frame.to_numpy()

    def _series(self, column: Column) -> Any:
        values = self.rows[column.name]
        if column.dtype == "string":
            null = None if column.name in self.nones else np.nan
            return np.array([null if value is None else value for value in values], dtype=object)
        if column.dtype == "int" and column.name not in self.floats and None not in values:
            return np.array(values, dtype=np.int64)
        return np.array(values, dtype=np.float64)


def read_sample(
    sample: SampleLike, feature_names: Sequence[str] | None, columns: Sequence[Column] | None
) -> Sample:
    """Detect the columns and their types.

    Args:
        sample: rows; columns that the estimator does not know are left out.
        feature_names: those that the estimator was fitted on, None where it was fitted on an array.
        columns: known properties of some columns; of all columns if the sample is an array.

    Raises:
        PackagingError: a column is missing, has a type that requests cannot have, or has a bad name.
    """
    frame = _frame(sample, columns)
    given = {column.name: column for column in columns or ()}
    names = list(feature_names) if feature_names is not None else [str(name) for name in frame.columns]
    absent = [name for name in names if name not in frame.columns]
    if absent:
        raise PackagingError(
            f"the sample has no column {absent[0]!r}, which the estimator was fitted on; it has "
            f"{', '.join(map(repr, frame.columns))}"
        )
    strange = [name for name in given if name not in names]
    if strange:
        raise PackagingError(
            f"columns: the estimator has no column {strange[0]!r}; it has {', '.join(names)}"
        )
    if not len(frame):
        raise PackagingError("the sample has no rows; parity is checked on them")
    found, rows = [], {}
    for name in names:
        series = frame[name]
        _check_name(name)
        column = given.get(name) or Column(name, _dtype(name, series))
        rows[name] = _values(column, series)
        found.append(column)
    return Sample(tuple(found), rows, feature_names is not None)


def _frame(sample: SampleLike, columns: Sequence[Column] | None) -> pd.DataFrame:
    if isinstance(sample, pd.DataFrame):
        frame = sample
    elif isinstance(sample, Mapping):
        frame = pd.DataFrame(dict(sample))
    else:
        array = np.asarray(sample)
        if array.ndim != 2:
            raise PackagingError(
                f"the sample is {type(sample).__name__} of shape {array.shape}; a DataFrame, a mapping of "
                "columns, or an array [rows, columns] is needed"
            )
        if columns is not None and len(columns) != array.shape[1]:
            raise PackagingError(f"{len(columns)} columns are named, the sample has {array.shape[1]}")
        names = [item.name for item in columns] if columns else [f"f{i}" for i in range(array.shape[1])]
        frame = pd.DataFrame(array, columns=names).infer_objects()
    if not all(isinstance(name, str) for name in frame.columns):
        frame = frame.rename(columns=str)
    if frame.columns.has_duplicates:
        raise PackagingError("the sample names a column twice")
    return frame


def _check_name(name: str) -> None:
    if name in GRAPH_INPUTS:
        raise PackagingError(
            f"column {name!r}: requests have an input of that name for graph models "
            f"({', '.join(GRAPH_INPUTS)}); fit the estimator with another name"
        )
    if not name or len(name) > 256 or not name.isprintable():
        raise PackagingError(f"column {name!r}: names have 1 to 256 printable characters")


def _dtype(name: str, series: pd.Series[Any]) -> Literal["float", "int", "string"]:
    if pd.api.types.is_bool_dtype(series) or pd.api.types.is_integer_dtype(series):
        return "int"
    if pd.api.types.is_float_dtype(series):
        return "float"
    kinds = {type(value) for value in series if not _is_null(value)}
    if kinds <= {str, np.str_}:
        return "string"
    if kinds <= {int, float, np.float64, np.int64}:
        return "float"
    named = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise PackagingError(
        f"column {name!r} is {series.dtype} and holds {named}: requests have numbers and strings; "
        f"convert it before fitting, or {_WHERE}"
    )


def _values(column: Column, series: pd.Series[Any]) -> list[Any]:
    kind = {"float": float, "int": int, "string": str}[column.dtype]
    try:
        return [None if _is_null(value) else kind(value) for value in series]
    except (TypeError, ValueError):
        raise PackagingError(
            f"column {column.name!r} is declared as {column.dtype}, but holds {series.dtype}"
        ) from None


def _is_null(value: Any) -> bool:
    return (
        value is None or value is pd.NA or value is pd.NaT or (isinstance(value, float) and value != value)
    )
