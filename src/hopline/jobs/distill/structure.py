"""Structure features of a student: rows computed offline, each derived from its neighbours' rows.

A node's row is the fixed point of a diffusion (see `propagate`). So a later node, or one whose edges
changed, gets its row from its in-neighbours' stored rows, and other rows stay unchanged: `new_rows`.
"""

from __future__ import annotations

import numpy as np

from hopline.errors import BadRequest
from hopline.jobs.distill.propagate import FloatArray, IdArray, by_destination, diffuse
from hopline.jobs.distill.reduce import directions
from hopline.jobs.distill.settings import Settings


def base_rows(
    x: FloatArray,
    settings: Settings,
    *,
    labels: IdArray | None = None,
    num_classes: int = 0,
    reduced_by: FloatArray | None = None,
) -> FloatArray:
    """The rows that the diffusion begins with.

    Args:
        x: float32 [N, D] features.
        labels: int64 [N], -1 unknown; only labels that training may see. Needed for "labels".
        num_classes: columns of "labels" at least; larger labels add columns.
        reduced_by: float32 [D, R], the matrix that multiplies the features; None computes it from x. Rows
            of new nodes need that of the old ones: `directions(x, settings.width)`.

    Returns: float32 [N, S].
    """
    parts = []
    if "features" in settings.structure:
        parts.append(x @ (directions(x, settings.width) if reduced_by is None else reduced_by))
    if "labels" in settings.structure:
        if labels is None:
            raise BadRequest('structure "labels" needs known labels, and there are none')
        known = np.flatnonzero(labels >= 0)
        one_hot = np.zeros((len(x), max(num_classes, int(labels.max(initial=-1)) + 1)), np.float32)
        one_hot[known, labels[known]] = 1
        parts.append(one_hot)
    return np.concatenate(parts, axis=1) if parts else np.empty((len(x), 0), np.float32)


def structure_features(
    edge_index: IdArray, x: FloatArray, settings: Settings, *, labels: IdArray | None = None
) -> FloatArray:
    """Rows of all nodes, computed offline.

    Args:
        edge_index: int64 [2, E]: sources, destinations; a row comes from in-neighbours.
        x: float32 [N, D].
        labels: int64 [N], -1 if unknown or hidden.

    Returns: float32 [N, S]; S is 0 if `settings.structure` is empty.
    """
    base = base_rows(x, settings, labels=labels)
    if not base.shape[1]:
        return base
    indptr, indices = by_destination(np.asarray(edge_index, np.int64), len(x))
    return diffuse(indptr, indices, base, restart=settings.restart, tolerance=settings.tolerance)


def new_rows(
    base: FloatArray,
    indptr: IdArray,
    neighbor_rows: FloatArray,
    neighbor_degrees: IdArray,
    settings: Settings,
) -> FloatArray:
    """Rows of nodes that were added after the others were computed.

    Equal to a full computation if no node is downstream of the new nodes (they have in-edges only);
    else the answer of the graph before they were added.

    Args:
        base: float32 [n, S], `base_rows` of the new nodes (an unknown label is a row of zeros).
        indptr: int64 [n + 1]: the in-neighbours of node i are neighbor_rows[indptr[i]:indptr[i + 1]].
        neighbor_rows: float32 [m, S], stored rows.
        neighbor_degrees: int64 [m], the number of in-neighbours of each.

    Returns: float32 [n, S].
    """
    counts = np.diff(indptr)
    weights = 1 / np.sqrt(np.maximum(neighbor_degrees, 1) * np.repeat(counts, counts))
    sums = np.zeros(base.shape, np.float32)
    np.add.at(
        sums,
        np.repeat(np.arange(len(base)), counts),
        neighbor_rows * weights[:, None].astype(np.float32),
    )
    near = np.float32(settings.restart) * base + np.float32(1 - settings.restart) * sums
    return np.where(counts[:, None] > 0, near, base).astype(np.float32)
