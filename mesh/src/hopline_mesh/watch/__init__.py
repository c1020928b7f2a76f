"""The watch itself: begin with `loop.py`."""

from hopline_mesh.watch.run import Started, run

__all__ = ["Started", "run"]
