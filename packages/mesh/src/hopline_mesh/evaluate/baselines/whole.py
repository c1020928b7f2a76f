"""Detectors with one anomaly score for the whole mesh, and a threshold at a percentile of normal scores.

They see the mesh as one vector of numbers around 0. Amounts become logarithms, latencies those of
milliseconds. Each series is its distance
from its normal median, in units of its normal spread. Series that are not measured, or did not exist in the
training, are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S, Alarm
from hopline_mesh.evaluate.baselines.bounds import check_used, unit_ms, watched
from hopline_mesh.evaluate.baselines.vector import MeshVector, Values
from hopline_mesh.incident import Verdict
from hopline_mesh.roles import role_of
from hopline_mesh.schema import kind_of
from hopline_mesh.snapshot import Snapshot

#: The smallest spread, so that a nearly constant series does not dominate: 5 % of an amount, 0.01 of a
#: share.
_LEAST = {"amount": 0.05, "share": 0.01, "real": 0.01}
#: Maximum distance from the median.
_FARTHEST = 20.0
#: Percentile of normal scores that is the threshold.
_PERCENT = 99.0
#: Maximum evidence of an interval.
_EVIDENCE = 20

#: Takes vectors, float64 [n, series]; returns how unusual they are, float64 [n], at least 0.
Score = Callable[[Values], Values]
#: Learns from normal vectors; returns the scores of others, and the contribution of each series to them.
Learn = Callable[[Values], tuple[Score, Score]]


class Whole:
    """A detector with one anomaly score for the whole mesh.

    Args:
        name: of the detector.
        learn: learns from normal vectors.
        min_duration_s: how long the score must exceed it.
    """

    def __init__(self, name: str, learn: Learn, *, min_duration_s: float = MIN_DURATION_S) -> None:
        self._name, self._learn = name, learn
        self._alarm = Alarm(name, min_duration_s)

    def fit(self, snapshots: Sequence[Snapshot], contexts: Sequence[Context]) -> None:
        """See `Detector.fit`."""
        self._alarm.restart(snapshots)
        seen = max(int(snapshot.nodes.max(initial=-1)) for snapshot in snapshots)
        self._mesh = MeshVector(snapshots, 1 + seen)
        columns = self._mesh.columns
        self._is_amount = np.array([kind_of(column) == "amount" for column in columns], dtype=bool)
        self._units = np.array([_unit(column) for column in columns])
        values = self._logarithms(self._mesh.of(snapshots))
        measured = ~np.isnan(values).all(axis=0)
        values[:, ~measured] = 0.0
        self._median = np.nanmedian(values, axis=0)
        low, high = np.nanpercentile(values, [15.87, 84.13], axis=0)
        least = np.array([_LEAST[kind_of(column)] for column in columns])
        self._spread = np.maximum((high - low) / 2, least)
        self._used = measured & np.array([watched(column) for column in columns], dtype=bool)
        check_used(self._name, columns, self._used)
        vectors = self._distances(values)
        self._scores, self._errors = self._learn(vectors)
        self._threshold = max(float(np.percentile(self._scores(vectors), _PERCENT)), 1e-12)

    def step(self, snapshot: Snapshot, context: Context) -> Verdict:
        """See `Detector.step`."""
        values = self._mesh.of([snapshot])
        vectors = self._distances(self._logarithms(values))
        scores = self._scores(vectors) / self._threshold
        score = float(scores[0])
        evidence = []
        if self._alarm.lasting(scores, snapshot.time_s)[0]:
            errors, seen = self._errors(vectors)[0], values[0]
            largest = np.argsort(-errors)[:_EVIDENCE].tolist()
            evidence = self._mesh.evidence(
                [series for series in largest if errors[series] > 0 and not np.isnan(seen[series])],
                snapshot.roster,
                expected=np.where(self._is_amount, np.expm1(self._median) / self._units, self._median),
                seen=seen,
                scores=errors / (errors.max(initial=1e-12) / score),  # the largest has that of the mesh
            )
        return self._alarm.verdict(snapshot, score, evidence)

    def _logarithms(self, values: Values) -> Values:
        found: Values = np.where(self._is_amount, np.log1p(np.maximum(values, 0.0) * self._units), values)
        return found

    def _distances(self, values: Values) -> Values:
        """Return distances from the median in spreads, float64 [n, series]; 0 if unused or missing."""
        spreads: Values = np.where(self._used, (values - self._median) / self._spread, 0.0)
        found: Values = np.clip(np.nan_to_num(spreads, nan=0.0), -_FARTHEST, _FARTHEST)
        return found


def _unit(column: str) -> float:
    """Return the milliseconds of one unit of a latency; 1 for all other columns."""
    return (role_of(column) in ("latency", "outgoing") and unit_ms(column)) or 1.0


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
