"""Columns of nodes and edges as tables have them: named, typed, with missing cells.

A graph stores the columns of a type as the bytes of one Arrow IPC file. So they are mapped, hashed and
copied as all of its arrays are. A text is stored once for each distinct value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph.arrow import arrow
from hopline.graph.cell_text import LARGEST, WORDS, read_text, shown
from hopline.graph.columns import read_only
from hopline.graph.schema import ColumnSchema, ColumnType
from hopline.types import AnyArray

#: Words in the names of columns that a model predicts, or that divide its nodes.
_LABELS = frozenset(
    (
        *("label", "labels", "target", "targets", "y", "class", "classes", "outcome", "truth"),
        *("fraud", "fraudulent", "flagged", "illicit", "anomaly", "anomalous", "outlier", "spam", "bot"),
        *("malicious", "churn", "churned", "default", "defaulted", "mask", "split", "fold", "chargeback"),
    )
)


def is_label(name: str) -> bool:
    """True for a column that is usually a label or a split: is_fraud, isFraud, y, target_1, train_mask."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return any(word.lower() in _LABELS for word in words)


_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_FINITE = float(np.finfo(np.float64).max)
#: Types of values that need not be looked at one by one.
_USUAL: dict[ColumnType, set[type]] = {
    "float": {float, int, type(None)},
    "integer": {int, type(None)},
    "boolean": {bool, type(None)},
    "text": {str, type(None)},
    "timestamp": {type(None)},
}


def cell_of(kind: ColumnType, value: Any) -> Any:
    """A value of a request or an event as a number or a text; None for a missing one.

    A boolean is 0 or 1, a time is in microseconds since 1970. `read_text` reads strings in columns of texts
    and times; an empty one is missing in every column.

    Raises: ValueError: it is no value of the type; says which value, and what the type has.
    """
    given = value
    if isinstance(value, str):
        value = read_text(kind if kind == "timestamp" else "text", value)
    try:
        if value is None or value != value:
            return None
        found = _cell_of(kind, value)
    except (TypeError, ValueError, OverflowError):
        found = None
    if found is None:
        raise ValueError(f"{shown(given)} instead of {WORDS[kind]}")
    if found != found:
        raise ValueError(f"{shown(given)} is finer than microseconds")
    if kind == "integer" or (kind == "float" and isinstance(found, int)):
        # from 2^24 or 2^53 on, a float may be a rounded integer
        most = LARGEST if isinstance(found, int) else 2 ** (np.finfo(type(value)).nmant + 1) - 1
        if not -most <= found <= most:
            raise ValueError(f"{shown(found)} is beyond ±{most}")
    if kind == "timestamp" and float(found) != found:
        raise ValueError(f"{shown(given)} is too far from 1970 for fractions of a second")
    return found


def _bare(text: str | None) -> str | None:
    return None if text is None else read_text("text", text)


def _cell_of(kind: ColumnType, value: Any) -> Any:
    """As `cell_of`, without its limits; None for no value of the type, NaN for a time that is too fine."""
    if kind == "text":
        return value if isinstance(value, str) else None
    if kind == "timestamp":
        if not isinstance(value, datetime):
            return None
        if getattr(value, "nanosecond", 0):
            return math.nan
        return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    value = value.item() if isinstance(value, np.generic) else value
    if kind == "boolean" or isinstance(value, bool):
        return int(value) if isinstance(value, bool) and kind == "boolean" else None
    if not isinstance(value, int | float) or not math.isfinite(float(value)):
        return None
    return value if kind == "float" or value == value // 1 else None


def cells_of(kind: ColumnType, values: Sequence[Any]) -> tuple[AnyArray, dict[int, str]]:
    """Values of one column: float64 [n], NaN for missing ones; of texts objects [n], None for missing ones.

    Returns: the cells as `cell_of` has them; and position -> why a value is none of the type.
    """
    form = object if kind == "text" else np.float64
    if (types := set(map(type, values))) <= _USUAL[kind]:  # a tenth of the time of looking at each
        try:
            cells = np.array([*map(_bare, values)] if kind == "text" else values, form)
        except OverflowError:
            cells = np.array([np.inf])
        if kind == "text" or not (np.abs(cells) > (LARGEST - 1 if int in types else _FINITE)).any():
            return cells, {}
    found, wrong = list[Any](), dict[int, str]()
    for at, value in enumerate(values):
        try:
            found.append(cell_of(kind, value))
        except ValueError as error:
            found.append(None)
            wrong[at] = str(error)
    return np.array(found, form), wrong


def values_of(columns: Sequence[ColumnSchema], cells: AnyArray, texts: AnyArray) -> dict[str, Any]:
    """Rows in the form of `StoredColumns.values`.

    Args:
        cells: float64 [n, columns] as of `cells_of`, with any number for a text.
        texts: objects [n, columns of texts].
    """
    found: dict[str, Any] = {}
    others = iter(texts.T)
    for column, numbers in zip(columns, cells.T, strict=True):
        if column.type == "text":
            found[column.name] = next(others).tolist()
        else:
            found[column.name] = numbers / 1e6 if column.type == "timestamp" else numbers
    return found


class StoredColumns:
    """The columns of one node type or edge type.

    Args:
        stored: uint8 [bytes], an Arrow IPC file.
    """

    def __init__(self, stored: AnyArray) -> None:
        self.stored = stored

    @classmethod
    def of(cls, table: Any) -> StoredColumns:
        """Store a `pyarrow.Table` with the types that `cells.typed` returns."""
        pa, columns = arrow("pyarrow"), {}
        for name, column in zip(table.column_names, table.columns, strict=True):
            if pa.types.is_string(column.type):
                columns[name] = column.dictionary_encode()
            else:  # the bytes of missing cells are not content: equal tables have equal versions
                known = column.fill_null(pa.scalar(0).cast(column.type))
                columns[name] = arrow("pyarrow.compute").if_else(column.is_valid(), known, None)
        encoded = pa.table(columns).unify_dictionaries().combine_chunks()
        out = pa.BufferOutputStream()
        with pa.ipc.new_file(out, encoded.schema) as file:
            file.write_table(encoded)
        return cls(read_only(np.frombuffer(out.getvalue(), np.uint8)))

    @classmethod
    def of_cells(cls, columns: Sequence[ColumnSchema], cells: AnyArray, texts: AnyArray) -> StoredColumns:
        """Store rows; the arguments are those of `values_of`."""
        pa, table, others = arrow("pyarrow"), {}, iter(texts.T)
        for column, numbers in zip(columns, cells.T, strict=True):
            if column.type == "text":
                table[column.name] = pa.array(next(others).tolist(), pa.string())
                continue
            absent = np.isnan(numbers)
            if column.type != "float":
                numbers = np.where(absent, 0.0, numbers).astype(np.int64)
            stored = pa.array(numbers, mask=absent)
            kinds = {"boolean": pa.bool_(), "timestamp": pa.timestamp("us", "UTC")}
            table[column.name] = stored.cast(kinds.get(column.type, stored.type))
        return cls.of(pa.table(table))

    @cached_property
    def table(self) -> Any:
        """The columns as a `pyarrow.Table`.

        Raises: GraphError: they are damaged, or pyarrow is not installed.
        """
        pa = arrow("pyarrow")
        try:
            found = pa.ipc.open_file(pa.py_buffer(self.stored)).read_all()
            found.validate(full=True)
        except (pa.ArrowException, OSError) as error:
            raise GraphError(f"columns are damaged: {error}; build the graph again") from None
        return found

    def taken(self, rows: Any) -> StoredColumns:
        """Some rows: int64 [n], or an Arrow array whose missing numbers are rows without cells."""
        pa, chosen = arrow("pyarrow"), self.table.take(rows)
        columns = {
            name: column.cast(pa.string()) if type_of(column.type) == "text" else column
            for name, column in zip(chosen.column_names, chosen.columns, strict=True)
        }
        return StoredColumns.of(pa.table(columns))

    @property
    def schemas(self) -> tuple[ColumnSchema, ...]:
        """Names and types."""
        fields = self.table.schema
        return tuple(ColumnSchema(field.name, type_of(field.type)) for field in fields)

    def size_of_texts(self) -> tuple[int, int]:
        """The number of distinct texts of each column, added up, and their bytes."""
        texts = [column for column in self.table.columns if type_of(column.type) == "text"]
        words = [column.combine_chunks().dictionary for column in texts]
        count = arrow("pyarrow.compute").binary_length
        return sum(map(len, words)), sum(int(np.nansum(count(each).to_numpy(False))) for each in words)

    def values(self, rows: slice | AnyArray) -> dict[str, Any]:
        """Some rows as preprocessing reads them: name -> float64 [n], or a list of texts.

        A boolean is 0 or 1, a time is in seconds since 1970, a missing cell is NaN, or None of texts.
        """
        table = self.table
        chosen = (
            table.slice(rows.start, rows.stop - rows.start) if isinstance(rows, slice) else table.take(rows)
        )
        return dict(zip(table.column_names, map(_values, chosen.columns), strict=True))

    def frame(self) -> Any:
        """All rows as a `pandas.DataFrame`, to fit preprocessing on: as `values`, with NaN for no text.

        Integers and booleans without missing cells are int64.
        """
        import pandas as pd

        found = {}
        for name, values in self.values(slice(0, len(self.table))).items():
            column = self.table.column(name)
            if isinstance(values, list):
                found[name] = np.array([np.nan if value is None else value for value in values], object)
            elif type_of(column.type) in ("integer", "boolean") and not column.null_count:
                found[name] = values.astype(np.int64)
            else:
                found[name] = values
        return pd.DataFrame(found)

    def described(self) -> list[dict[str, Any]]:
        """Name, type, share of missing cells, and range or number of distinct texts, of each column."""
        pc = arrow("pyarrow.compute")
        found = []
        for name, column in zip(self.table.column_names, self.table.columns, strict=True):
            kind, missing = type_of(column.type), column.null_count / max(1, len(column))
            one = {"name": name, "type": kind, "missing": missing}
            if kind == "text":
                one["distinct"] = len(pc.unique(column).drop_null())
            else:
                ends = pc.min_max(column).as_py()
                low, high = ends["min"], ends["max"]
                is_time = kind == "timestamp" and low is not None
                one |= {"min": low.isoformat(), "max": high.isoformat()} if is_time else ends
            found.append(one)
        return found


def type_of(kind: Any) -> Any:
    """The type of a column of Arrow's type, as in `ColumnType`; "" if it has none."""
    types = arrow("pyarrow.types")
    if types.is_boolean(kind):
        return "boolean"
    if types.is_integer(kind):
        return "integer"
    if types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind):
        return "float"
    if types.is_timestamp(kind) or types.is_date(kind):
        return "timestamp"
    is_text = types.is_dictionary(kind) or types.is_string(kind) or types.is_large_string(kind)
    return "text" if is_text else ""


def _values(column: Any) -> Any:
    kind = type_of(column.type)
    if kind == "text":
        column = column.combine_chunks()
        if len(column.dictionary) > len(column):
            return column.to_pylist()
        # for few distinct texts, a tenth of the time of `to_pylist`
        texts = np.array([*column.dictionary.to_pylist(), None], object)
        return texts[column.indices.fill_null(len(texts) - 1).to_numpy()].tolist()
    numbers = numbers_of(column)
    return numbers / 1e6 if kind == "timestamp" else numbers


def numbers_of(column: Any) -> AnyArray:
    """A column of Arrow without texts as `cells_of` has its values."""
    pa, kind = arrow("pyarrow"), type_of(column.type)
    if kind in ("boolean", "timestamp"):
        column = column.cast(pa.uint8() if kind == "boolean" else pa.int64())
    numbers: AnyArray = column.cast(pa.float64(), safe=False).to_numpy()
    return numbers
