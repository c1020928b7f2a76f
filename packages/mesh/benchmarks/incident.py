"""The whole step in quiet time and in an incident in which 5 % of the series are out of bounds.

The step matters most in an incident, when evidence is collected, grouped and followed. Snapshots are
those of `stream`: seeded graphs, all values new in each step. In the incident every twentieth number of
services and call paths, drawn once, is three times the usual one. Medians and the worst of some steps;
`..._cpu_ms` is processor time, which other programs disturb less. `learning_cpu_s` is that of learning from
120 intervals (40 from 10,000 services on). `memory_bytes` is that of the detector's state.

    python -m packages.mesh.benchmarks --phases incident
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.detect import MeshDetector
from hopline_mesh.snapshot import Snapshot
from packages.mesh.benchmarks.stream import Stream, detector

SIZES = ((100, 400), (500, 3000), (2000, 20_000), (20_000, 200_000))
_QUICK = SIZES[:3]
_OUT, _TIMES = 0.05, 3.0
#: Steps that are timed, and steps before them until the deviations have lasted.
_STEPS, _BEFORE = 20, 10


def measure(quick: bool) -> dict[str, Any]:
    """Results under `incident`, by number of services; quick: up to 2,000."""
    return {"incident": {str(n): _of(n, e) for n, e in (_QUICK if quick else SIZES)}}


def _of(n: int, e: int) -> dict[str, Any]:
    stream = Stream(n, e)
    began = time.thread_time()
    made = detector(stream)
    learned = time.thread_time() - began
    quiet = _Times(made, [next(stream) for _ in range(_BEFORE + _STEPS)])
    rng = np.random.default_rng(1)
    some = next(stream)
    harmed = rng.random(some.node_features.shape) < _OUT, rng.random(some.edge_features.shape) < _OUT
    out = _Times(made, [_harmed(next(stream), *harmed) for _ in range(_BEFORE + _STEPS)])
    opened = made._tracker.open
    kept = sum(array.nbytes for array in made.export()[1].values())
    return {
        "quiet_p50_ms": quiet.p50_ms,
        "incident_p50_ms": out.p50_ms,
        "incident_max_ms": round(max(out.wall), 2),
        "quiet_cpu_ms": quiet.cpu_ms,
        "incident_cpu_ms": out.cpu_ms,
        "incidents": len(opened),
        "evidence": sum(len(each.clues) for each in opened),
        "learning_cpu_s": round(learned, 2),
        "memory_bytes": kept,
    }


def _harmed(snapshot: Snapshot, nodes: np.ndarray, edges: np.ndarray) -> Snapshot:
    return replace(
        snapshot,
        node_features=np.where(nodes, _TIMES * snapshot.node_features, snapshot.node_features),
        edge_features=np.where(edges, _TIMES * snapshot.edge_features, snapshot.edge_features),
    )


class _Times:
    """Milliseconds of each step but the first ones."""

    def __init__(self, made: MeshDetector, snapshots: list[Snapshot]) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []
        for number, snapshot in enumerate(snapshots):
            began, used = time.perf_counter(), time.thread_time()
            made.step(snapshot, Context())
            made.scores(snapshot)
            if number >= _BEFORE:
                self.wall.append(1e3 * (time.perf_counter() - began))
                self.cpu.append(1e3 * (time.thread_time() - used))

    @property
    def p50_ms(self) -> float:
        return round(float(np.median(self.wall)), 2)

    @property
    def cpu_ms(self) -> float:
        return round(float(np.median(self.cpu)), 2)
