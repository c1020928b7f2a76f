"""Simple detectors to compare the watch's detector with, each with suitable settings."""

from __future__ import annotations

from collections.abc import Callable

from hopline.errors import ConfigError
from hopline_mesh.detector import Detector
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.baselines.rules import maximum, percentile, robust, sigma
from hopline_mesh.evaluate.baselines.static import Static
from hopline_mesh.evaluate.baselines.whole import IsolationForest, Pca
from hopline_mesh.evaluate.recording import Recording

__all__ = [
    "BASELINES",
    "IsolationForest",
    "Pca",
    "Static",
    "baseline",
    "maximum",
    "percentile",
    "robust",
    "sigma",
]

#: name -> creates the detector for a recording (without access to its events), and for how long a deviation
#: must last.
BASELINES: dict[str, Callable[[Recording, float], Detector]] = {
    "static": lambda recording, least_s: Static(cpu_limits=recording.cpu_limits, min_duration_s=least_s),
    "percentile": lambda recording, least_s: percentile(min_duration_s=least_s),
    "sigma": lambda recording, least_s: sigma(min_duration_s=least_s),
    "maximum": lambda recording, least_s: maximum(min_duration_s=least_s),
    "robust": lambda recording, least_s: robust(min_duration_s=least_s),
    "isolation_forest": lambda recording, least_s: IsolationForest(min_duration_s=least_s),
    "pca": lambda recording, least_s: Pca(min_duration_s=least_s),
}


def baseline(name: str, recording: Recording, min_duration_s: float = MIN_DURATION_S) -> Detector:
    """Create a detector by name.

    Args:
        min_duration_s: how long a deviation must last.

    Raises:
        ConfigError: no such baseline.
    """
    if name not in BASELINES:
        raise ConfigError(f"no simple detector {name!r}; choose from {', '.join(BASELINES)}")
    return BASELINES[name](recording, min_duration_s)
