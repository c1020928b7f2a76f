"""Columns of Parquet files, through pyarrow (the extra `hopline[parquet]`)."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph.progress import Progress, silent
from hopline.graph.tables import Encoded


def numeric_names(path: Path) -> list[str]:
    """Names of the columns that hold numbers, or lists of numbers, in order."""
    types = _arrow("pyarrow.types")
    schema = _open(path).schema_arrow
    return [field.name for field in schema if _is_number(types, field.type) or _is_list(types, field.type)]


def read(
    path: Path, names: Sequence[str], *, ids: Collection[str], progress: Progress = silent
) -> dict[str, Any]:
    """Read columns.

    Args:
        ids: those of `names` that hold ids and must be integers or strings.
    Returns: name -> [n] array, [n, d] array (a column of equally long lists), or `Encoded` strings.
    Raises: GraphError: pyarrow or a column is absent, the file cannot be read, a column has nulls.
    """
    types = _arrow("pyarrow.types")
    file = _open(path)
    absent = [name for name in names if name not in file.schema_arrow.names]
    if absent:
        raise GraphError(
            f"{path}: no column {', '.join(map(repr, absent))}; there are "
            f"{', '.join(map(repr, file.schema_arrow.names))}"
        )
    progress(f"reading {path}", 0.0)
    table = file.read(columns=list(dict.fromkeys(names)))
    for name in ids:
        kind = table.column(name).type
        value_type = kind.value_type if types.is_dictionary(kind) else kind
        if not (
            types.is_integer(value_type) or types.is_string(value_type) or types.is_large_string(value_type)
        ):
            raise GraphError(
                f"{path}: column {name!r} must hold integers or strings, being ids; it holds {kind}"
            )
    return {name: _column(types, table.column(name), f"{path}: column {name!r}") for name in names}


def _column(types: Any, column: Any, what: str) -> Any:
    if column.null_count:
        first = column.is_null().index(True).as_py()
        raise GraphError(
            f"{what} has {column.null_count} nulls, the first in row {first}; fill or drop them"
        )
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_string(column.type) or types.is_large_string(column.type):
        encoded = column.dictionary_encode().unify_dictionaries().combine_chunks()
        if hasattr(encoded, "chunks"):  # no rows, no chunk
            return Encoded([], np.empty(0, np.int32))
        return Encoded(encoded.dictionary.to_pylist(), encoded.indices.to_numpy())
    if _is_list(types, column.type):
        lengths = set(_arrow("pyarrow.compute").list_value_length(column).unique().to_pylist())
        if len(lengths) > 1:
            raise GraphError(f"{what} holds lists of different lengths: {sorted(lengths)[:5]}")
        flat = _arrow("pyarrow.compute").list_flatten(column)
        return _column(types, flat, what).reshape(len(column), -1)
    return column.to_numpy()


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(types: Any, kind: Any) -> bool:
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and _is_number(types, kind.value_type)


def _open(path: Path) -> Any:
    file = _arrow("pyarrow.parquet").ParquetFile
    try:
        return file(path, memory_map=True)
    except (OSError, ValueError) as error:
        raise GraphError(f"{path} cannot be read as Parquet: {error}") from None


def _arrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise GraphError("reading Parquet needs pyarrow: pip install 'hopline[parquet]'") from None
