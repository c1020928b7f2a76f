"""Small meshes for tests: snapshots with made-up numbers."""

from __future__ import annotations

import numpy as np

from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Gap, Snapshot

SCHEMA = Schema()


def snapshot(
    time_s: float,
    roster: Roster | None = None,
    *,
    services: int = 5,
    edges: int = 8,
    seed: int | None = None,
    gaps: tuple[Gap, ...] = (),
) -> Snapshot:
    """One interval of a mesh of services `ns/s0`, `ns/s1`, ... whose call paths are always the same."""
    roster = roster if roster is not None else Roster()
    nodes = np.array([roster.slot(f"ns/s{i}") for i in range(services)], np.int32)
    topology = np.random.default_rng(7)
    edges = min(edges, services * services)
    pairs = topology.choice(services * services, edges, replace=False)
    rng = np.random.default_rng(int(time_s) if seed is None else seed)
    return Snapshot(
        time_s=time_s,
        schema=SCHEMA,
        roster=roster,
        nodes=nodes,
        node_features=rng.random((services, len(SCHEMA.node_features)), np.float32),
        edge_src=nodes[pairs // services],
        edge_dst=nodes[pairs % services],
        edge_features=rng.random((edges, len(SCHEMA.edge_features)), np.float32),
        gaps=gaps,
    )


def same(one: Snapshot, other: Snapshot) -> bool:
    """Whether two snapshots say the same, by names and to the bit."""

    def names(slots, snapshot):
        return [snapshot.roster.name(int(slot)) for slot in slots]

    return (
        one.time_s == other.time_s
        and one.schema == other.schema
        and one.gaps == other.gaps
        and all(
            names(getattr(one, what), one) == names(getattr(other, what), other)
            for what in ("nodes", "edge_src", "edge_dst")
        )
        and one.node_features.tobytes() == other.node_features.tobytes()
        and one.edge_features.tobytes() == other.edge_features.tobytes()
    )
