"""New services: until they have a history they are expected to behave like their neighbours.

A service whose window is still empty has no temporal row. It gets the mean of its callers' and callees'
rows, weighted by traffic, so its first expected values are those of its neighbours. The weight of the model
is also theirs, until the next training.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline.kernels.jit import njit
from hopline_mesh.model.graph import BoolArray, FloatArray, IntArray, MeshGraph, outgoing_shares
from hopline_mesh.model.newcomers import from_neighbours
from hopline_mesh.tagae import kernels
from hopline_mesh.tagae.series import SeriesTable


def fill(graph: MeshGraph, h: FloatArray, slots: IntArray, nodes: SeriesTable, amounts: FloatArray) -> None:
    """Fill the temporal rows of services without a window, and the weight of the model for new ones.

    Args:
        graph: present graph, by position.
        h: float32 [n, F], temporal rows; filled in place.
        slots: int32 [n], of the services.
        nodes: their series; sets `gain` of services that are seen for the first time.
        amounts: float32 [e], traffic of each call path; NaN = not measured.
    """
    known = np.empty(len(slots), np.bool_)
    first = np.empty(len(slots), np.bool_)
    young = look(nodes.count, nodes.seen, nodes.fitted, slots, kernels.MIN_WINDOW, known, first)
    if young == 0 or young == len(slots):
        return
    shares = outgoing_shares(graph.sources, np.ascontiguousarray(amounts), graph.num_nodes)
    from_neighbours(graph, h, known, shares)
    if first.any():
        gain = nodes.gain[slots]
        from_neighbours(graph, gain, ~first, shares)
        nodes.gain[slots[first]] = gain[first]


@njit(nogil=True, cache=True)
def look(
    count: NDArray[np.int32], seen: NDArray[np.int32], fitted: NDArray[np.int8], slots: IntArray,
    least: int, known: BoolArray, first: BoolArray,
) -> int:  # fmt: skip
    """Mark services with a window, and new services; returns the number without a window."""
    without = 0
    for r in range(len(slots)):
        i = slots[r]
        has, new = False, True
        for f in range(count.shape[1]):
            has |= count[i, f] >= least
            new &= seen[i, f] <= 1 and fitted[i, f] == 0
            if has:
                new = False
                break
        known[r] = has
        first[r] = new
        without += not has
    return without
