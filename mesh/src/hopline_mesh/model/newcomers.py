"""First rows of new nodes: the mean of their neighbours' rows, weighted by traffic.

A new service with an empty history would look like no known service. Until it has a history it is expected
to behave like its neighbours.
"""

from __future__ import annotations

import numpy as np

from hopline.kernels.jit import njit
from hopline_mesh.model.graph import BoolArray, FloatArray, IntArray, MeshGraph


def from_neighbours(graph: MeshGraph, rows: FloatArray, known: BoolArray, shares: FloatArray) -> BoolArray:
    """Fill rows of new nodes with the mean of their known neighbours' rows.

    Args:
        graph: present graph; callers and callees both are neighbours.
        rows: float32 [n, d], of the previous step if known (embeddings, temporal rows); filled in place.
        known: bool [n], which nodes have a row.
        shares: float32 [e], weight of each edge; NaN and 0 count as very little, not as nothing.

    Returns: bool [n], which nodes have a row now; a node without known neighbours is unchanged.
    """
    filled = known.copy()
    mean_of_known(graph.sources, graph.targets, shares, known, rows, np.zeros(len(known)), filled)
    return filled


@njit(nogil=True, cache=True)
def mean_of_known(
    sources: IntArray, targets: IntArray, shares: FloatArray, known: BoolArray, rows: FloatArray,
    totals: FloatArray, filled: BoolArray,
) -> None:  # fmt: skip
    """`from_neighbours`; `totals` is zero."""
    width = rows.shape[1]
    for k in range(len(sources)):
        weight = np.float32(shares[k]) if shares[k] > 1e-6 else np.float32(1e-6)
        for turn in range(2):
            new, other = (sources[k], targets[k]) if turn else (targets[k], sources[k])
            if known[new] or not known[other]:
                continue
            for column in range(width):
                before = rows[new, column] if filled[new] else np.float32(0)
                rows[new, column] = before + weight * rows[other, column]
            filled[new] = True
            totals[new] += weight
    for i in range(len(known)):
        if filled[i] and not known[i]:
            for column in range(width):
                rows[i, column] /= np.float32(totals[i])
