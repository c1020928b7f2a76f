"""Detectors with one anomaly score for the whole mesh, and a threshold at a percentile of normal scores.

They see the mesh as one vector of numbers around 0. Amounts become logarithms. Each series is its distance
from its normal median, in units of its normal spread. Series that are not measured, or did not exist in the
training, are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S, Alarm, intervals_of
from hopline_mesh.evaluate.baselines.bounds import watched
from hopline_mesh.evaluate.baselines.rows import Rows, Values, interval_of
from hopline_mesh.incident import Evidence, Verdict
from hopline_mesh.schema import kind_of
from hopline_mesh.snapshot import Snapshot

#: The smallest spread, so that a nearly constant series does not dominate: 5 % of an amount, 0.01 of a
#: share.
_LEAST = {"amount": 0.05, "share": 0.01, "real": 0.01}
#: Maximum distance from the median.
_FARTHEST = 20.0
#: Maximum evidence of an interval.
_EVIDENCE = 20

#: Takes vectors, float64 [n, series]; returns how unusual they are, float64 [n], at least 0.
Score = Callable[[Values], Values]
#: Learns from normal vectors; returns the scores of others, and the contribution of each series to them.
Learn = Callable[[Values], tuple[Score, Score]]


class MeshVector:
    """Converts snapshots to vectors.

    Args:
        snapshots: normal ones; at least one.

    Attributes:
        training: float64 [snapshots, series], the vectors of these.
    """

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        schema = snapshots[0].schema
        self._rows = Rows()
        stacked = self._rows.stack(snapshots)
        self._shapes = [values.shape[1:] for values in stacked]
        columns = [
            column
            for names, (rows, _) in zip(
                (schema.node_features, schema.edge_features), self._shapes, strict=True
            )
            for column in names * rows
        ]
        self._amount = np.array([kind_of(column) == "amount" for column in columns], dtype=bool)
        raw = np.concatenate([values.reshape(len(values), -1) for values in stacked], axis=1)
        values = self._taken(raw)
        seen = ~np.isnan(values).all(axis=0)
        values[:, ~seen] = 0.0
        self._median = np.nanmedian(values, axis=0)
        low, high = np.nanpercentile(values, [15.87, 84.13], axis=0)
        least = np.array([_LEAST[kind_of(column)] for column in columns])
        self._spread = np.maximum((high - low) / 2, least)
        self._used = seen & np.array([watched(column) for column in columns], dtype=bool)
        self.training = self._scaled(values)

    def of(self, snapshot: Snapshot) -> Values:
        """Return the vector of a snapshot, float64 [1, series]."""
        return self._scaled(self._taken(self._raw(snapshot)[None]))

    def evidence(self, snapshot: Snapshot, errors: Values, threshold: float) -> list[Evidence]:
        """Return evidence for the series with the largest errors.

        Args:
            errors: float64 [series], at least 0.
            threshold: the error at which an anomaly score is 1.0.
        """
        raw, sides = self._raw(snapshot), self._rows.sides(snapshot)
        num_nodes = self._shapes[0][0] * self._shapes[0][1]
        found = []
        for series in np.argsort(-errors)[:_EVIDENCE].tolist():
            if errors[series] <= 0 or np.isnan(raw[series]):
                continue
            number = int(series >= num_nodes)
            row, column = divmod(series - number * num_nodes, self._shapes[number][1])
            at = int(np.flatnonzero(sides[number].rows == row)[0])
            usual = float(np.expm1(self._median[series]) if self._amount[series] else self._median[series])
            score = float(errors[series] / threshold)
            found.append(sides[number].evidence(at, column, snapshot.roster, usual, score))
        return found

    def _raw(self, snapshot: Snapshot) -> Values:
        parts = []
        for side, shape in zip(self._rows.sides(snapshot), self._shapes, strict=True):
            values = np.full(shape, np.nan)
            known = side.rows < len(values)
            values[side.rows[known]] = side.values[known]
            parts.append(values.ravel())
        return np.concatenate(parts)

    def _taken(self, raw: Values) -> Values:
        taken: Values = np.where(self._amount, np.log1p(np.maximum(raw, 0.0)), raw)
        return taken

    def _scaled(self, taken: Values) -> Values:
        scaled: Values = (taken - self._median) / self._spread
        scaled[..., ~self._used] = 0.0
        found: Values = np.clip(np.nan_to_num(scaled, nan=0.0), -_FARTHEST, _FARTHEST)
        return found


class Whole:
    """A detector with one anomaly score for the whole mesh.

    Args:
        name: of the detector.
        learn: learns from normal vectors.
        percent: percentile of normal scores for the threshold.
        min_duration_s: how long the score must exceed it.
    """

    def __init__(
        self, name: str, learn: Learn, *, percent: float = 99.0, min_duration_s: float = MIN_DURATION_S
    ) -> None:
        self._learn = learn
        self._percent = percent
        self._min_duration_s = min_duration_s
        self._alarm = Alarm(name)

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """See `Detector.fit`."""
        self._vector = MeshVector(snapshots)
        self._needed = intervals_of(self._min_duration_s, interval_of(snapshots))
        self._scores, self._errors = self._learn(self._vector.training)
        usual = self._scores(self._vector.training)
        self._threshold = max(float(np.percentile(usual, self._percent)), 1e-12)
        self._streak = 0

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """See `Detector.step`."""
        vector = self._vector.of(snapshot)
        score = float(self._scores(vector)[0]) / self._threshold
        self._streak = self._streak + 1 if score > 1 else 0
        evidence = []
        if self._streak >= self._needed:
            errors = self._errors(vector)[0]
            evidence = self._vector.evidence(snapshot, errors, float(errors.max(initial=1e-12)) / score)
        return self._alarm.verdict(snapshot, score, evidence)


def isolation_forest(trees: int = 100, seed: int = 0, **options: Any) -> Whole:
    """Return an isolation forest over all series of the mesh (Liu, Ting and Zhou 2008), scikit-learn's.

    A forest does not name series; the farthest from its median is first. For options see `Whole`.
    """

    def learn(vectors: Values) -> tuple[Score, Score]:
        from sklearn.ensemble import IsolationForest

        forest = IsolationForest(n_estimators=trees, random_state=seed).fit(vectors)
        return lambda some: -np.asarray(forest.score_samples(some), dtype=np.float64), np.abs

    return Whole("isolation_forest", learn, **options)


def pca(variance: float = 0.9, **options: Any) -> Whole:
    """Return a detector of the reconstruction error of normal time's principal components, scikit-learn's.

    Args:
        variance: share of the normal variance that the components explain.
        options: see `Whole`.
    """

    def learn(vectors: Values) -> tuple[Score, Score]:
        from sklearn.decomposition import PCA

        model = PCA(n_components=variance, svd_solver="full").fit(vectors)

        def errors(some: Values) -> Values:
            squared: Values = (some - model.inverse_transform(model.transform(some))) ** 2
            return squared

        return lambda some: np.mean(errors(some), axis=1), errors

    return Whole("pca", learn, **options)
