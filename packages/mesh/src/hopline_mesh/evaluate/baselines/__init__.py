"""Simple detectors to compare the watch's detector with, each with suitable settings."""

from __future__ import annotations

from collections.abc import Callable

from hopline_mesh.evaluate.baselines.bounds import maximum, percentile, robust, sigma, static
from hopline_mesh.evaluate.baselines.whole import isolation_forest, pca
from hopline_mesh.evaluate.run import Detector

#: name -> creates the detector.
BASELINES: dict[str, Callable[..., Detector]] = {
    each.__name__: each for each in (static, percentile, sigma, maximum, robust, isolation_forest, pca)
}

__all__ = [
    "BASELINES", "isolation_forest", "maximum", "pca", "percentile", "robust", "sigma", "static",
]  # fmt: skip
