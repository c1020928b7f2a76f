"""TAGAE with an untrained graph model, calibrated on the same normal time: shows the value of training."""

from __future__ import annotations

from hopline_mesh.detector import Detector
from hopline_mesh.evaluate.recording import Recording


def make(recording: Recording) -> Detector:
    """Create the detector with its documented settings."""
    from hopline_mesh.tagae import Tagae, TagaeSettings

    return Tagae(TagaeSettings(model="untrained"))
