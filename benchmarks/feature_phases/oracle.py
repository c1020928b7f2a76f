"""Oracle of answers and rows: the same model in this process, its features in memory."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from hopline.artifact import read_spec
from hopline.engine.model import Model
from hopline.graph import Graph
from hopline.types import FloatArray, IdArray

_AT_ONCE = 1024


class Nothing:
    """A `RowSource` that has no row."""

    ttl_s = math.inf

    def read(self, ids: IdArray, out: FloatArray, *, stale: bool = False) -> tuple[IdArray, float]:
        """Report all of them as missing."""
        return np.arange(ids.shape[0]), math.inf

    def age_s(self, stamp: float) -> float:
        """It has none."""
        return 0.0

    def mean(self) -> FloatArray:
        """Never asked for."""
        raise NotImplementedError


class Oracle:
    """Computes the true answers and the rows that requests read.

    Args:
        serve_dir: holds `graph` and `repository/sage/1`.
    """

    def __init__(self, serve_dir: Path) -> None:
        folder = serve_dir / "repository" / "sage" / "1"
        self._folder, self._spec = folder, read_spec(folder)
        self._graph = Graph.open(serve_dir / "graph")
        self._bare = Model(folder, self._spec, self._graph, None, 1, {"node": Nothing()})

    def rows(self, seeds: IdArray) -> IdArray:
        """The rows that requests for these seeds read, without tables: int64, distinct."""
        parts = [np.empty(0, np.int64)]
        seeds = np.unique(seeds)
        for first in range(0, seeds.shape[0], _AT_ONCE):
            absent = self._bare.absent({"node": seeds[first : first + _AT_ONCE]})
            parts.append(absent["node"].copy())
        return np.unique(np.concatenate(parts))

    def rows_per_request(self, seeds: IdArray) -> float:
        """Mean number of rows that a request for one of these seeds reads."""
        counts = [self._bare.absent({"node": seeds[i : i + 1]})["node"].shape[0] for i in range(len(seeds))]
        return float(np.mean(counts))

    def answers(self) -> FloatArray:
        """The final state of every node, float32 [num_nodes, d]."""
        model = Model(self._folder, self._spec, self._graph)
        parts = []
        for first in range(0, self._graph.num_nodes, _AT_ONCE):
            ids = np.arange(first, min(first + _AT_ONCE, self._graph.num_nodes))
            parts.append(model.final_states({"node": ids})["node"].copy())
        return np.concatenate(parts)
