"""The watch itself; read `loop.py` first."""

from hopline_mesh.watch.run import Started, run

__all__ = ["Started", "run"]
