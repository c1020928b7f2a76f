"""TAGAE with its graph model as it begins, calibrated on the same normal time: what training is worth."""

from __future__ import annotations

from hopline_mesh.detector import Detector
from hopline_mesh.evaluate.recording import Recording


def make(recording: Recording) -> Detector:
    """At its documented setting."""
    from hopline_mesh.tagae import Tagae, TagaeSettings

    return Tagae(TagaeSettings(model="untrained"))
