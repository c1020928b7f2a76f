"""Checks rows against a graph's schema: valid rows become changes, others are refused with a reason.

Only the schema is checked here; the writer knows which nodes exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.events.rows import Column, EdgeRows, NodeRows, Refusals
from hopline.float32 import changed, refusal
from hopline.graph.edge_times import UNITS, likely_range
from hopline.graph.live.changes import EdgeChanges, Ids, NodeChanges
from hopline.graph.live.check import NOT_SIGNED
from hopline.graph.schema import ColumnSchema, EdgeTypeSchema, GraphSchema, IdKind, NodeTypeSchema
from hopline.types import AnyArray, FloatArray, IdArray

_INT64 = np.iinfo(np.int64)
#: Columns that a message names.
_SHOWN = 24


def edge_changes(
    rows: EdgeRows, schema: EdgeTypeSchema, graph: GraphSchema, refusals: Refusals
) -> EdgeChanges:
    """Changes of one edge type; refused rows are included, with arbitrary values."""
    what = f"edge type {schema.key!r}"
    numbers, adds = rows.numbers, ~rows.remove
    src = ids(rows.src, numbers, graph.node_types[schema.src].id_kind, "src", refusals)
    dst = ids(rows.dst, numbers, graph.node_types[schema.dst].id_kind, "dst", refusals)

    time, has_time = None, None
    if schema.has_time:
        time, has_time = _time(
            rows.time, numbers, adds, schema.time_unit, f"{what}: an added edge", refusals
        )
    elif rows.time is not None:
        _foreign(rows.time, numbers, f"{what} has no times; this event has one", refusals)

    weight: FloatArray | None = None
    if schema.has_weight:
        weight = _weight(rows, adds, schema, refusals)
    elif rows.weight is not None:
        given = Column(rows.weight.values, adds if (has := rows.weight.present) is None else adds & has)
        _foreign(given, numbers, f"{what} has no weights; this event has one", refusals)

    attr: FloatArray | None = None
    if schema.attr_dim:
        attr = _vectors(
            rows.attr,
            adds,
            numbers,
            _Columns(f"{what}: attr", schema.attr_dim, schema.attr_names, schema.rounded),
            refusals,
        )
        lacks = adds if rows.attr is None else adds & rows.attr.absent()
        refusals.add_all(numbers[lacks], *no_attr(what, schema.attr_dim))
    return EdgeChanges(src, dst, rows.remove, numbers, time, has_time, weight, attr, rows.cells, rows.texts)


def node_changes(
    rows: NodeRows, name: str, schema: NodeTypeSchema, unit: str, refusals: Refusals
) -> NodeChanges:
    """Changes of one node type, in a graph whose times have a unit; as `edge_changes`."""
    what = f"node type {name!r}"
    numbers = rows.numbers
    columns = _Columns(
        f"{what}: features", schema.feature_dim, schema.feature_names, schema.rounded, schema.whole
    )
    features = _vectors(rows.features, np.ones(len(numbers), np.bool_), numbers, columns, refusals)
    if schema.feature_dim:
        lacks = np.ones(len(numbers), np.bool_) if rows.features is None else rows.features.absent()
        refusals.add_all(numbers[lacks], *no_features(what, schema.feature_dim))
    elif not schema.columns:
        refusals.add_all(
            numbers[~rows.add], "schema_changed", f"{what} has no features; nothing can be set"
        )
    external, time = ids(rows.ids, numbers, schema.id_kind, "node", refusals), None
    if schema.history is not None:
        every = np.ones(len(numbers), np.bool_)
        time, _ = _time(rows.time, numbers, every, unit, f"{what}: a row with a history", refusals)
    elif rows.time is not None:
        _foreign(rows.time, numbers, f"{what} has no history; this event has a time", refusals)
    return NodeChanges(external, rows.add, features, numbers, rows.cells, rows.texts, time=time)


def node_removals(
    values: IdArray | Sequence[Any], numbers: IdArray, schema: NodeTypeSchema, refusals: Refusals
) -> NodeChanges:
    """Removals of nodes of one type; as `edge_changes`."""
    return NodeChanges.removals(ids(values, numbers, schema.id_kind, "node", refusals), numbers, schema)


def cells(
    read: Callable[[ColumnSchema], tuple[AnyArray, Mapping[int, str]]],
    numbers: IdArray,
    columns: Sequence[ColumnSchema],
    what: str,
    refusals: Refusals,
) -> tuple[AnyArray | None, AnyArray | None]:
    """Columns of events as in `NodeChanges`; a wrong value is refused with the name of its column.

    Args:
        read: a column, as `cells_of`.
    """
    if not columns:
        return None, None
    found = np.zeros((len(numbers), len(columns)))
    texts = []
    for at, column in enumerate(columns):
        values, wrong = read(column)
        for row, why in wrong.items():
            refusals.add(int(numbers[row]), "bad_value", f"{what}: column {column.name!r}: {why}")
        if column.type == "text":
            texts.append(values)
        else:
            found[:, at] = values
    return found, np.stack(texts, 1) if texts else np.empty((len(numbers), 0), object)


def takes(columns: Sequence[ColumnSchema]) -> str:
    """Columns of a type, for messages; the first of many."""
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    return ", ".join(f"{column.name} ({column.type})" for column in columns[:_SHOWN]) + more


def no_attr(what: str, dim: int) -> tuple[str, str]:
    """Code and reason for an added edge without attributes."""
    return "no_attr", f"{what}: an added edge needs attr, {dim} numbers"


def no_features(what: str, dim: int) -> tuple[str, str]:
    """Code and reason for a node without features."""
    return "bad_shape", f"{what}: no features; expected {dim} numbers"


def ids(
    values: IdArray | Sequence[Any], numbers: IdArray, kind: IdKind, what: str, refusals: Refusals
) -> Ids:
    """The ids as int64 [n] or n strings; those of another kind are refused as `bad_id`."""
    if isinstance(values, np.ndarray):
        if kind == "string":
            refusals.add_all(numbers, "bad_id", f"{what} is an integer; ids are strings here")
            return [""] * len(values)
        return values
    wanted = str if kind == "string" else int
    if set(map(type, values)) == {wanted}:
        if kind == "string":
            return values
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass  # checked one by one below
    kept: list[Any] = []
    for number, value in zip(numbers.tolist(), values, strict=True):
        fits = type(value) is wanted and (wanted is str or _INT64.min <= int(value) <= _INT64.max)
        if not fits:
            refusals.add(number, "bad_id", _bad_id(value, kind, what))
        kept.append(value if fits else wanted())
    return kept if kind == "string" else np.array(kept, np.int64)


def _bad_id(value: Any, kind: IdKind, what: str) -> str:
    if value is None:
        return f"{what} is missing"
    if kind == "string":
        return f"{what} {str(value)[:40]} is an integer; ids are strings here"
    if isinstance(value, str):
        return f"{what} {value[:60]!r} is a string; ids are integers here"
    return f"{what} {str(value)[:40]} does not fit into a signed 64-bit integer"


def _time(
    given: Column | None,
    numbers: IdArray,
    needed: NDArray[np.bool_],
    unit: str,
    what: str,
    refusals: Refusals,
) -> tuple[IdArray, NDArray[np.bool_] | None]:
    if given is None:
        refusals.add_all(numbers[needed], "no_time", f"{what} needs a time")
        return np.zeros(len(numbers), np.int64), np.zeros(len(numbers), np.bool_)
    if unit:
        _same_unit(given, unit, numbers, what, refusals)
    if given.present is None:
        return given.values, None
    refusals.add_all(numbers[needed & ~given.present], "no_time", f"{what} needs a time")
    return given.values, given.present


def _same_unit(time: Column, unit: str, numbers: IdArray, what: str, refusals: Refusals) -> None:
    """Refuse times that lie in 1973 to 2286 if read in another unit than the graph's."""
    for other in UNITS:
        low, high = likely_range(other)
        if other == unit:
            continue
        wrong = (time.values >= low) & (time.values < high) & ~time.absent()
        for row in np.flatnonzero(wrong).tolist():
            refusals.add(
                int(numbers[row]),
                "malformed",
                f"{what}: time {time.values[row]} looks like one in {other}; the graph's are in {unit}",
            )


def _weight(
    rows: EdgeRows, adds: NDArray[np.bool_], schema: EdgeTypeSchema, refusals: Refusals
) -> FloatArray:
    numbers, column, what = rows.numbers, rows.weight, f"edge type {schema.key!r}"
    if column is None:
        refusals.add_all(numbers[adds], "no_weight", f"{what}: an added edge needs a weight")
        return np.zeros(len(numbers), np.float32)
    refusals.add_all(numbers[adds & column.absent()], "no_weight", f"{what}: an added edge needs a weight")
    columns = _Columns(f"{what}: weight", 1, None, (0,) if schema.rounded_weight else ())
    one = Column(column.values.reshape(-1, 1), column.present)
    weight = _vectors(one, adds & ~column.absent(), numbers, columns, refusals)[:, 0]
    if not schema.signed_weight:
        for row in np.flatnonzero(adds & (weight < 0)).tolist():
            reason = f"edge weight {weight[row]} of {NOT_SIGNED.format(schema.key)}"
            refusals.add(int(numbers[row]), "negative_weight", reason)
    return weight


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of the graph that numbers are for.

    Attributes:
        what: for reasons.
        names: may be empty; None for weights.
        rounded: positions of columns that may be rounded.
    """

    what: str
    dim: int
    names: Sequence[str] | None
    rounded: Sequence[int]
    whole: Sequence[int] = ()


def _vectors(
    column: Column | None, about: NDArray[np.bool_], numbers: IdArray, columns: _Columns, refusals: Refusals
) -> FloatArray:
    """Numbers as float32 [n, dim]; refuse those that it does not hold, in the rows `about` (bool [n])."""
    if column is None:
        return np.zeros((len(numbers), columns.dim), np.float32)
    with np.errstate(over="ignore"):  # too large becomes infinite, and is refused as such
        stored: FloatArray = column.values.astype(np.float32)
    finite = np.isfinite(stored)
    if not finite.all():
        reason = f"{columns.what} is NaN, infinite or too large for a 32-bit float"
        refusals.add_all(numbers[about & ~finite.all(axis=1)], "not_finite", reason)
    lost = changed(column.values, stored, columns.rounded, columns.whole)
    if lost is None:
        return stored
    for row in np.flatnonzero(about & lost.any(axis=1)).tolist():
        at = int(lost[row].argmax())
        is_weight = columns.names is None
        why = refusal(column.values[row, at], None if is_weight else at, columns.names or ())
        refusals.add(int(numbers[row]), "not_exact", f"{columns.what}: {why}")
    return stored


def _foreign(column: Column, numbers: IdArray, reason: str, refusals: Refusals) -> None:
    refusals.add_all(numbers[~column.absent()], "schema_changed", reason)
