"""A small mesh whose numbers a test writes itself.

front ──► cart ──► store
  └─────► pay
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from hopline_mesh.changes import Context
from hopline_mesh.detect import MeshDetector
from hopline_mesh.detect.paths import Paths
from hopline_mesh.incident import Incident, Verdict
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Snapshot

SERVICES = ("front", "cart", "store", "pay")
CALLS = ((0, 1), (1, 2), (0, 3))
START_S = 1_767_225_600.0
INTERVAL_S = 15.0
SCHEMA = Schema()
_NODE = np.array([100.0, 0.001, 20.0, 80.0, 0.5, 2e8, 10.0])
_EDGE = np.array([50.0, 0.001, 22.0, 20.0])

Edit = Callable[[int, np.ndarray, np.ndarray], None]


def node(name: str) -> int:
    """Column of a service's feature."""
    return SCHEMA.node_features.index(name)


def edge(name: str) -> int:
    """Column of a call path's feature."""
    return SCHEMA.edge_features.index(name)


def play(
    count: int, edit: Edit | None = None, *, seed: int = 0, start_s: float = START_S,
    interval_s: float = INTERVAL_S, services: Sequence[str] = SERVICES,
) -> Iterator[Snapshot]:  # fmt: skip
    """Intervals with a little noise; `edit` changes the numbers of one: its number, nodes and edges."""
    rng = np.random.default_rng(seed)
    roster = Roster(services)
    slots = np.arange(len(services), dtype=np.int32)
    src, dst = (np.array(ends, np.int32) for ends in zip(*CALLS, strict=True))
    for number in range(count):
        load = np.exp(0.05 * rng.normal())
        nodes = _NODE * np.exp(0.03 * rng.normal(size=(len(services), len(_NODE))))
        edges = _EDGE * np.exp(0.03 * rng.normal(size=(len(CALLS), len(_EDGE))))
        nodes[:, 0] *= load
        edges[:, 0] *= load
        if edit is not None:
            edit(number, nodes, edges)
        yield Snapshot(
            start_s + interval_s * number, SCHEMA, roster, slots, nodes.astype(np.float32), src, dst,
            edges.astype(np.float32),
        )  # fmt: skip


def watch(
    detector: MeshDetector, snapshots: Iterable[Snapshot], context: Context | None = None
) -> list[Verdict]:
    """Verdicts on them."""
    return [detector.step(snapshot, context or Context()) for snapshot in snapshots]


def incidents(verdicts: Sequence[Verdict]) -> list[Incident]:
    """Each incident as it was last told, in order of their first verdicts."""
    last = {incident.id: incident for verdict in verdicts for incident in verdict.incidents}
    return list(last.values())


def after(snapshots: Sequence[Snapshot], gone_s: float = INTERVAL_S) -> float:
    """The time of the interval that follows."""
    return snapshots[-1].time_s + gone_s


def without(snapshot: Snapshot, slot: int) -> Snapshot:
    """The same without one service and its call paths."""
    stays = (snapshot.edge_src != slot) & (snapshot.edge_dst != slot)
    here = snapshot.nodes != slot
    return replace(
        snapshot, nodes=snapshot.nodes[here], node_features=snapshot.node_features[here],
        edge_src=snapshot.edge_src[stays], edge_dst=snapshot.edge_dst[stays],
        edge_features=snapshot.edge_features[stays],
    )  # fmt: skip


def paths_of(calls: Iterable[tuple[int, int]]) -> Paths:
    """Call paths from pairs of caller and callee."""
    return Paths(*np.array(list(calls), np.int64).reshape(-1, 2).T)
