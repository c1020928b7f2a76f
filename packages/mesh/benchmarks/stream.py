"""Seeded snapshots of meshes of any size, and a detector that has learned from some of them.

Power-law in-degrees; all values of all services and call paths are new in each step, and one call path in
five hundred is replaced in one step of ten.
"""

from __future__ import annotations

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.detect import MeshDetector
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot

#: Services from which a detector learns from fewer intervals.
_LARGE = 10_000
_INTERVAL_S = 15.0
_LEARNT = 120


def edges_of(n: int, e: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Distinct call paths with power-law in-degrees, in random order: int32 [e] callers and callees."""
    popular = (np.arange(n) + 1.0) ** -0.6
    keys = np.zeros(0, np.int64)
    while len(keys) < e:
        callees = rng.choice(n, e, p=popular / popular.sum())
        callers = rng.integers(0, n, e)
        keys = np.unique(np.concatenate([keys, (callers * n + callees)[callers != callees]]))
    keys = rng.permutation(keys)[:e]
    return (keys // n).astype(np.int32), (keys % n).astype(np.int32)


class Stream:
    """Snapshots of a mesh whose values all change in each step, and whose call paths change sometimes."""

    def __init__(self, n: int, e: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._schema = Schema()
        self._roster = Roster(f"space{i % 20}/service{i}" for i in range(n))
        self._nodes = np.arange(n, dtype=np.int32)
        self._sources, self._targets = edges_of(n, e, self._rng)
        self._usual = self._rng.lognormal(2, 1, (n, len(self._schema.node_features)))
        self._usual_edges = self._rng.lognormal(1, 1, (e, len(self._schema.edge_features)))
        self._time_s = 1_700_000_000.0
        self._count = 0

    @property
    def num_nodes(self) -> int:
        """Services."""
        return len(self._nodes)

    def __next__(self) -> Snapshot:
        self._time_s += _INTERVAL_S
        self._count += 1
        if self._count % 10 == 0:
            self._replace()
        return Snapshot(
            self._time_s,
            self._schema,
            self._roster,
            self._nodes,
            self._noisy(self._usual, self._schema.node_features),
            self._sources,
            self._targets,
            self._noisy(self._usual_edges, self._schema.edge_features),
        )

    def _noisy(self, usual: np.ndarray, columns: tuple[str, ...]) -> np.ndarray:
        found = usual * self._rng.normal(1.0, 0.03, usual.shape)
        for place, column in enumerate(columns):
            if column.endswith("_share"):
                found[:, place] = 0.001 * self._rng.random(len(usual))
        return np.abs(found).astype(np.float32)

    def _replace(self) -> None:
        """One call path in five hundred goes to another callee."""
        n, e = len(self._nodes), len(self._sources)
        taken = set((self._sources.astype(np.int64) * n + self._targets).tolist())
        targets = self._targets.copy()
        for k in self._rng.choice(e, max(1, e // 500), replace=False):
            source, target = int(self._sources[k]), int(self._rng.integers(n))
            if target != source and source * n + target not in taken:
                taken.add(source * n + target)
                targets[k] = target
        self._targets = targets


def detector(stream: Stream) -> MeshDetector:
    """A detector after a short training."""
    made = MeshDetector()
    learnt = _LEARNT if stream.num_nodes < _LARGE else _LEARNT // 3
    made.fit([next(stream) for _ in range(learnt)], [Context()] * learnt)
    return made
