"""The reconstruction error of the principal components of normal time (scikit-learn's PCA)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.baselines.rows import Values
from hopline_mesh.evaluate.baselines.whole import Whole
from hopline_mesh.evaluate.recording import Recording


class Pca(Whole):
    """The reconstruction error of principal components.

    Args:
        variance: share of the normal variance that the components explain.
        percent, min_duration_s: see `Whole`.
    """

    def __init__(
        self, *, variance: float = 0.9, percent: float = 99.0, min_duration_s: float = MIN_DURATION_S
    ) -> None:
        super().__init__("pca", percent=percent, min_duration_s=min_duration_s)
        self._variance = variance
        self._pca: Any = None

    def learn(self, vectors: Values) -> None:
        """See `Whole.learn`."""
        from sklearn.decomposition import PCA

        self._pca = PCA(n_components=self._variance, svd_solver="full").fit(vectors)

    def scores(self, vectors: Values) -> Values:
        """See `Whole.scores`: the mean squared error."""
        found: Values = np.mean(self._residual(vectors) ** 2, axis=1)
        return found

    def errors(self, vector: Values) -> Values:
        """See `Whole.errors`: the squared error of each."""
        found: Values = self._residual(vector[None])[0] ** 2
        return found

    def _residual(self, vectors: Values) -> Values:
        rebuilt: Values = self._pca.inverse_transform(self._pca.transform(vectors))
        return vectors - rebuilt


def make(recording: Recording, min_duration_s: float) -> Pca:
    """Create the detector with its documented settings."""
    return Pca(min_duration_s=min_duration_s)
