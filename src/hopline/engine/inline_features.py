"""Features of inline nodes as float32."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from hopline.errors import BadRequest
from hopline.float32 import EXACT, changed, refusal
from hopline.graph.schema import NodeTypeSchema
from hopline.types import AnyArray, FloatArray, InlineNode

#: Rows that cost as much as checking an inline node, and ids that cost as much as a row: 4 µs and 0.07 µs,
#: where a row takes 0.1 to 0.5 µs.
INLINE_ROWS, LISTED_PER_ROW = 8, 4


def feature_rows(
    nodes: Sequence[InlineNode], node_type: str, schema: NodeTypeSchema, places: Sequence[str] = ()
) -> FloatArray:
    """Feature rows of inline nodes, float32 [n, d].

    Args:
        places: of the nodes in the request, for messages.

    Raises: BadRequest: as `number_rows`.
    """
    return number_rows(
        [node.features for node in nodes],
        lambda i: f"{places[i] if places else f'inline[{i}]'}.features",
        f"node type {node_type!r} has {schema.feature_dim} features",
        (schema.feature_dim, schema.feature_names, schema.rounded, schema.whole if schema.groups else ()),
    )


def number_rows(
    given: Sequence[Any],
    place: Callable[[int], str],
    has: str,
    columns: tuple[int, Sequence[str], Collection[int], Sequence[int]],
) -> FloatArray:
    """Rows of numbers of a request, float32 [n, d].

    Args:
        place: of a row in the request. has: what a row should be, for messages.
        columns: number of columns, their names, those that may be rounded and those of whole numbers.

    Raises: BadRequest: a wrong number of columns, not numbers, not finite, or integers that float32 would
        change in a column that may not be rounded.
    """
    dim, _, rounded, whole = columns
    if not given:
        return np.empty((0, dim), np.float32)
    try:
        with np.errstate(over="ignore"):
            rows: FloatArray = np.asarray(given, np.float32)
        if rows.shape == (len(given), dim) and not whole and (not rows.size or np.abs(rows).max() < EXACT):
            return rows  # NaN and infinity are not below
        sent, rows = as_float32(given)
        fits = rows.shape == (len(given), dim) and np.isfinite(rows).all()
        if fits and changed(sent, rows, rounded, whole) is None:
            return rows
    except (TypeError, ValueError, OverflowError):
        pass
    return np.stack([_row(place(i), row, has, columns) for i, row in enumerate(given)])


def as_float32(values: Any) -> tuple[AnyArray, FloatArray]:
    """Numbers as they came (float, int or uint), and as float32, infinite if they are too large.

    Raises: TypeError, ValueError or OverflowError: not numbers, or not a rectangular array.
    """
    given = np.asarray(values)
    if given.dtype.kind not in "fiu":
        given = np.asarray(values, np.float64)
    with np.errstate(over="ignore"):
        return given, given.astype(np.float32, copy=False)


def _row(where: str, values: Any, has: str, columns: tuple[Any, ...]) -> FloatArray:
    dim, names, rounded, whole = columns
    try:
        given, row = as_float32(values)
    except (TypeError, ValueError, OverflowError):
        raise BadRequest(f"{where}: must be {dim} numbers") from None
    if row.shape != (dim,):
        raise BadRequest(f"{where}: shape {list(row.shape)}; {has}")
    if not np.isfinite(row).all():
        column = int(np.flatnonzero(~np.isfinite(row))[0])
        raise BadRequest(f"{where}[{column}] is {row[column]} as float32; it must be finite")
    lost = changed(given.reshape(1, dim), row.reshape(1, dim), rounded, whole)
    if lost is not None:
        column = int(lost[0].argmax())
        raise BadRequest(f"{where}: {refusal(given[column], column, names)}")
    return row
