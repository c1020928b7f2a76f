"""Reads columns with their types, from files and frames: a missing cell stays missing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from hopline.errors import GraphError
from hopline.graph.arrow import arrow
from hopline.graph.cell_text import LARGEST
from hopline.graph.cells import (
    FileTable,
    Missing,
    absent_cells,
    cast,
    check_cells,
    dates,
    is_string,
    parsed_text,
    trimmed,
)
from hopline.graph.list_columns import KIND, Kind, columns_of, lists_of
from hopline.graph.stored_columns import is_label, type_of
from hopline.graph.tables import EdgeTable, NodeTable
from hopline.graph.typed_table import TypedTable

_DATE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ].*)?$"
#: A code, since a number has no leading zero.
_CODE = r"^0[0-9]+$"
#: The types of columns in tables, in words.
TYPES = "float, integer, boolean, text, timestamp, codes, codes=a|b, codes-only=a|b, vector, vector=8"
#: (type of a column, further type that it may be read as)
_ALSO = {("integer", "text"), ("integer", "float"), ("boolean", "integer"), ("boolean", "float")}


def typed_table(what: str, table: NodeTable | EdgeTable) -> Any:
    """The columns of a node type or edge type, as a `pyarrow.Table` with their types.

    Raises: GraphError: a column has no type, another one than `column_types` says, or the name of a label.
    """
    source = TypedTable(table.columns, lambda done: None)
    types = table.column_types
    for column in [*source.names, *types]:
        if column not in source.names:
            raise GraphError(f"column_types names {column!r}; the table has {', '.join(source.names)}")
        if not re.fullmatch(f"|{KIND}", types.get(column, ""), re.DOTALL):
            raise GraphError(f"column {column!r}: its type is one of {TYPES}; got {types[column]!r}")
        if is_label(column) and column not in types:
            raise GraphError(
                f"{what}: column {column!r} is by name what a model predicts; leave it out, or "
                f'keep it as an input: column_types={{"{column}": ""}}'
            )
    if not source.names:
        raise GraphError(f"{what}: columns is a table without columns; leave it out")
    source.load(source.names)
    return typed_columns(source, {name: types.get(name, "") for name in source.names}, Missing())


def typed_columns(table: FileTable, kinds: Mapping[str, Kind], missing: Missing) -> Any:
    """Columns as `typed` has them, with those of lists in their place.

    Args:
        kinds: column -> type, or "" to detect it.
    """
    found, lists = dict[str, Any](), dict[str, tuple[str, ...]]()
    for name, kind in kinds.items():
        column = table.column(name)
        if is_string(column.type) and (isinstance(kind, tuple) or kind.startswith("codes")):
            column = typed(table, name, missing, "text")
        try:
            parts = columns_of(name, column, kind)
        except ValueError as error:
            raise GraphError(f"{table.what}: column {name!r} holds {error}") from None
        if parts:
            lists[name] = tuple(parts)
        found |= parts or {name: typed(table, name, missing, str(kind))}
    read = lists_of(found)
    for name, columns in lists.items():
        if others := {*kinds} & {*columns} | {*read.get(name, (name,))} ^ {*columns}:
            other = min(others & {*kinds}, default=name)
            raise GraphError(f"{table.what}: {name!r} is a list, and {other!r} is a column; rename one")
    return arrow("pyarrow").table(found)


def typed(table: FileTable, name: str, missing: Missing, wanted: str = "") -> Any:
    """Convert a column to float64, int64, bool, string or timestamp[us, UTC]; missing cells are null.

    Blanks around a text are removed, and an empty one is missing, whatever the table is read from.

    Args:
        wanted: one of `ColumnType`; "" means the type of the column, which is detected in text files.
    Raises: GraphError: the column has another type, or holds integers that float64 cannot.
    """
    pa, pc = arrow("pyarrow"), arrow("pyarrow.compute")
    column, what = table.column(name), f"{table.what}: column {name!r}"
    if not type_of(column.type):  # of a list, a duration, a period of pandas
        is_list = "list<" in str(column.type)
        how = "say that it holds codes or a vector of one length" if is_list else "convert it"
        named = f" ({name}:codes, {name}:vector)" if is_list else ""
        raise GraphError(f"{what} holds {column.type}; leave it out, or {how}{named}")
    if is_text := is_string(column.type):  # as `cell_of` reads a text
        column = pc.utf8_trim_whitespace(trimmed(table, name, column))
        column = pc.if_else(pc.equal(column, ""), None, column)
    absent = absent_cells(table, column, missing)
    column = pc.if_else(absent, pa.scalar(None, column.type), column)
    is_parsed = is_text and wanted != "text" and (table.is_text or wanted == "timestamp")
    if is_parsed and column.null_count < len(column):
        are_dates = not wanted and pc.mean(pc.match_substring_regex(column, _DATE)).as_py() > 0.5
        if wanted == "timestamp" or are_dates:
            texts, column = column, dates(table, name, column, finest=6)
            if column.dtype == "datetime64[ns]":  # one is finer than microseconds
                check_cells(table, name, texts, "timestamp", pc.is_valid(texts))
            column = pa.chunked_array([pa.array(column, from_pandas=True)])
        elif wanted or not pc.any(pc.match_substring_regex(column, _CODE)).as_py():
            found = parsed_text(table, name, column, absent, named=bool(wanted), kept=wanted)
            column = column if isinstance(found, str) else found
    kind = type_of(column.type)
    if wanted and kind != wanted and (kind, wanted) not in _ALSO and column.null_count < len(column):
        raise GraphError(f"{what} holds {column.type}, which is not read as {wanted}")
    if (wanted := wanted or kind) == "timestamp" and arrow("pyarrow.types").is_date(column.type):
        column = column.cast(pa.timestamp("s"))
    stored = {"float": pa.float64(), "integer": pa.int64(), "boolean": pa.bool_(), "text": pa.string()}
    stored["timestamp"] = pa.timestamp("us", "UTC")
    if (found := cast(column, stored[wanted])) is None:
        why = f"a {column.type} does not fit into {stored[wanted]}"
        why += ", which has microseconds around 1970" if wanted == "timestamp" else ""
        raise GraphError(f"{what}: {why}")
    if wanted in ("integer", "timestamp"):
        numbers = found.cast(pa.int64()).drop_null().to_numpy()
        beyond = numbers[(numbers > LARGEST) | (numbers < -LARGEST)]
        if wanted == "timestamp":  # those of whole seconds are exact
            beyond = beyond[beyond.astype(np.float64).astype(np.int64) != beyond].astype("datetime64[us]")
        if len(beyond):
            has = f"integers beyond 2^53, as {beyond[0]}" if wanted == "integer" else str(beyond[0])
            raise GraphError(
                f"{what} has {has}, which preprocessing would round; codes can be text ({name}:text)"
            )
    return found
