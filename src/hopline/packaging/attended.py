"""Attention over all in-edges of a graph in NumPy and float64, as `hopline.artifact` defines it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline.artifact import Attention
from hopline.packaging.check_graph import CheckEdges
from hopline.types import FloatArray

_Doubles = NDArray[np.float64]


def attended(
    attention: Attention,
    edges: CheckEdges,
    rows: FloatArray,
    loop_rows: FloatArray | None,
    query: FloatArray | None,
) -> FloatArray:
    """Attention of every destination.

    Args:
        rows: what edges read of their sources, [N, reads].
        loop_rows: what the added self-loops read, [n, reads]; None where nodes do not attend to themselves.
        query: [n, q]; `attention.query` says which columns.

    Returns: float32 [n, attention.width].
    """
    n, heads, channels = len(edges.indptr) - 1, attention.heads, attention.channels
    src, dst = edges.indices.astype(np.int64), edges.destinations
    num_attr = attention.num_attr
    attr = np.zeros((len(src), 0)) if edges.attr is None or not num_attr else edges.attr.astype(np.float64)
    if loop_rows is not None:
        others = src != dst
        src, dst, attr = src[others], dst[others], attr[others]
        rows = np.concatenate([rows, loop_rows])
        attr = np.concatenate([attr, _loop_attr(attention, dst, attr, n)])
        src = np.concatenate([src, len(rows) - n + np.arange(n)])
        dst = np.concatenate([dst, np.arange(n)])
    source = rows[src].astype(np.float64)
    if attention.shared:
        source = np.tile(source, heads)
    first, last = attention.query or (0, 0)
    mine = np.zeros((n, 0)) if query is None else query[:, first:last].astype(np.float64)
    scores = _scores(attention, source, mine[dst], attr)
    highest = np.full((n, heads), -np.inf)
    np.maximum.at(highest, dst, scores)
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - highest[dst])
    norm = np.zeros((n, heads))
    np.add.at(norm, dst, weights)
    weights /= norm[dst]
    width = heads * channels
    first = width if attention.kind == "transformer" and not attention.shared else 0
    value = source[:, first : first + width]
    out = np.zeros((n, width))
    np.add.at(out, dst, (weights[:, :, None] * value.reshape(-1, heads, channels)).reshape(-1, width))
    if attention.kind != "transformer" or not num_attr:
        return out.astype(np.float32)
    of_edges = np.zeros((n, heads * num_attr))
    np.add.at(of_edges, dst, (weights[:, :, None] * attr[:, None, :]).reshape(-1, heads * num_attr))
    return np.concatenate([out, of_edges], axis=1).astype(np.float32)


def _scores(attention: Attention, source: _Doubles, query: _Doubles, attr: _Doubles) -> _Doubles:
    """[E, heads]."""
    heads, channels, num_attr = attention.heads, attention.channels, attention.num_attr
    width = heads * channels
    edge = np.frombuffer(attention.edge, "<f4").astype(np.float64)
    of_edge = attr @ edge.reshape(num_attr, -1) if edge.size else 0.0

    def leaky(z: _Doubles) -> _Doubles:
        return np.where(z > 0, z, attention.slope * z)

    if attention.kind == "gat" and attention.shared:
        vector = np.frombuffer(attention.vector, "<f4").astype(np.float64)
        found = (source * vector).reshape(-1, heads, channels).sum(axis=2) + of_edge
        if query.shape[1]:
            found += (
                query @ np.frombuffer(attention.own_vector, "<f4").astype(np.float64).reshape(heads, -1).T
            )
        return leaky(found)
    if attention.kind == "gat":
        return leaky(source[:, width:] + (query if query.shape[1] else 0.0) + of_edge)
    if attention.kind == "gatv2":
        vector = np.frombuffer(attention.vector, "<f4").astype(np.float64)
        keys = leaky(source[:, :width] + query + of_edge) * vector
        return keys.reshape(-1, heads, channels).sum(axis=2)
    keys = (source[:, :width] * query[:, :width]).reshape(-1, heads, channels).sum(axis=2)
    if num_attr:
        keys += (query[:, width:].reshape(-1, heads, num_attr) * attr[:, None, :]).sum(axis=2)
    return keys


def _loop_attr(attention: Attention, dst: NDArray[np.int64], attr: _Doubles, n: int) -> _Doubles:
    """Attributes of the added self-loops, [n, d_e]."""
    if attention.fill == "row":
        row = np.frombuffer(attention.fill_row, "<f4").astype(np.float64)
        return np.tile(row[: attr.shape[1]], (n, 1))
    total = np.zeros((n, attr.shape[1]))
    np.add.at(total, dst, attr)
    if attention.fill == "mean":
        total /= np.maximum(np.bincount(dst, minlength=n), 1)[:, None]
    return total
