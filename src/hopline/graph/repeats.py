"""Edges that a graph has more than once."""

from __future__ import annotations

import numpy as np

from hopline.graph.parts import Adjacency

#: Edges that are examined in one step.
_CHUNK = 1 << 22


def repeated_edge(adjacency: Adjacency) -> tuple[int, int] | None:
    """The rows (source, destination) of a repeated edge; None if there is none."""
    indptr = np.asarray(adjacency.indptr[:])
    first = 0
    while first < len(indptr) - 1:
        last = max(first + 1, int(np.searchsorted(indptr, indptr[first] + _CHUNK, side="right")) - 1)
        sources = np.asarray(adjacency.indices[int(indptr[first]) : int(indptr[last])], np.int64)
        targets = np.repeat(np.arange(first, last), np.diff(indptr[first : last + 1]))
        order = np.lexsort((sources, targets))
        same = (np.diff(sources[order]) == 0) & (np.diff(targets[order]) == 0)
        if same.any():
            at = order[int(same.argmax())]
            return int(sources[at]), int(targets[at])
        first = last
    return None
