"""The detector: from intervals of a mesh to verdicts with incidents. Read `detector.py` first."""

from hopline_mesh.tagae.detector import Tagae, TagaeSettings

__all__ = ["Tagae", "TagaeSettings"]
