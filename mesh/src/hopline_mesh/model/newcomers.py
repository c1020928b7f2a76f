"""First rows of nodes that were not there before: what their neighbours had, weighted by traffic.

A new service with an empty past would look like nothing that was ever seen. Until it has a past of its own
it is taken to be like those that it talks to.
"""

from __future__ import annotations

import numpy as np

from hopline.kernels.jit import njit
from hopline_mesh.model.graph import BoolArray, FloatArray, IntArray, MeshGraph


def from_neighbours(graph: MeshGraph, rows: FloatArray, known: BoolArray, shares: FloatArray) -> BoolArray:
    """Fill rows of new nodes with the mean of their known neighbours' rows.

    Args:
        graph: of now; callers and callees both are neighbours.
        rows: float32 [n, d], of the step before where known (embeddings, temporal rows); filled in place.
        known: bool [n], which nodes have a row.
        shares: float32 [e], weight of each edge; NaN and 0 count as very little, not as nothing.

    Returns: bool [n], which nodes have a row now; one that knows nobody known is left as it was.
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
