"""Simple detectors to compare the watch's detector with, each with suitable settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hopline.errors import ConfigError
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.baselines.bounds import maximum, percentile, robust, sigma, static
from hopline_mesh.evaluate.baselines.whole import isolation_forest, pca
from hopline_mesh.evaluate.recording import Recording
from hopline_mesh.evaluate.run import Detector

#: name -> creates the detector.
BASELINES: dict[str, Callable[..., Detector]] = {
    each.__name__: each for each in (static, percentile, sigma, maximum, robust, isolation_forest, pca)
}

__all__ = [
    "BASELINES", "baseline", "isolation_forest", "maximum", "pca", "percentile", "robust", "sigma",
    "static",
]  # fmt: skip


def baseline(name: str, recording: Recording, min_duration_s: float = MIN_DURATION_S) -> Detector:
    """Create a detector by name for a recording, without access to its events.

    Args:
        min_duration_s: how long a deviation must last.

    Raises:
        ConfigError: no such baseline.
    """
    if name not in BASELINES:
        raise ConfigError(f"no simple detector {name!r}; choose from {', '.join(BASELINES)}")
    options: dict[str, Any] = {"cpu_limits": recording.cpu_limits} if name == "static" else {}
    return BASELINES[name](min_duration_s=min_duration_s, **options)
