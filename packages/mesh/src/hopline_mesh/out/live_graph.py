"""The live graph: services with anomaly scores, call paths with their share of traffic.

For a large mesh it is a part: the services with the highest scores and their neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest, quoted
from hopline_mesh.out.board import Board
from hopline_mesh.snapshot import FloatArray, Snapshot

#: Share of the services that is chosen by anomaly score; the others are neighbours of those.
_WORST_SHARE = 0.25
#: Maximum number of call paths for each service, if only a part of the mesh is shown.
_EDGES_PER_SERVICE = 8
#: Largest graph that is built on the event loop, in services; larger ones are built on another thread.
MAX_AT_ONCE = 1000
#: Suspects with at least this share of the first one's score are likely.
_LIKELY = 0.25
#: Larger than every anomaly score.
_SUSPECTED = np.float32(1e6)

Rows = NDArray[np.int64]


def live_graph(board: Board, limit: int = 0, around: str = "") -> dict[str, Any] | None:
    """Return the newest snapshot of the board as a graph, with the fields of the message `Graph`.

    Args:
        board: to read.
        limit: maximum number of services; 0 is all.
        around: a service; the result has the services with the fewest calls between it and them. "" chooses
            the highest anomaly scores.

    Returns: what mesh.proto describes; missing scores, shares and incidents are None. None before the first
        snapshot.

    Raises:
        BadRequest: `around` was not in the last interval.
    """
    snapshot, scores = board.shown
    if snapshot is None:
        return None
    if around:
        slot = snapshot.roster.find(around)
        start = np.flatnonzero(snapshot.nodes == (-1 if slot is None else slot))
        if not len(start):
            raise BadRequest(
                f"around: service {quoted(around)} was not in the last interval; names are "
                "namespace/service, and new services appear with the next interval",
                "around",
            )
        rows = _grown(snapshot, start, limit or len(snapshot.nodes), _rank(board, snapshot, scores))
    elif limit and len(snapshot.nodes) > limit:
        rank = _rank(board, snapshot, scores)
        worst = np.argsort(-rank, kind="stable")
        rows = _grown(snapshot, worst[: max(1, int(limit * _WORST_SHARE))], limit, rank)
        left = worst[~np.isin(worst, rows)][: limit - len(rows)]
        rows = np.concatenate((rows, left))
    else:
        rows = np.arange(len(snapshot.nodes))
    return _drawn(board, snapshot, scores, rows)


def _drawn(board: Board, snapshot: Snapshot, scores: FloatArray, rows: Rows) -> dict[str, Any]:
    suspected: dict[str, str] = {}
    blamed: set[tuple[str, str]] = set()
    for record in board.open_incidents():
        suspects = record.incident.suspects
        likely_at = _LIKELY * max((suspect.score for suspect in suspects), default=0.0)
        for suspect in (each for each in suspects if each.score >= likely_at):
            suspected.setdefault(suspect.service, record.incident.id)
            blamed |= {(each.caller, each.service) for each in suspect.evidence if each.caller is not None}
    suppressed = set(board.verdict.suppressed if board.verdict is not None else ())
    services = [snapshot.roster.name(slot) for slot in snapshot.nodes[rows].tolist()]
    place = np.full(len(snapshot.roster), -1, np.int64)
    place[snapshot.nodes[rows]] = np.arange(len(rows))
    callers, callees = place[snapshot.edge_src], place[snapshot.edge_dst]
    paths = np.flatnonzero((callers >= 0) & (callees >= 0))
    shares = _shares(snapshot)
    most = _EDGES_PER_SERVICE * len(rows)
    if len(rows) < len(snapshot.nodes) and len(paths) > most:
        by_share = np.argsort(-np.nan_to_num(shares[paths], nan=0.0), kind="stable")
        paths = np.sort(paths[by_share[:most]])
    nodes = zip(services, _listed(scores[rows]), snapshot.node_features[rows].tolist(), strict=True)
    edges = zip(
        callers[paths].tolist(),
        callees[paths].tolist(),
        _listed(shares[paths]),
        snapshot.edge_features[paths].tolist(),
        strict=True,
    )
    return {
        "time_s": snapshot.time_s,
        "total_services": len(snapshot.nodes),
        "total_edges": len(snapshot.edge_src),
        "node_features": snapshot.schema.node_features,
        "edge_features": snapshot.schema.edge_features,
        "nodes": [
            {
                "service": service,
                "score": score,
                "suppressed": service in suppressed,
                "incident": suspected.get(service),
                "values": values,
            }
            for service, score, values in nodes
        ],
        "edges": [
            {
                "caller": caller,
                "callee": callee,
                "share": share,
                "blamed": (services[caller], services[callee]) in blamed,
                "values": values,
            }
            for caller, callee, share, values in edges
        ],
    }


def _grown(snapshot: Snapshot, start: Rows, limit: int, rank: FloatArray) -> Rows:
    """Return rows of services around others, ring by ring, in each ring the highest rank first."""
    row_of = np.full(len(snapshot.roster), -1, np.int64)
    row_of[snapshot.nodes] = np.arange(len(snapshot.nodes))
    callers, callees = row_of[snapshot.edge_src], row_of[snapshot.edge_dst]
    taken = np.zeros(len(snapshot.nodes), bool)
    start = start[:limit]
    taken[start] = True
    rings, num_taken = [start], len(start)
    while num_taken < limit:
        ring = np.zeros(len(taken), bool)
        ring[callees[taken[callers]]] = True
        ring[callers[taken[callees]]] = True
        rows = np.flatnonzero(ring & ~taken)
        if not len(rows):
            break
        rows = rows[np.argsort(-rank[rows], kind="stable")][: limit - num_taken]
        taken[rows] = True
        rings.append(rows)
        num_taken += len(rows)
    return np.concatenate(rings)


def _shares(snapshot: Snapshot) -> FloatArray:
    """Return float32 [e]: each call path's share of its caller's requests; NaN if not measured."""
    columns = snapshot.schema.edge_features
    if "request_rate" not in columns:
        return np.full(len(snapshot.edge_src), np.nan, np.float32)
    rate = snapshot.edge_features[:, columns.index("request_rate")]
    total = np.bincount(snapshot.edge_src, np.nan_to_num(rate), len(snapshot.roster))[snapshot.edge_src]
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(total > 0, rate / total, np.nan).astype(np.float32)


def _rank(board: Board, snapshot: Snapshot, scores: FloatArray) -> FloatArray:
    """Return the importance of services: suspects first, then high scores, then services without one."""
    suspects = [suspect for record in board.open_incidents() for suspect in record.incident.suspects]
    names = {name for suspect in suspects for name in (suspect.service, suspect.caller) if name is not None}
    rank = np.nan_to_num(scores, nan=-1.0)
    slots = [slot for name in names if (slot := snapshot.roster.find(name)) is not None]
    rank[np.isin(snapshot.nodes, slots)] += _SUSPECTED
    return rank


def _listed(values: FloatArray) -> list[float | None]:
    """Return values as a list, with None for NaN."""
    return [None if value != value else value for value in values.tolist()]
