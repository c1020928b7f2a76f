"""Reads inline nodes, which are not in the graph and which the request describes, as an overlay.

Their neighbours are known nodes, or other inline nodes of the same request, of any type. Known nodes do not
read them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, TypeAlias

import numpy as np

from hopline.artifact import LOOPS, NEGATIVE, REPEATED, ModelSpec
from hopline.engine.embeddings import narrowed, no_row
from hopline.engine.encoders import RowEncoder
from hopline.engine.inline_features import as_float32, feature_rows
from hopline.engine.overlay import ADDED, Lists, Overlay, offsets_of
from hopline.engine.schema import remedy
from hopline.engine.view import NO_FLOATS
from hopline.errors import BadRequest, NodeNotFound, RequestTooLarge
from hopline.float32 import changed, refusal
from hopline.graph import Adjacency, Graph
from hopline.graph.live.view import LiveAdjacency, LiveView
from hopline.graph.schema import EdgeTypeSchema
from hopline.types import ContextNode, ExternalId, FloatArray, IdArray, InlineNode

#: Nodes of one type in a request, by their places.
_Group: TypeAlias = dict[str, InlineNode]
#: Fields of an inline node by edge type.
_FIELDS = ("neighbors", "edge_attr", "edge_weight")


class _Model(Protocol):
    spec: ModelSpec
    encoders: dict[str, RowEncoder]
    reads_attr: frozenset[str]
    graph: Any


def parse_inline(
    model: _Model, nodes: Sequence[InlineNode], max_neighbors: int, context: Sequence[ContextNode] = ()
) -> Overlay:
    """Check inline nodes against the graph.

    Args:
        model: where it samples by weight, none may be negative. Attributes that it does not read may be
            left out.
        nodes: of the type that it answers, as those in `context` that name no type.
        context: nodes of any type that others refer to.

    Returns: nodes of each type are numbered, those of the type that it answers from `nodes` on.

    Raises:
        BadRequest: an unknown type, features of a wrong length, not finite or changed by float32, an
            unknown edge type, edge data of a wrong shape, edges that the model reads differently from those
            that it was packaged with.
        NodeNotFound: neighbour ids that are in neither the graph nor the request; the error names them.
        RequestTooLarge: more than `max_neighbors` neighbours of one node.
    """
    graph, spec, node_type = model.graph, model.spec, model.spec.head.node_type
    if spec.fanouts.keys() - graph.schema.own_edge_types.keys():
        raise BadRequest(
            "inline: the model reads edges that leave a node. Those of a node that is not in the graph "
            "would change its neighbours' states, which no request does: add it to a live graph (keep)"
        )
    groups = {node_type: {f"inline[{i}]": node for i, node in enumerate(nodes)}} if nodes else {}
    for i, each in enumerate(context):
        name = each.type or node_type
        if name not in graph.nodes:
            known = ", ".join(map(repr, graph.nodes))
            raise BadRequest(f"context[{i}].type: {name!r} is no node type; the graph has {known}")
        groups.setdefault(name, {})[f"context[{i}]"] = each
    names = {name: _names(group) for name, group in groups.items()}
    missing: list[ExternalId] = []
    overlay = Overlay({}, {})
    for name, group in groups.items():
        places = list(group)
        ids = ADDED | np.arange(len(group))
        overlay.rows[name] = ids, node_rows(group, name, graph, spec, model.encoders.get(name))
        incoming = {
            key: graph.edges[key] for key, edge in graph.schema.own_edge_types.items() if edge.dst == name
        }
        sent = {what: _by_edge_type(group, what, incoming, name) for what in _FIELDS}
        for key, adjacency in incoming.items():
            lists = [() if own is None else own for own in sent["neighbors"][key]]
            for place, own in zip(places, lists, strict=True):
                if len(own) > max_neighbors:
                    raise RequestTooLarge(
                        f"{place}.neighbors: {len(own)} neighbours; at most {max_neighbors} are allowed "
                        "(limits.max_inline_neighbors)"
                    )
            neighbors, absent = _resolve(graph, adjacency, lists, names.get(adjacency.src, {}))
            missing += absent
            data = {what: sent[what][key] for what in _FIELDS[1:]}
            weight, attr = edge_columns(model, key, data, lists, places, is_read=key in model.reads_attr)
            offsets = offsets_of(np.array([*map(len, lists)], np.int64))
            positions = -1 - np.arange(len(neighbors))
            overlay.lists[key] = Lists(ids, offsets, neighbors, positions, weight, attr)
            for i in range(len(group)) if key in spec.edges_without and not absent else ():
                part = slice(offsets[i], offsets[i + 1])
                check_kinds(spec, key, places[i], neighbors[part], ids[i], weight[part], lists[i])
    if missing:
        raise NodeNotFound(
            f"inline neighbours that are in neither graph {graph.version} nor this request: "
            + ", ".join(map(repr, missing[:20]))
            + (f" and {len(missing) - 20} more" if len(missing) > 20 else ""),
            missing,
        )
    return overlay


def _names(group: _Group) -> dict[ExternalId, int]:
    """The nodes of a type by id. Raises: BadRequest: two have the same."""
    names: dict[ExternalId, int] = {}
    for at, (place, node) in enumerate(group.items()):
        if node.id is not None and (first := names.setdefault(node.id, at)) != at:
            raise BadRequest(f"{place}.id: {node.id!r} is also the id of {list(group)[first]}")
    return names


def node_rows(
    group: _Group, node_type: str, graph: Graph | LiveView, spec: ModelSpec, encoder: RowEncoder | None
) -> FloatArray:
    """Feature rows of inline nodes, with the learned columns that a node which came later has."""
    schema, learned = graph.schema.node_types[node_type], spec.embeddings.get(node_type)
    if learned is not None and learned.later == "refuse":
        raise BadRequest(str(no_row(spec, f"nodes of type {node_type!r} that are not in the graph")))
    if schema.has_time:
        raise BadRequest(
            f"{next(iter(group))}: nodes of type {node_type!r} have times; none can be described"
        )
    for place, node in group.items():
        if encoder is None and node.columns is not None:
            raise BadRequest(
                f"{place}.columns: the model has no preprocessing; send `features`, a list of "
                f"{schema.feature_dim} numbers"
            )
        if encoder is not None and len(node.features):
            raise BadRequest(
                f"{place}.features: the model has preprocessing; send `columns`, a value by name"
            )
    nodes, places = list(group.values()), list(group)
    if encoder is not None:
        own = encoder.rows([node.columns for node in nodes], [f"{place}.columns" for place in places])
    else:
        narrow = schema if learned is None else narrowed(schema, learned)
        own = feature_rows(nodes, node_type, narrow, places)
    if learned is None:
        return own
    row = np.frombuffer(learned.row or bytes(4 * (schema.feature_dim - own.shape[1])), np.float32)
    return np.concatenate([own, np.tile(row, (len(own), 1))], axis=1)


def _by_edge_type(
    group: _Group, what: str, incoming: Collection[str], node_type: str
) -> dict[str, list[Any]]:
    """A field of all nodes by edge type, None where a node has none; the name "" means the only type."""
    found: dict[str, list[Any]] = {key: [None] * len(group) for key in incoming}
    named = {**found, "": next(iter(found.values()))} if len(found) == 1 else found
    for i, (place, node) in enumerate(group.items()):
        given = getattr(node, what)
        if "" in given and len(given) > 1:
            raise BadRequest(
                f"{place}.{what}: '' means the only edge type; use '' or names of edge types, not both"
            )
        for name, value in given.items():
            if name not in named:
                problem = f"unknown edge type {name!r}" if name else "the edge type is missing"
                known = ", ".join(sorted(incoming)) or "none"
                raise BadRequest(f"{place}.{what}: {problem}; edge types into {node_type!r}: {known}")
            named[name][i] = value
    return found


def check_kinds(
    spec: ModelSpec, key: str, place: str, own: IdArray, node: int, weight: FloatArray, ids: Sequence[Any]
) -> None:
    """Refuse edges of kinds on whose absence the model's answers rely.

    Args:
        own, node: a list, and its destination. weight: of edges that the request describes.
        ids: external ids of the list, for messages.
    """
    absent = spec.edges_without.get(key, ())
    if not absent:
        return
    _, first = np.unique(own, return_index=True)
    found = ""
    if REPEATED in absent and first.shape[0] < own.shape[0]:
        again = int(np.setdiff1d(np.arange(own.shape[0]), first)[0])
        found = f"{np.asarray(ids[again]).item()!r} is listed more than once"
    elif LOOPS in absent and (own == node).any():
        found = "the node is its own neighbour"
    elif NEGATIVE in absent and (weight < 0).any():
        found = "a weight is negative"
    if found:
        raise BadRequest(
            f"{place}.neighbors: {found}. The model was packaged on a graph whose {key} has "
            f"no {' and no '.join(absent)}, and its answers rely on that. {remedy(absent)}"
        )


def edge_columns(
    model: _Model,
    key: str,
    sent: Mapping[str, Sequence[Any]],
    lists: Sequence[Sequence[ExternalId]],
    places: Sequence[str],
    *,
    is_read: bool,
) -> tuple[FloatArray, FloatArray]:
    """Weights [E] and attributes [E, d_e] of edges that a request describes; none where the graph has none.

    Args:
        sent: "edge_weight" and "edge_attr" of each list. lists: external ids of the edges' sources.
        is_read: False if the model does not read attributes; there are none then.
    """
    adjacency, schema = model.graph.edges[key], model.graph.schema.edge_types[key]
    for what, given in sent.items():
        has_none = getattr(adjacency, what.removeprefix("edge_")) is None
        for place, value in zip(places, given if has_none else (), strict=False):
            if value is not None:
                raise BadRequest(f"{place}.{what}: edge type {key!r} has no {what} in this graph")
    weight, attr = NO_FLOATS, NO_FLOATS.reshape(0, schema.attr_dim)
    if adjacency.weight is not None:
        by_weight = model.spec.sampling == "weighted"
        given = sent["edge_weight"]
        weight = _edge_values(schema, "edge_weight", given, lists, places, unsigned=by_weight)[:, 0]
    if schema.attr_dim:
        given, encoder = sent["edge_attr"], model.encoders.get(key)
        if encoder is None:
            found = _edge_values(schema, "edge_attr", given, lists, places, needed=is_read)
        else:
            found = _encoded(encoder, schema, given, lists, places, needed=is_read)
        attr = found if is_read else attr
    return weight, attr


def _resolve(
    graph: Graph | LiveView,
    adjacency: Adjacency | LiveAdjacency,
    lists: list[Any],
    names: dict[ExternalId, int],
) -> tuple[IdArray, list[ExternalId]]:
    """Neighbour ids as in `Lists.neighbors`, and the ids that neither graph nor request has."""
    flat: Any
    if not names and all(isinstance(x, np.ndarray) and x.dtype == np.int64 and x.ndim == 1 for x in lists):
        flat = np.concatenate(lists)
    else:
        flat = [*chain.from_iterable(ids.tolist() if isinstance(ids, np.ndarray) else ids for ids in lists)]
    if not names:
        found = graph.nodes[adjacency.src].ids.lookup(flat)
        return found, [np.asarray(flat[p]).item() for p in np.flatnonzero(found < 0)]
    found = np.array([ADDED | names[name] if name in names else -1 for name in flat], np.int64)
    outside = np.flatnonzero(found < 0)
    wanted: Any = [flat[p] for p in outside]
    found[outside] = ids = graph.nodes[adjacency.src].ids.lookup(wanted)
    return found, [wanted[p] for p in np.flatnonzero(ids < 0)]


def _encoded(
    encoder: RowEncoder, schema: EdgeTypeSchema, given: Sequence[Any],
    lists: Sequence[Sequence[ExternalId]], places: Sequence[str], *, needed: bool,
) -> FloatArray:  # fmt: skip
    """Attributes of all nodes' edges, which requests send as columns; as `_edge_values`."""
    rows, where = list[Mapping[str, Any]](), list[str]()
    for place, value, ids in zip(places, given, lists, strict=True):
        sent = [] if value is None else list(value)
        if len(sent) == len(ids) and all(isinstance(row, Mapping) for row in sent):
            rows += sent
            where += [f"{place}.edge_attr[{at}]" for at in range(len(sent))]
        elif needed or value is not None:
            takes = ", ".join(f"{column['name']} ({column['type']})" for column in encoder.columns)
            raise BadRequest(
                f"{place}.edge_attr: edge type {schema.key!r} has columns, which the model's preprocessing "
                f"reads: an object for each of {len(ids)} neighbours, with {takes}"
            )
    return encoder.rows(rows, where) if rows else np.empty((0, schema.attr_dim), np.float32)


def _edge_values(
    schema: EdgeTypeSchema, what: str, given: Sequence[Any], lists: Sequence[Sequence[ExternalId]],
    places: Sequence[str], *, unsigned: bool = False, needed: bool = True,
) -> FloatArray:  # fmt: skip
    """Edge data of all nodes, float32 [E, max(dim, 1)]; weights default to 1, attributes are required.

    Args:
        needed: False if nodes may leave them out, since the model does not read them.
    """
    pieces = []
    key, dim = schema.key, schema.attr_dim if what == "edge_attr" else 0
    rounded: Collection[int] = schema.rounded if dim else (0,) if schema.rounded_weight else ()
    for place, value, ids in zip(places, given, lists, strict=True):
        count = len(ids)
        shape = (count, dim) if dim else (count,)
        if value is None:
            if not needed:
                continue
            if dim and count:
                raise BadRequest(
                    f"{place}.{what}: edge type {key!r} has {dim} edge attributes; give {shape}"
                )
            value = np.ones(shape, np.float32)
        try:
            sent, array = as_float32(value)
        except (TypeError, ValueError, OverflowError):
            raise BadRequest(f"{place}.{what}: must be numbers of shape {list(shape)}") from None
        if not count and array.shape == (0,):  # an empty list has no second dimension
            sent, array = sent.reshape(shape), array.reshape(shape)
        if array.shape != shape:
            raise BadRequest(f"{place}.{what}: shape {list(array.shape)}; expected {list(shape)}")
        if not np.isfinite(array).all():
            raise BadRequest(f"{place}.{what}: values must be finite")
        if unsigned and (array < 0).any():
            why = "values must not be negative: the model samples by weight"
            raise BadRequest(f"{place}.{what}: {why}")
        piece = array.reshape(count, max(dim, 1))
        lost = changed(sent.reshape(piece.shape), piece, rounded)
        if lost is not None:
            edge, column = np.argwhere(lost)[0].tolist()
            number = sent.reshape(piece.shape)[edge, column]
            why = refusal(number, column, schema.attr_names) if dim else refusal(number, None)
            raise BadRequest(f"{place}.{what}[{edge}]: {why}")
        pieces.append(piece)
    return np.concatenate([NO_FLOATS.reshape(0, max(dim, 1)), *pieces])
