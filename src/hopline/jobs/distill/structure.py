"""What a student sees of the graph: rows computed offline, each following from its neighbours' rows.

A node's row is the fixed point of a diffusion (see `propagate`), so a node that comes later, or whose edges
changed, gets its row from its in-neighbours' kept rows without touching the rest: `new_rows`.
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
    """What a node brings into the diffusion itself.

    Args:
        x: float32 [N, D] features.
        labels: int64 [N], -1 unknown; only labels that training may see. Needed for "labels".
        num_classes: columns of "labels" at least; a label beyond them adds more.
        reduced_by: float32 [D, R], what the features are multiplied by; None finds it from x. Rows of new
            nodes want that of the old ones: `directions(x, settings.width)`.

    Returns: float32 [N, S].
    """
    parts = []
    if "features" in settings.structure:
        parts.append(x @ (directions(x, settings.width) if reduced_by is None else reduced_by))
    if "labels" in settings.structure:
        if labels is None:
            raise BadRequest('structure "labels" wants the known labels, and there are none')
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
        labels: int64 [N], -1 where unknown or not to be seen.

    Returns: float32 [N, S]; S is 0 where `settings.structure` is empty.
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
    """Rows of nodes that were not there when the others were computed.

    Equal to a full computation where nothing lies downstream of the new nodes (they have in-edges only);
    else the answer of the graph as it was before them.

    Args:
        base: float32 [n, S], `base_rows` of the new nodes (a label that is unknown is a row of zeros).
        indptr: int64 [n + 1]: the in-neighbours of node i are neighbor_rows[indptr[i]:indptr[i + 1]].
        neighbor_rows: float32 [m, S], kept rows.
        neighbor_degrees: int64 [m], in-neighbours that each of them has.

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
