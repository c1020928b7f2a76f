"""The meta-model: one score of a mesh from the scores of its parts.

Parts vary differently. For each part, normal time gives the tail probability of a score: counted up to the
90th percentile, and above that from an exponential tail fitted to the excesses, as in peaks over threshold.
Two cases are out of bounds: one part that is much too high, and many parts that are a little too high
together. Both are compared with normal time, so that 1.0 is the threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.errors import MeshError, StateDamaged

Scores = NDArray[np.float64]

#: Share of normal time that is counted; the rest is the tail.
_COUNTED = 0.9
_GRID = np.linspace(0.0, _COUNTED, 46)


class MetaModel:
    """Learned on normal time; not changed once made.

    Attributes:
        quantiles: float64 [parts, 46], of each part's scores in normal time, 0 to 90 %.
        excess: float64 [parts], mean excess over the 90 % quantile.
        limits: float64 [2], how surprising the most surprising part, and all together, may be.
    """

    def __init__(self, quantiles: Scores, excess: Scores, limits: Scores) -> None:
        self.quantiles, self.excess, self.limits = quantiles, excess, limits

    @classmethod
    def fit(cls, scores: Scores, percentile: float = 99.0) -> MetaModel:
        """Learn from the parts' scores in normal time.

        Args:
            scores: float64 [intervals, parts], finite.
            percentile: share of normal time that must be within bounds.

        Raises:
            MeshError: fewer than 20 intervals, no part, or scores that are not finite.
        """
        if scores.ndim != 2 or scores.shape[0] < 20 or scores.shape[1] == 0:
            raise MeshError(f"a meta-model needs at least 20 intervals of some parts, not {scores.shape}")
        if not np.isfinite(scores).all():
            raise MeshError("a meta-model needs finite scores of its parts")
        quantiles = np.quantile(scores, _GRID, axis=0).T.copy()
        over = np.maximum(scores - quantiles[:, -1], 0.0)
        excess = over.sum(axis=0) / np.maximum(1, (over > 0).sum(axis=0))
        excess = np.maximum(excess, 1e-6 + 1e-3 * np.abs(quantiles[:, -1]))
        model = cls(quantiles, excess, np.ones(2))
        both = np.array([model._surprises(row) for row in scores])
        # Above the percentile a little room: normal time is a sample.
        limits = np.maximum(np.quantile(both, percentile / 100, axis=0), 1e-6)
        return cls(quantiles, excess, limits)

    @property
    def num_parts(self) -> int:
        """Parts that it knows."""
        return len(self.excess)

    def surprise(self, scores: Scores) -> Scores:
        """-log of the tail probability of each part's score, float64 [parts]."""
        found = np.empty(self.num_parts)
        for k, score in enumerate(scores):
            top = self.quantiles[k, -1]
            if score > top:
                found[k] = -np.log1p(-_COUNTED) + (score - top) / self.excess[k]
            else:
                found[k] = -np.log1p(-np.interp(score, self.quantiles[k], _GRID))
        return found

    def score(self, scores: Scores) -> float:
        """The mesh's score; 1.0 is the threshold.

        Args:
            scores: float64 [parts], in the order of `fit`.

        Raises:
            MeshError: another number of parts: it must be learned again.
        """
        if len(scores) != self.num_parts:
            raise MeshError(f"the meta-model knows {self.num_parts} parts, not {len(scores)}")
        return float((self._surprises(scores) / self.limits).max())

    def _surprises(self, scores: Scores) -> Scores:
        surprise = self.surprise(scores)
        return np.array([surprise.max(), surprise.sum()])

    def export(self) -> tuple[dict[str, Any], dict[str, Scores]]:
        """Return the state: a JSON object, and arrays."""
        return {"parts": self.num_parts}, {
            "quantiles": self.quantiles,
            "excess": self.excess,
            "limits": self.limits,
        }

    @classmethod
    def restore(cls, meta: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> MetaModel:
        """The model of `export`.

        Raises:
            StateDamaged: arrays that do not fit.
        """
        parts = meta.get("parts")
        wanted = {"quantiles": (parts, len(_GRID)), "excess": (parts,), "limits": (2,)}
        for name, size in wanted.items():
            if name not in arrays or arrays[name].shape != size:
                raise StateDamaged(f"the meta-model's {name} is missing or not {size}")
        return cls(*(arrays[name].astype(np.float64) for name in wanted))
