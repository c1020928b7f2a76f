"""An isolation forest over all series of the mesh (Liu, Ting and Zhou 2008), scikit-learn's."""

from __future__ import annotations

from typing import Any

import numpy as np

from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.baselines.rows import Values
from hopline_mesh.evaluate.baselines.whole import Whole
from hopline_mesh.evaluate.recording import Recording


class IsolationForest(Whole):
    """An isolation forest over the series of the mesh.

    Args:
        trees: number of trees.
        seed: of the trees.
        percent, min_duration_s: see `Whole`.
    """

    def __init__(
        self,
        *,
        trees: int = 100,
        seed: int = 0,
        percent: float = 99.0,
        min_duration_s: float = MIN_DURATION_S,
    ) -> None:
        super().__init__("isolation_forest", percent=percent, min_duration_s=min_duration_s)
        self._trees = trees
        self._seed = seed
        self._forest: Any = None

    def learn(self, vectors: Values) -> None:
        """See `Whole.learn`."""
        from sklearn.ensemble import IsolationForest as Forest

        self._forest = Forest(n_estimators=self._trees, random_state=self._seed).fit(vectors)

    def scores(self, vectors: Values) -> Values:
        """See `Whole.scores`."""
        return -np.asarray(self._forest.score_samples(vectors), dtype=np.float64)

    def errors(self, vector: Values) -> Values:
        """See `Whole.errors`: a forest does not name series; the farthest from its median is first."""
        return np.abs(vector)


def make(recording: Recording, min_duration_s: float) -> IsolationForest:
    """Create the detector with its documented settings."""
    return IsolationForest(min_duration_s=min_duration_s)
