"""Simple detectors to compare TAGAE with, each with suitable settings."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from hopline.errors import ConfigError
from hopline_mesh.detector import Detector
from hopline_mesh.evaluate.recording import Recording

#: name -> module:function that creates the detector for a recording (without access to its events).
BASELINES = {
    "static": "static:make",
    "percentile": "percentile:make",
    "sigma": "sigma:make",
    "maximum": "maximum:make",
    "isolation_forest": "isolation_forest:make",
    "pca": "pca:make",
    "untrained": "untrained:make",
}


def baseline(name: str, recording: Recording) -> Detector:
    """Create a detector by name.

    Raises:
        ConfigError: no such baseline.
    """
    if name not in BASELINES:
        raise ConfigError(f"no simple detector {name!r}; choose from {', '.join(BASELINES)}")
    module, _, attribute = BASELINES[name].partition(":")
    make: Callable[[Recording], Detector] = getattr(
        importlib.import_module(f"{__name__}.{module}"), attribute
    )
    return make(recording)
