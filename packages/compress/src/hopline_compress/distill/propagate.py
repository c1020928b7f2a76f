"""The inputs of a student: rows diffused over a graph by personalised PageRank, and wide features reduced.

    z[v] = restart · base[v] + (1 - restart) · sum of z[u] / sqrt(d[u] · d[v]) over v's in-neighbours u

(APPNP, arXiv 1810.05997); d is a node's number of in-neighbours, at least 1. A node without in-neighbours
keeps its base row unchanged.

Features are reduced to their strongest directions, found by randomised subspace iteration (Halko,
Martinsson and Tropp, arXiv 0909.4061). Features that are narrow already are only scaled: their columns get
one scale. Both are linear, so a layer over reduced features is a layer over the features.
"""

from __future__ import annotations

import numpy as np

from hopline.kernels.jit import njit
from hopline.types import FloatArray, IdArray

_ROUNDS, _MOST_ROWS, _SEED = 2, 50_000, 0


def directions(x: FloatArray, width: int) -> FloatArray:
    """The matrix that features are multiplied by.

    Args:
        x: float32 [N, D]. width: requested columns; 0 leaves the features unchanged.

    Returns: float32 [D, R], R at most width; reduced rows have a mean squared length of 1. The result for
        one x is always the same.
    """
    if not width:
        return np.eye(x.shape[1], dtype=np.float32)
    chance = np.random.default_rng(_SEED)
    if len(x) > _MOST_ROWS:
        x = x[np.sort(chance.choice(len(x), _MOST_ROWS, replace=False))]
    if x.shape[1] <= width:
        found = np.diag(1 / np.sqrt(np.maximum((x**2).mean(0), 1e-12))).astype(np.float32)
        # A column of zeros carries no information, now or later.
        found[:, ~x.any(0)] = 0
    else:
        basis = x @ chance.standard_normal((x.shape[1], width), np.float32)
        for _ in range(_ROUNDS):
            basis = np.linalg.qr(x.T @ np.linalg.qr(basis)[0])[0]
            basis = x @ basis
        found = np.linalg.svd(np.linalg.qr(basis)[0].T @ x, full_matrices=False)[2].T
    length = np.sqrt(((x @ found) ** 2).sum(1).mean())
    scaled: FloatArray = (found / max(float(length), 1e-12)).astype(np.float32)
    return scaled


def by_destination(edge_index: IdArray, num_nodes: int) -> tuple[IdArray, IdArray]:
    """In-neighbours of every node (CSC).

    Args:
        edge_index: int64 [2, E]: sources, destinations.

    Returns: indptr int64 [num_nodes + 1], indices int64 [E].
    """
    source, destination = edge_index
    indptr = np.zeros(num_nodes + 1, np.int64)
    np.cumsum(np.bincount(destination, minlength=num_nodes), out=indptr[1:])
    return indptr, np.ascontiguousarray(source[np.argsort(destination, kind="stable")], np.int64)


def diffuse(
    indptr: IdArray,
    indices: IdArray,
    base: FloatArray,
    *,
    restart: float,
    tolerance: float,
    rounds: int = 1000,
) -> FloatArray:
    """The fixed point of the diffusion.

    Args:
        indptr, indices: in-neighbours of every node.
        base: float32 [N, D].
        tolerance: stops once no value changes by more in a round. rounds: at most.

    Returns: float32 [N, D].
    """
    base = np.ascontiguousarray(base, np.float32)
    scale = (1 / np.sqrt(np.maximum(np.diff(indptr), 1))).astype(np.float32)
    old, new = base.copy(), np.empty_like(base)
    for _ in range(rounds):
        if _round(indptr, indices, scale, base, old, np.float32(restart), new) <= tolerance:
            return new
        old, new = new, old
    return old


@njit(cache=True, fastmath=False)
def _round(indptr, indices, scale, base, old, restart, new):  # type: ignore[no-untyped-def]
    most = np.float32(0)
    for v in range(len(base)):
        begin, end = indptr[v], indptr[v + 1]
        row = new[v]
        if begin == end:
            row[:] = base[v]
            continue
        row[:] = 0
        for edge in range(begin, end):
            source = indices[edge]
            weight = scale[source]
            for column in range(len(row)):
                row[column] += weight * old[source, column]
        share = (np.float32(1) - restart) * scale[v]
        for column in range(len(row)):
            row[column] = restart * base[v, column] + share * row[column]
            most = max(most, abs(row[column] - old[v, column]))
    return most
