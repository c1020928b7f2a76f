"""Simple detectors to compare the watch's detector with, each with suitable settings."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from hopline.errors import ConfigError
from hopline_mesh.detector import Detector
from hopline_mesh.evaluate.baselines.alarm import MIN_DURATION_S
from hopline_mesh.evaluate.recording import Recording

#: name -> module:function that creates the detector for a recording (without access to its events), and
#: for how long a deviation must last.
BASELINES = {
    "static": "static:make",
    "percentile": "percentile:make",
    "sigma": "sigma:make",
    "maximum": "maximum:make",
    "robust": "robust:make",
    "isolation_forest": "isolation_forest:make",
    "pca": "pca:make",
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
    module, _, attribute = BASELINES[name].partition(":")
    make: Callable[[Recording, float], Detector] = getattr(
        importlib.import_module(f"{__name__}.{module}"), attribute
    )
    return make(recording, min_duration_s)
