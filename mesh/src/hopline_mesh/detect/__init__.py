"""The detector: from intervals of a mesh to verdicts with incidents. Read `detector.py` first."""

from hopline_mesh.detect.detector import DetectorOptions, MeshDetector

__all__ = ["DetectorOptions", "MeshDetector"]
