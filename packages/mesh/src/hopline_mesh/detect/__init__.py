"""The detector: from intervals of a mesh to verdicts with incidents. Read `detector.py` first."""

from hopline_mesh.detect.detector import MeshDetector
from hopline_mesh.settings import DetectorSettings

__all__ = ["DetectorSettings", "MeshDetector"]
