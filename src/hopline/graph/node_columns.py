"""Columns of nodes as their tables have them, before any preprocessing: named, typed, with missing cells.

A graph stores the columns of a node type as the bytes of one Arrow IPC file. So they are mapped, hashed and
copied as all of its arrays are. A text is stored once for each distinct value.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph.arrow import arrow
from hopline.graph.columns import read_only
from hopline.types import AnyArray

#: Words in the names of columns that a model predicts, or that divide its nodes.
_LABELS = frozenset(
    (
        *("label", "labels", "target", "targets", "y", "class", "classes", "outcome", "truth"),
        *("fraud", "fraudulent", "flagged", "illicit", "anomaly", "anomalous", "outlier", "spam", "bot"),
        *("malicious", "churn", "churned", "default", "defaulted", "mask", "split", "fold"),
    )
)


def is_label(name: str) -> bool:
    """True for a column that is usually a label or a split: is_fraud, isFraud, y, target_1, train_mask."""
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return any(word.lower() in _LABELS for word in words)


class NodeColumns:
    """The columns of one node type.

    Args:
        stored: uint8 [bytes], an Arrow IPC file.
    """

    def __init__(self, stored: AnyArray) -> None:
        self.stored = stored

    @classmethod
    def of(cls, table: Any) -> NodeColumns:
        """Store a `pyarrow.Table` with the types that `cells.typed` returns."""
        pa = arrow("pyarrow")
        columns = {
            name: column.dictionary_encode() if pa.types.is_string(column.type) else column
            for name, column in zip(table.column_names, table.columns, strict=True)
        }
        encoded = pa.table(columns).unify_dictionaries().combine_chunks()
        out = pa.BufferOutputStream()
        with pa.ipc.new_file(out, encoded.schema) as file:
            file.write_table(encoded)
        return cls(read_only(np.frombuffer(out.getvalue(), np.uint8)))

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
            raise GraphError(f"columns of nodes are damaged: {error}; build the graph again") from None
        return found

    def values(self, rows: slice | AnyArray) -> dict[str, Any]:
        """Some rows as preprocessing reads them: name -> float64 [n], or a list of texts.

        A boolean is 0 or 1, a time is in seconds since 1970, a missing cell is NaN, or None of texts.
        """
        table = self.table
        chosen = (
            table.slice(rows.start, rows.stop - rows.start) if isinstance(rows, slice) else table.take(rows)
        )
        return {
            name: _values(column) for name, column in zip(table.column_names, chosen.columns, strict=True)
        }

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
            one = {
                "name": name,
                "type": type_of(column.type),
                "missing": column.null_count / max(1, len(column)),
            }
            if one["type"] == "text":
                one["distinct"] = len(pc.unique(column).drop_null())
            else:
                ends = pc.min_max(column).as_py()
                low, high = ends["min"], ends["max"]
                is_time = one["type"] == "timestamp" and low is not None
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
    return (
        "text" if types.is_dictionary(kind) or types.is_string(kind) or types.is_large_string(kind) else ""
    )


def _values(column: Any) -> Any:
    pa, kind = arrow("pyarrow"), type_of(column.type)
    if kind == "text":
        column = column.combine_chunks()
        if len(column.dictionary) > len(column):
            return column.to_pylist()
        # for few distinct texts, a tenth of the time of `to_pylist`
        texts = np.array([*column.dictionary.to_pylist(), None], object)
        return texts[column.indices.fill_null(len(texts) - 1).to_numpy()].tolist()
    if kind == "boolean":
        column = column.cast(pa.uint8())
    elif kind == "timestamp":
        column = column.cast(pa.int64())
    numbers: AnyArray = column.cast(pa.float64(), safe=False).to_numpy()
    return numbers / 1e6 if kind == "timestamp" else numbers
