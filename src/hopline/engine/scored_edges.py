"""Edges that requests score: ends that a request describes, and rows as it has them or as the graph has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hopline.engine.inline_features import number_rows
from hopline.engine.overlay import ADDED, Lists
from hopline.engine.request_ids import not_found
from hopline.errors import BadRequest, EdgeNotFound
from hopline.graph.store_columns import is_in_store
from hopline.types import FloatArray, IdArray, ScoredEdge, ScoreRequest

if TYPE_CHECKING:
    from hopline.engine.model import Model


#: In place of the end of an edge whose id is unknown.
UNKNOWN = -2
#: Fields of a made-up request, so that the first real one finds the table of ids ready.
BY_ID = {"edges": (ScoredEdge(id=""),)}


@dataclass(frozen=True, slots=True)
class NamedEdges:
    """Edges of a request that are named by their ids.

    Attributes:
        positions: int64 [n] in the graph's edges; -1 for edges that have ends, UNKNOWN for unknown ids.
        sides: ids of their sources and destinations, int64 [n] each; otherwise as `positions`.
    """

    positions: IdArray
    sides: tuple[IdArray, IdArray]


def named_edges(model: Model, request: ScoreRequest, as_of: int) -> NamedEdges | None:
    """Find the edges that a request names by their ids; None if it names none so.

    Raises: EdgeNotFound: the graph lacks some, or has them later than `as_of`. BadRequest: it has no ids.
    """
    by_id = np.array([edge.id is not None for edge in request.edges], np.bool_)
    if not by_id.any():
        return None
    ids: list[Any] = [edge.id for edge in request.edges]
    edges = model.graph.edges[model.spec.head.edge_type]
    if is_in_store(edges):
        raise BadRequest(f"edges of {edges.key!r} lie in a graph store: send each with its ends and row")
    found, owners = np.full(len(ids), -1), np.full(len(ids), -1)
    found[by_id], owners[by_id] = edges.located([ids[at] for at in np.flatnonzero(by_id)])
    known = found >= 0
    if edges.time is not None:
        known[known] = edges.time[found[known]] <= as_of
    lost = by_id & ~known
    if lost.any() and request.on_missing == "error":
        raise not_found(model.graph.version, ids, np.where(lost, -1, 0), EdgeNotFound)
    sources = np.full(len(ids), -1)
    sources[known] = edges.indices[found[known]]
    found, sources, owners = (np.where(lost, UNKNOWN, each) for each in (found, sources, owners))
    return NamedEdges(found, (sources, owners))


def described_ends(
    request: ScoreRequest, ends: Any, node_type: str, own_type: str, named: IdArray | None = None
) -> tuple[IdArray, list[Any]]:
    """Ids of one side of a request's edges where they are known; -1 for others, which are returned too.

    Args:
        own_type: of nodes in `context` that name none. named: of `NamedEdges.sides`.
    """
    nodes = [each for each in request.context if (each.type or own_type) == node_type]
    numbers = {each.id: ADDED | at for at, each in enumerate(nodes) if each.id is not None}
    found = np.array([numbers.get(end, -1) for end in ends], np.int64)
    if named is not None:
        found = np.where(named == -1, found, named)
    return found, [ends[at] for at in np.flatnonzero(found == -1)]


def edge_rows(
    model: Model, request: ScoreRequest, sides: Sequence[IdArray], as_of: int, edited: Lists | None = None,
    named: NamedEdges | None = None,
) -> FloatArray:  # fmt: skip
    """The rows that a head reads of edges, float32 [n, d_e].

    Args:
        sides: ids of their sources and destinations, of `overlay.py`; -1 for those that are not known.
        as_of: of the graph's edges, the latest time.
        edited: lists of the edge type that the request edits.
        named: those that the request names by their ids.

    Raises: BadRequest: a value that the preprocessing or float32 does not accept, the wrong form, or no
        values and not one edge of the graph; names the place, such as edges[3].columns: 'amount'.
    """
    key, edges = model.spec.head.edge_type, request.edges
    schema, encoder = model.graph.schema.edge_types[key], model.encoders.get(key)
    right, wrong, takes = "attr", "columns", f"`attr`, a list of {schema.attr_dim} numbers"
    if encoder is not None:
        right, wrong, takes = "columns", "attr", "`columns`, a value by name"
    rows: FloatArray = np.zeros((len(edges), schema.attr_dim), np.float32)
    sent, attr = list[int](), model.graph.edges[key].attr
    if named is not None and attr is not None:
        at_positions = named.positions >= 0
        rows[at_positions] = attr[named.positions[at_positions]]
    for at, edge in enumerate(edges):
        if edge.id is not None:
            continue
        if getattr(edge, wrong) is not None:
            has = "no preprocessing" if encoder is None else "preprocessing"
            raise BadRequest(f"edges[{at}].{wrong}: the model has {has} of {key!r}; send {takes}")
        if getattr(edge, right) is not None:
            sent.append(at)
        elif (source := int(sides[0][at])) >= 0 <= (target := int(sides[1][at])):
            found = _joining(model, source, target, as_of, edited)
            if len(found) != 1 or found[0] < 0:
                why = "`if` adds it" if len(found) == 1 else "not one"
                raise BadRequest(
                    f"edges[{at}]: {len(found)} edges of {key!r} join these nodes, {why}; send {takes}"
                )
            assert attr is not None
            rows[at] = attr[found][0]
    if sent:
        places = [f"edges[{at}].{right}" for at in sent]
        if encoder is not None:
            rows[sent] = encoder.rows([edges[at].columns for at in sent], places)
        else:
            columns = schema.attr_dim, schema.attr_names, schema.rounded, ()
            has = f"edge type {key!r} has {schema.attr_dim} edge attributes"
            rows[sent] = number_rows([edges[at].attr for at in sent], places.__getitem__, has, columns)
    return rows


def _joining(model: Model, source: int, target: int, as_of: int, edited: Lists | None) -> IdArray:
    """Positions of the edges between two nodes, up to a time; below 0 for added ones."""
    adjacency = model.graph.edges[model.spec.head.edge_type]
    if is_in_store(adjacency):
        raise BadRequest(f"edges of {adjacency.key!r} lie in a graph store: send each with its row")
    if max(source, target) >= ADDED:
        return np.empty(0, np.int64)
    if edited is not None and target in edited.nodes:
        at = np.searchsorted(edited.nodes, target)
        own = slice(*edited.offsets[at : at + 2])
        positions: IdArray = edited.positions[own][edited.neighbors[own] == source]
        return positions
    found = np.flatnonzero(adjacency.neighbors(target) == source) + adjacency.starts(np.array([target]))
    return found if adjacency.time is None else found[adjacency.time[found] <= as_of]


def edges_between(model: Model, sources: Any, targets: Any) -> tuple[ScoredEdge, ...]:
    """Made-up edges between nodes."""
    key = model.spec.head.edge_type
    encoder, width = model.encoders.get(key), model.graph.schema.edge_types[key].attr_dim
    row: dict[str, Any] = {"attr": [0.0] * width} if encoder is None else {"columns": encoder.example}
    ends = (np.asarray(ids, object).tolist() for ids in (sources, targets))
    return tuple(ScoredEdge(source, target, **row) for source, target in zip(*ends, strict=True))
