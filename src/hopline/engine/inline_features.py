"""Features of inline nodes as float32."""

from __future__ import annotations

from collections.abc import Sequence
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

    Raises: BadRequest: a wrong number of features, not numbers, not finite, or integers that float32 would
        change in a column that may not be rounded.
    """
    if not nodes:
        return np.empty((0, schema.feature_dim), np.float32)
    features = [node.features for node in nodes]
    shape = len(nodes), schema.feature_dim
    try:
        with np.errstate(over="ignore"):
            rows: FloatArray = np.asarray(features, np.float32)
        whole = schema.whole if schema.groups else ()
        if rows.shape == shape and not whole and (not rows.size or np.abs(rows).max() < EXACT):
            return rows  # NaN and infinity are not below
        given, rows = as_float32(features)
        fits = rows.shape == shape and np.isfinite(rows).all()
        if fits and changed(given, rows, schema.rounded, whole) is None:
            return rows
    except (TypeError, ValueError, OverflowError):
        pass
    for i, node in enumerate(nodes):
        _check(f"{places[i] if places else f'inline[{i}]'}.features", node, node_type, schema)
    raise BadRequest(f"inline: each node must have {schema.feature_dim} features")


def as_float32(values: Any) -> tuple[AnyArray, FloatArray]:
    """Numbers as they came (float, int or uint), and as float32, infinite if they are too large.

    Raises: TypeError, ValueError or OverflowError: not numbers, or not a rectangular array.
    """
    given = np.asarray(values)
    if given.dtype.kind not in "fiu":
        given = np.asarray(values, np.float64)
    with np.errstate(over="ignore"):
        return given, given.astype(np.float32, copy=False)


def _check(where: str, node: InlineNode, node_type: str, schema: NodeTypeSchema) -> None:
    dim = schema.feature_dim
    try:
        given, row = as_float32(node.features)
    except (TypeError, ValueError, OverflowError):
        raise BadRequest(f"{where}: must be {dim} numbers") from None
    if row.shape != (dim,):
        raise BadRequest(f"{where}: shape {list(row.shape)}; node type {node_type!r} has {dim} features")
    if not np.isfinite(row).all():
        column = int(np.flatnonzero(~np.isfinite(row))[0])
        raise BadRequest(f"{where}[{column}] is {row[column]} as float32; it must be finite")
    lost = changed(given.reshape(1, dim), row.reshape(1, dim), schema.rounded, schema.whole)
    if lost is not None:
        column = int(lost[0].argmax())
        raise BadRequest(f"{where}: {refusal(given[column], column, schema.feature_names)}")
