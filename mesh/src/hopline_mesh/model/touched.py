"""Compiled: which rows a change reaches, layer by layer, and their recomputation.

A row of layer l depends on its own row and on its neighbours' rows, one layer down. So the rows that differ
after a layer are those that differed before it, the nodes that attend to them, and the nodes that attend
along a changed edge. All other rows are unchanged.
"""

from __future__ import annotations

import numpy as np
from numba import carray

from hopline.kernels.intrinsics import pointer
from hopline.kernels.jit import njit
from hopline_mesh.model import plan as at
from hopline_mesh.model.graph import IntArray
from hopline_mesh.model.passes import attend_rows, embed, first_products, next_products
from hopline_mesh.model.products import Plan


@njit(nogil=True, cache=True)
def refresh(
    plan: Plan, reverse: Plan, rows: IntArray, count: int, ends: IntArray, marks: IntArray, stamp: int
) -> int:
    """Update all embeddings after a change.

    Args:
        plan: of the whole graph, as the last pass left it, with changed inputs and lists.
        reverse: int64 [layers, 3]: addresses of the lists of nodes that attend to a node in a layer, and
            the attending end of an edge: 0 the caller, 1 the callee.
        rows: int32 [n], the nodes whose own inputs changed come first; left with those whose z changed.
        count: how many nodes' inputs changed.
        ends: int32 [2 * k], caller and callee of each edge that changed, came or went.
        marks: int32 [n], below `stamp`.
        stamp: more than all of `marks`.

    Returns: how many embeddings changed; they are the first of `rows`.
    """
    layers, n = plan[at.NUM_LAYERS], plan[at.NUM_NODES]
    rounded = plan[at.SCRATCH]
    for q in range(count):
        i = np.int64(rows[q])
        marks[i] = stamp
        first_products(plan, i, i + 1, rounded)
    for layer in range(layers):
        if layer:
            for q in range(count):
                i = np.int64(rows[q])
                next_products(plan, layer, i, i + 1, rounded)
        indptr = carray(pointer(reverse[3 * layer]), (n + 1,), np.int32)
        listeners = carray(pointer(reverse[3 * layer + 1]), (max(1, indptr[n]),), np.int32)
        found = count
        for q in range(count):
            for p in range(indptr[rows[q]], indptr[rows[q] + 1]):
                i = np.int64(listeners[p])
                if marks[i] != stamp:
                    marks[i] = stamp
                    rows[found] = i
                    found += 1
        for q in range(len(ends) // 2):
            i = np.int64(ends[2 * q + reverse[3 * layer + 2]])
            if marks[i] != stamp:
                marks[i] = stamp
                rows[found] = i
                found += 1
        count = found
        for q in range(count):
            i = np.int64(rows[q])
            attend_rows(plan, layer, i, i + 1, rounded)
    for q in range(count):
        i = np.int64(rows[q])
        embed(plan, i, i + 1, rounded)
    return count


@njit(nogil=True, cache=True)
def insert_entry(
    indptr: IntArray, others: IntArray, edges: IntArray, n: int, owner: int, other: int, edge: int
) -> None:
    """Append an entry to a node's list; there is room for it."""
    place = indptr[owner + 1]
    for p in range(indptr[n], place, -1):
        others[p] = others[p - 1]
        edges[p] = edges[p - 1]
    others[place] = other
    edges[place] = edge
    for i in range(owner + 1, n + 1):
        indptr[i] += 1


@njit(nogil=True, cache=True)
def delete_entry(
    indptr: IntArray, others: IntArray, edges: IntArray, n: int, owner: int, edge: int
) -> None:
    """Take an edge's entry out of its owner's list."""
    place = indptr[owner]
    while edges[place] != edge:
        place += 1
    for p in range(place, indptr[n] - 1):
        others[p] = others[p + 1]
        edges[p] = edges[p + 1]
    for i in range(owner + 1, n + 1):
        indptr[i] -= 1


@njit(nogil=True, cache=True)
def rename_edge(indptr: IntArray, edges: IntArray, owner: int, edge: int, name: int) -> None:
    """Give an entry's edge another number."""
    for p in range(indptr[owner], indptr[owner + 1]):
        if edges[p] == edge:
            edges[p] = name
