"""Compiled code of `structure.py`: hashes of the inputs of structure rows, and new rows."""

from __future__ import annotations

import numpy as np

from hopline.graph.edge_data import id_at
from hopline.graph.extent import extent
from hopline.kernels.jit import njit
from hopline.sampling.keyed import mix

_PRIME = np.uint64(0x100000001B3)
_BEGIN = np.uint64(0xCBF29CE484222325)


@njit(nogil=True, cache=True)
def add_features(bits, sums):  # type: ignore[no-untyped-def]
    """sums[i] += a hash of row i: uint32 [n, d], the bits of float32 numbers; uint64 [n]. FNV-1a, mixed."""
    for i in range(bits.shape[0]):
        found = _BEGIN
        for j in range(bits.shape[1]):
            found = (found ^ np.uint64(bits[i, j])) * _PRIME
        sums[i] += mix(found)


@njit(forceinline=True)
def _stored_row(at, node):  # type: ignore[no-untyped-def]
    """The stored row of a node; -1 for none, as for nodes that were added after `at` was created."""
    return at[node] if node < at.shape[0] else np.int64(-1)


@njit(nogil=True, cache=True)
def add_neighbors(indptr, records, version, indices, at, ids, sums, counts):  # type: ignore[no-untyped-def]
    """Count the in-neighbours that have stored rows, and add a hash of them that ignores their order.

    Args:
        indptr, records, version: see `extent`. indices: of the edge type, plain or packed.
        at: int64 [N], each node's stored row; -1 for none, as for nodes beyond N.
        ids: int64 [n]. sums: uint64 [n]; counts: int64 [n]: added to.
    """
    for i in range(ids.shape[0]):
        start, end = extent(indptr, records, version, ids[i])
        for e in range(start, end):
            row = _stored_row(at, id_at(indices, e))
            if row >= 0:
                sums[i] += mix(np.uint64(row + 1))
                counts[i] += 1


@njit(nogil=True, cache=True)
def add_rows(indptr, records, version, indices, at, ids, rows, degrees, counts, out):  # type: ignore[no-untyped-def]
    """out[i] += stored rows of the in-neighbours of ids[i], each over the root of both degrees.

    Args:
        rows: float32 [R, S]. degrees: int64 [R], of the stored rows' nodes. counts: int64 [n], of ids.
        out: float32 [n, S].
    """
    for i in range(ids.shape[0]):
        start, end = extent(indptr, records, version, ids[i])
        for e in range(start, end):
            row = _stored_row(at, id_at(indices, e))
            if row >= 0:
                weight = np.float32(1.0 / np.sqrt(np.float64(max(degrees[row], 1) * counts[i])))
                for column in range(out.shape[1]):
                    out[i, column] += weight * rows[row, column]


@njit(nogil=True, cache=True)
def finish_rows(features, base, restart, counts, out):  # type: ignore[no-untyped-def]
    """out becomes restart × own + (1 - restart) × out, or own where there are no neighbours.

    Row by row in a fixed order, so that a row does not depend on other rows.

    Args:
        features: float32 [n, d]. base: float32 [d, S]. out: float32 [n, S] from `add_rows`.
    """
    own = np.empty(base.shape[1], np.float32)
    for i in range(features.shape[0]):
        own[:] = 0
        for j in range(features.shape[1]):
            value = features[i, j]
            if value != 0:
                for column in range(own.shape[0]):
                    own[column] += value * base[j, column]
        if counts[i] == 0:
            out[i] = own
        else:
            for column in range(own.shape[0]):
                out[i, column] = restart * own[column] + (np.float32(1) - restart) * out[i, column]
