"""A small mesh for the tests of what leaves the watch, drawn by hand."""

from __future__ import annotations

import numpy as np

from hopline_mesh.incident import Evidence, Incident, Suspect, Verdict
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Gap, Snapshot

#    web ──► cart ──► db
#      └───► pay ─────┘
SERVICES = ("shop/web", "shop/cart", "shop/pay", "shop/db")
CALLS = (
    ("shop/web", "shop/cart"),
    ("shop/web", "shop/pay"),
    ("shop/cart", "shop/db"),
    ("shop/pay", "shop/db"),
)


def snapshot(
    time_s: float = 1000.0,
    services: tuple[str, ...] = SERVICES,
    calls: tuple[tuple[str, str], ...] = CALLS,
    *,
    p99_ms: float = 40.0,
    client_ms: float = 41.0,
    roster: Roster | None = None,
) -> Snapshot:
    """The mesh at a time; all services have this p99, all calls this latency and 10, 20, … requests/s."""
    roster, schema = roster or Roster(), Schema()
    nodes = np.array([roster.slot(name) for name in services], np.int32)
    node_features = np.full((len(services), len(schema.node_features)), np.nan, np.float32)
    node_features[:, schema.node_features.index("p99_ms")] = p99_ms
    edge_features = np.full((len(calls), len(schema.edge_features)), np.nan, np.float32)
    edge_features[:, 0] = 10.0 * np.arange(1, len(calls) + 1)
    edge_features[:, schema.edge_features.index("client_ms")] = client_ms
    return Snapshot(
        time_s,
        schema,
        roster,
        nodes,
        node_features,
        np.array([roster.slot(caller) for caller, _ in calls], np.int32),
        np.array([roster.slot(callee) for _, callee in calls], np.int32),
        edge_features,
    )


def incident(
    id: str = "i-1",
    start_s: float = 1000.0,
    end_s: float | None = None,
    service: str = "shop/cart",
    caller: str = "shop/web",
    seen: float | None = 812.0,
) -> Incident:
    """`service` is slow, and so is the call path to it."""
    evidence = (
        Evidence("p99_ms", service, None, 40.0, seen, 3.0),
        Evidence("client_ms", service, caller, 41.0, seen, 2.5),
    )
    suspects = (Suspect(service, 3.0, None, evidence), Suspect(caller, 1.2, None, ()))
    return Incident(id, start_s, end_s, 3.0, suspects)


def verdict(time_s: float = 1000.0, *incidents: Incident, state: str | None = None) -> Verdict:
    """What the watch thinks; anomalous where there are incidents."""
    said = state or ("anomalous" if incidents else "normal")
    gaps = (Gap("prometheus", "timed out"),) if said == "blind" else ()
    return Verdict(time_s, said, 3.0 if incidents else 0.4, incidents, gaps=gaps)  # type: ignore[arg-type]
