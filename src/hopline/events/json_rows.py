"""Rows of JSON events: converts objects to columns, with Python loops of single expressions only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, cast

import numpy as np

from hopline.events import checks
from hopline.events.rows import Column, EdgeRows, NodeRows, Refusals
from hopline.events.wire import AddEdge, AddNode, NodeRow, RemoveEdge, Vector
from hopline.graph.list_columns import Lists, lists_of, with_places
from hopline.graph.schema import ColumnSchema, EdgeTypeSchema, NodeTypeSchema
from hopline.graph.stored_columns import cells_of
from hopline.types import AnyArray, IdArray

Row = Mapping[str, Any]
_INT64 = np.iinfo(np.int64)


def edge_rows(
    events: Sequence[AddEdge | RemoveEdge], numbers: IdArray, schema: EdgeTypeSchema, refusals: Refusals
) -> EdgeRows:
    """Columns of events of one edge type; without those with missing or invalid attributes."""
    what = f"edge type {schema.key!r}"
    attrs = [event.attr for event in events]
    needed = [type(event) is AddEdge for event in events]
    if_missing = checks.no_attr(what, schema.attr_dim)
    rows, attr = vectors(
        attrs, needed, numbers, schema.attr_dim, schema.attr_names, f"{what}: attr", if_missing, refusals
    )
    if rows is not None:
        events, numbers = [events[row] for row in rows], numbers[rows]
    kept, cells, texts = _read_columns(events, numbers, what, schema.columns, refusals)
    if kept is not None:
        events, numbers = [events[row] for row in kept], numbers[kept]
        attr = None if attr is None else Column(attr.values[kept])
    return EdgeRows(
        numbers,
        [event.src for event in events],
        [event.dst for event in events],
        np.fromiter([type(event) is RemoveEdge for event in events], np.bool_, len(events)),
        int_column([event.time for event in events], numbers, "time", refusals),
        _float_column([event.weight for event in events]),
        attr,
        cells,
        texts,
    )


def node_rows(
    events: Sequence[NodeRow], numbers: IdArray, name: str, schema: NodeTypeSchema, refusals: Refusals
) -> NodeRows:
    """Columns of events of one node type; without those whose features are missing or invalid."""
    what = f"node type {name!r}"
    rows, features = vectors(
        [event.features for event in events],
        [True] * len(events),
        numbers,
        schema.feature_dim,
        schema.feature_names,
        f"{what}: features",
        checks.no_features(what, schema.feature_dim),
        refusals,
    )
    if rows is not None:
        events, numbers = [events[row] for row in rows], numbers[rows]
    kept, cells, texts = _read_columns(events, numbers, what, schema.columns, refusals)
    if kept is not None:
        events, numbers = [events[row] for row in kept], numbers[kept]
        features = None if features is None else Column(features.values[kept])
    return NodeRows(
        numbers,
        [event.node for event in events],
        np.fromiter([type(event) is AddNode for event in events], np.bool_, len(events)),
        features,
        cells,
        texts,
        int_column([event.time for event in events], numbers, "time", refusals),
    )


def _read_columns(
    events: Sequence[AddEdge | RemoveEdge | NodeRow],
    numbers: IdArray,
    what: str,
    columns: Sequence[ColumnSchema],
    refusals: Refusals,
) -> tuple[list[int] | None, AnyArray | None, AnyArray | None]:
    """Rows of the events with a value for each column, None for all of them; others are refused.

    Returns: also their cells and texts; a removal needs no values.
    """
    names = {column.name: None for column in columns}.keys()
    every: list[Row] = [event.columns or {} for event in events]
    placed(every, lists_of(names), numbers, what, refusals)
    wrong = [
        row
        for row, event in enumerate(events)
        if every[row].keys() != names and type(event) is not RemoveEdge
    ]
    for row in wrong:
        given, number = every[row], int(numbers[row])
        foreign = [name for name in given if name not in names]
        if foreign or not names:
            is_edge = type(events[row]) is AddEdge
            has = (
                f"it has {checks.takes(columns)}" if names else f"send {'attr' if is_edge else 'features'}"
            )
            why = f"{what} has no column {_listed(foreign)}; {has}"
            refusals.add(number, "schema_changed", why)
        else:
            lacks = [name for name in names if name not in given]
            why = (
                f"{what}: columns without {_listed(lacks)}; it has {checks.takes(columns)}; null is missing"
            )
            refusals.add(number, "bad_shape", why)
    kept = sorted({*range(len(events))}.difference(wrong)) if wrong else None
    rows = every if kept is None else [every[row] for row in kept]

    def read(column: ColumnSchema) -> tuple[AnyArray, dict[int, str]]:
        return cells_of(column.type, [row.get(column.name) for row in rows])

    return kept, *checks.cells(read, numbers if kept is None else numbers[kept], columns, what, refusals)


def placed(rows: list[Row], lists: Lists, numbers: IdArray, what: str, refusals: Refusals) -> None:
    """Give rows the columns of their lists; a wrong list is refused."""
    for row, sent in enumerate(rows if lists else ()):
        try:
            rows[row] = with_places(sent, lists)
        except ValueError as error:
            refusals.add(int(numbers[row]), "bad_shape", f"{what}: column {error}")


def int_column(
    values: Sequence[int | None], numbers: IdArray, what: str, refusals: Refusals
) -> Column | None:
    """Convert integers to int64; larger ones are refused."""
    present = None
    if None in values:
        present = np.fromiter([value is not None for value in values], np.bool_, len(values))
        if not present.any():
            return None
        values = [value or 0 for value in values]
    ints = cast(Sequence[int], values)
    try:
        return Column(np.array(ints, np.int64), present)
    except OverflowError:
        fits = [_INT64.min <= value <= _INT64.max for value in ints]
        for row in np.flatnonzero(~np.array(fits)).tolist():
            why = f"{what} {str(ints[row])[:40]} does not fit into a signed 64-bit integer"
            refusals.add(int(numbers[row]), "malformed", why)
        kept = [value if ok else 0 for value, ok in zip(ints, fits, strict=True)]
        return Column(np.array(kept, np.int64), present)


def vectors(
    values: Sequence[Vector | None],
    needed: Sequence[bool],
    numbers: IdArray,
    dim: int,
    names: tuple[str, ...],
    what: str,
    if_missing: tuple[str, str],
    refusals: Refusals,
) -> tuple[list[int] | None, Column | None]:
    """Convert to float64 [n, dim] from lists, or of objects with the schema's names.

    Refused are other lengths and other names (`schema_changed`), objects without some names (`bad_shape`),
    and events whose required vector is missing. They are left out before vectors are built: a few bytes
    would use as much memory as a vector.

    Args:
        if_missing: code and reason for events without a vector.
    Returns: the remaining rows, None for all; and their vectors, zeros if none is needed.
    """
    rows = None
    lists = cast(list[list[float]], values)
    kinds = set(map(type, values))
    if not dim and kinds == {type(None)}:
        return None, None
    if kinds != {list} or set(map(len, lists)) != {dim}:
        nothing = [0.0] * dim
        rows, lists = [], []
        for row, (number, value, must) in enumerate(zip(numbers.tolist(), values, needed, strict=True)):
            found = nothing if value is None else in_order(value, dim, names, what)
            if value is None and must and dim:
                refusals.add(number, *if_missing)
            elif isinstance(found, list):
                rows.append(row)
                lists.append(found)
            else:
                refusals.add(number, *found)
    if not dim:
        return rows, None
    flat = np.fromiter(chain.from_iterable(lists), np.float64, len(lists) * dim)
    return rows, Column(flat.reshape(len(lists), dim))


def in_order(value: Vector, dim: int, names: tuple[str, ...], what: str) -> list[float] | tuple[str, str]:
    """The numbers of a vector in the schema's order; or a code and a reason why there are none."""
    if isinstance(value, list):
        if len(value) == dim:
            return value
        has = described(dim, names)
        return "schema_changed", f"{what} of {len(value)} numbers; the graph has {has}, in this order"
    if not dim:
        return "schema_changed", f"{what} {_listed(value)}; the graph has {described(dim, names)}"
    if not names:
        given = f"{what} by name ({_listed(value)})"
        return "bad_shape", f"{given}, but the graph has no names for them; send a list of {dim}"
    foreign = [name for name in value if name not in names]
    if foreign:
        return (
            "schema_changed",
            f"{what} {_listed(value)}; the graph has {described(dim, names)}, not {_listed(foreign)}",
        )
    missing = [name for name in names if name not in value]
    if missing:
        return "bad_shape", f"{what} without {_listed(missing)}; all {dim} are required"
    return [value[name] for name in names]


def described(dim: int, names: Sequence[str]) -> str:
    """Features or attributes of the schema, in words."""
    return f"{dim}" + (f" ({_listed(names)})" if names else "")


def _float_column(values: Sequence[float | None]) -> Column | None:
    present = None
    if None in values:
        present = np.fromiter([value is not None for value in values], np.bool_, len(values))
        if not present.any():
            return None
        values = [0.0 if value is None else value for value in values]
    return Column(np.array(values, np.float64), present)


def _listed(names: Any, most: int = 12) -> str:
    shown = [str(name)[:40] for name in names]
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
