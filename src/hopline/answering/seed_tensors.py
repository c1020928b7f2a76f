"""Tensors that a graph model reads of a request's own nodes: feature rows, float32, and degrees, counts.

Reads mapped arrays and the shared rows of L1, which other threads may do while the loop works; never the
model's buffers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from hopline.engine.answer import cut_of
from hopline.engine.model import Model
from hopline.engine.request_ids import sides_of
from hopline.errors import SchemaMismatch
from hopline.sampling.keyed import NO_CUT
from hopline.types import AnyArray, ExternalIds, FloatArray, IdArray, ScoreRequest

if TYPE_CHECKING:
    from hopline.features.l1_rows import L1Rows
    from hopline.graph import Graph
    from hopline.graph.live.view import LiveRows, LiveView
    from hopline.graph.narrow import NarrowMatrix

#: Rows of one request.
_MOST_ROWS = 64


def seed_tensors(
    model: Model, graph: Graph | LiveView, l1_rows: Mapping[str, L1Rows], request: ScoreRequest
) -> dict[str, AnyArray]:
    """Feature rows and in-degrees of a request's first nodes.

    Args:
        model: that answered it.
        graph: what it answers about; a live one is pinned.
        l1_rows: node type -> rows in L1, for types whose features lie in a store.
        request: answered, so that its ids are well-formed.

    Returns: "<side>.<node type>.features" float32 [n, d], NaN in rows that are unknown or no longer
        in L1, and "<side>.<edge type>.degree" int64 [n], -1 where the node is not known; side is "nodes",
        "sources" or "targets". "inline.features" float32 [n, d] as the request has them.
    """
    if request.names_edges:  # whose ends only the pinned graph knows
        return {}
    model = model.by_type.get(request.node_type, model)
    found: dict[str, AnyArray] = {}
    names = ("nodes",) if request.ends is None else ("sources", "targets")
    for name, (node_type, external) in zip(names, sides_of(model.spec, request), strict=True):
        found |= _side(name, model, graph, l1_rows, node_type, external, cut_of(request))
    if request.inline:
        nodes = request.inline[:_MOST_ROWS]
        found["inline.features"] = (
            np.array([np.asarray(node.features, np.float32) for node in nodes])
            if model.encoder is None
            else model.encoder.rows([node.columns for node in nodes])
        )
    return found


def _side(
    side: str,
    model: Model,
    graph: Graph | LiveView,
    l1_rows: Mapping[str, L1Rows],
    node_type: str,
    external_ids: ExternalIds,
    as_of: int,
) -> dict[str, AnyArray]:
    if not len(external_ids):
        return {}
    nodes = graph.nodes[node_type]
    ids = nodes.ids.lookup(external_ids[:_MOST_ROWS])
    known, features, rows = ids >= 0, nodes.features, ids
    if as_of != NO_CUT and nodes.history is not None:
        features, rows = nodes.history.features, np.full(len(ids), -1)
        rows[known] = nodes.history.places(ids[known], as_of)
        with suppress(SchemaMismatch):  # NaN then, where rows of a live graph are made when they are read
            nodes.history.rows(ids[rows >= 0], as_of)
    found: dict[str, AnyArray] = {
        f"{side}.{node_type}.features": _features(features, l1_rows.get(node_type), rows, rows >= 0)
    }
    for key in model.spec.fanouts:
        adjacency = graph.edges[key]
        if adjacency.dst == node_type:
            degrees = np.full(ids.shape[0], -1, np.int64)
            degrees[known] = adjacency.degree(ids[known])
            found[f"{side}.{key}.degree"] = degrees
    return found


def _features(
    stored: AnyArray | NarrowMatrix | LiveRows, l1_rows: L1Rows | None, ids: IdArray, known: AnyArray
) -> FloatArray:
    rows: FloatArray = np.full(
        (ids.shape[0], stored.shape[1] if l1_rows is None else l1_rows.group.dim), np.nan, np.float32
    )
    if l1_rows is None:
        rows[known] = stored[ids[known]]
        return rows
    wanted = ids[known]
    read: FloatArray = np.empty((wanted.shape[0], l1_rows.group.dim), np.float32)
    # as the model read them, however old by now
    missing, _ = l1_rows.cache.read(wanted, read, time.monotonic(), True)
    read[missing] = np.nan
    rows[known] = read
    return rows
