"""Detectors with one anomaly score for the whole mesh, and a threshold at a percentile of normal scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S, Alarm, intervals_of
from hopline_mesh.evaluate.baselines.rows import Values, interval_of
from hopline_mesh.evaluate.baselines.vector import MeshVector
from hopline_mesh.incident import Verdict
from hopline_mesh.snapshot import Snapshot


class Whole(ABC):
    """A detector with one anomaly score for the whole mesh.

    Args:
        name: of the detector.
        percent: percentile of normal scores for the threshold.
        min_duration_s: how long the score must exceed it.
    """

    def __init__(self, name: str, *, percent: float = 99.0, min_duration_s: float = MIN_DURATION_S) -> None:
        self._percent = percent
        self._min_duration_s = min_duration_s
        self._alarm = Alarm(name)
        self._vector: MeshVector | None = None
        self._threshold = 1.0
        self._interval_s = 0.0
        self._streak = 0

    @abstractmethod
    def learn(self, vectors: Values) -> None:
        """Learn from normal vectors, float64 [snapshots, series]."""

    @abstractmethod
    def scores(self, vectors: Values) -> Values:
        """Return how unusual vectors are, at least 0: float64 [n, series] in, [n] out."""

    @abstractmethod
    def errors(self, vector: Values) -> Values:
        """Return the contribution of each series, float64 [series], at least 0."""

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """See `Detector.fit`."""
        self._vector = MeshVector(snapshots)
        self._interval_s = interval_of(snapshots)
        self.learn(self._vector.training)
        self._threshold = max(
            float(np.percentile(self.scores(self._vector.training), self._percent)), 1e-12
        )
        self._streak = 0

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """See `Detector.step`."""
        assert self._vector is not None, "fit comes before step"
        vector = self._vector.of(snapshot)
        score = float(self.scores(vector[None])[0]) / self._threshold
        self._streak = self._streak + 1 if score > 1 else 0
        needed = intervals_of(self._min_duration_s, self._interval_s)
        evidence = []
        if self._streak >= needed:
            errors = self.errors(vector)
            evidence = self._vector.evidence(snapshot, errors, float(errors.max(initial=1e-12)) / score)
        return self._alarm.verdict(snapshot, score, evidence)


class IsolationForest(Whole):
    """An isolation forest over all series of the mesh (Liu, Ting and Zhou 2008), scikit-learn's.

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


class Pca(Whole):
    """The reconstruction error of the principal components of normal time, scikit-learn's.

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
