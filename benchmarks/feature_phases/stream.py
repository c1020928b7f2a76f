"""The stream of requests: Zipf's law over the nodes, popular ones anywhere in the numbering."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from benchmarks import load
from benchmarks.hopline_server import REQUEST
from benchmarks.load import ID, Load
from hopline.types import IdArray

EXPONENT = 1.1
_SCRIPT = Path(__file__).with_name("replay.lua")
#: More requests than a run can send.
_MAX_PER_SECOND = 30_000


class ZipfStream:
    """Draws node ids: the one of rank r with probability ∝ r**-EXPONENT.

    Args:
        num_nodes: ids are in [0, num_nodes).
        seed: of which ids are popular, and of the draws.
    """

    def __init__(self, num_nodes: int, seed: int = 11) -> None:
        self._rng = np.random.default_rng(seed)
        self._popular = self._rng.permutation(num_nodes)
        self._below = np.cumsum(np.arange(1, num_nodes + 1) ** -EXPONENT)
        self._below /= self._below[-1]

    def draw(self, count: int) -> IdArray:
        """The next ids of the stream, int64 [count]."""
        ranks = np.searchsorted(self._below, self._rng.random(count), side="right")
        ids: IdArray = self._popular[np.minimum(ranks, self._popular.shape[0] - 1)]
        return ids

    def run(self, port: int, *, connections: int, seconds: float) -> Load:
        """Send the next part of the stream with wrk."""
        before, after = REQUEST.body.split(ID)
        with tempfile.NamedTemporaryFile(suffix=".ids") as file:
            self.draw(round(_MAX_PER_SECOND * seconds)).astype("<i4").tofile(file)
            file.flush()
            arguments = [REQUEST.path, before, after, REQUEST.method, file.name]
            return load.drive(port, _SCRIPT, arguments, connections=connections, seconds=seconds)
