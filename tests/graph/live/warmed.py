"""Imported by a fork server: its children find the kernels compiled."""

import tempfile
from pathlib import Path

from tests.graph.live.keepers import Kept, base_graph

with tempfile.TemporaryDirectory() as folder:
    kept = Kept(Path(folder) / "live", base_graph())
    for at in range(0, 30, 10):
        kept.send(at, at + 10)
        kept.snapshot()
    kept.close()
