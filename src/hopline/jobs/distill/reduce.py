"""Reduces wide features to few columns: their strongest directions, found by randomised subspace iteration.

(Halko, Martinsson and Tropp, arXiv 0909.4061.) Features that are narrow already are only scaled: their
columns get one scale. Both are linear, so a layer over reduced features is a layer over the features.
"""

from __future__ import annotations

import numpy as np

from hopline.types import FloatArray

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
