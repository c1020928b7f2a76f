"""What TAGAE is compared with: simpler detectors, each at a setting that suits it."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from hopline.errors import ConfigError
from hopline_mesh.detector import Detector
from hopline_mesh.evaluate.recording import Recording

#: name -> module:function that makes the detector for a recording (which is not shown its events).
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
    """A fresh detector of this name.

    Raises:
        ConfigError: no such baseline.
    """
    if name not in BASELINES:
        raise ConfigError(f"no baseline {name!r}; there are {', '.join(BASELINES)}")
    module, _, attribute = BASELINES[name].partition(":")
    make: Callable[[Recording], Detector] = getattr(
        importlib.import_module(f"{__name__}.{module}"), attribute
    )
    return make(recording)
