"""Inline nodes: nodes that are not in the graph, described by the request, computed with the graph's nodes.

An inline node's state at level l needs its own state and its neighbours' states at level l-1. Its
neighbours are known nodes, whose rows come through the ordinary plan (and state cache), or other inline
nodes of the same request, of any type. Known nodes never see an inline node, so no cached row changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, TypeAlias

import numpy as np

from hopline.artifact import LOOPS, NEGATIVE, REPEATED, ModelSpec
from hopline.engine.embeddings import narrowed, no_row
from hopline.engine.encoders import RowEncoder
from hopline.engine.inline_features import InlineEdges, InlineNodes, as_float32, feature_rows
from hopline.engine.kernels import gather, gcn_coefficients
from hopline.engine.level import Level, Relation
from hopline.engine.narrow_kernels import Matrix
from hopline.engine.schema import remedy
from hopline.engine.view import NO_FLOATS, EdgeView
from hopline.errors import BadRequest, NodeNotFound, RequestTooLarge
from hopline.float32 import changed, refusal
from hopline.graph import Adjacency, Graph
from hopline.graph.live.view import LiveAdjacency, LiveView
from hopline.graph.schema import EdgeTypeSchema
from hopline.sampling import BlockBuffers, Sampler
from hopline.types import ContextNode, ExternalId, FloatArray, IdArray, InlineNode

States: TypeAlias = Callable[[int, str, IdArray], FloatArray]
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
) -> dict[str, InlineNodes]:
    """Check inline nodes against the graph.

    Args:
        model: where it samples by weight, none may be negative. Attributes that it does not read may be
            left out.
        nodes: of the type that it answers, as those in `context` that name no type.
        context: nodes of any type that others refer to.

    Returns: node type -> its nodes; of the type that it answers, `nodes` come first.

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
            "would change the states of its neighbours, which no request does: add the node to the graph"
        )
    groups: dict[str, _Group] = {node_type: {f"inline[{i}]": node for i, node in enumerate(nodes)}}
    for i, each in enumerate(context):
        name = each.type or node_type
        if name not in graph.nodes:
            known = ", ".join(map(repr, graph.nodes))
            raise BadRequest(f"context[{i}].type: {name!r} is no node type; the graph has {known}")
        groups.setdefault(name, {})[f"context[{i}]"] = each
    names = {name: _names(group) for name, group in groups.items()}
    missing: list[ExternalId] = []
    by_weight = spec.sampling == "weighted"
    found = {}
    for name, group in groups.items():
        places = list(group)
        rows = _features(group, name, graph, spec, model.encoders.get(name))
        found[name] = InlineNodes(name, rows, {})
        incoming = {
            key: graph.edges[key] for key, edge in graph.schema.own_edge_types.items() if edge.dst == name
        }
        sent = {what: _by_edge_type(group, what, incoming, name) for what in _FIELDS}
        for key, adjacency in incoming.items():
            schema = graph.schema.edge_types[key]
            lists = [() if ids is None else ids for ids in sent["neighbors"][key]]
            for place, ids in zip(places, lists, strict=True):
                if len(ids) > max_neighbors:
                    raise RequestTooLarge(
                        f"{place}.neighbors: {len(ids)} neighbours; at most {max_neighbors} are allowed "
                        "(limits.max_inline_neighbors)"
                    )
            for what in _FIELDS[1:]:
                has_none = getattr(adjacency, what.removeprefix("edge_")) is None
                for place, value in zip(places, sent[what][key] if has_none else (), strict=False):
                    if value is not None:
                        raise BadRequest(f"{place}.{what}: edge type {key!r} has no {what} in this graph")
            neighbors, absent = _resolve(graph, adjacency, lists, names.get(adjacency.src, {}))
            missing += absent
            edges = found[name].edges[key] = InlineEdges(np.cumsum([0, *map(len, lists)]), neighbors)
            if adjacency.weight is not None:
                values = sent["edge_weight"][key]
                weight = _edge_values(schema, "edge_weight", values, lists, places, unsigned=by_weight)
                edges.weight = weight[:, 0]
            if schema.attr_dim:
                values, is_read = sent["edge_attr"][key], key in model.reads_attr
                if encoder := model.encoders.get(key):
                    attr = _encoded(encoder, schema, values, lists, places, needed=is_read)
                else:
                    attr = _edge_values(schema, "edge_attr", values, lists, places, needed=is_read)
                edges.attr = attr if is_read else None
            if not absent:
                listed = dict(zip(places, lists, strict=True))
                _check_kinds(key, spec.edges_without.get(key, ()), edges, listed)
    if missing:
        raise NodeNotFound(
            f"inline neighbours that are in neither graph {graph.version} nor this request: "
            + ", ".join(map(repr, missing[:20]))
            + (f" and {len(missing) - 20} more" if len(missing) > 20 else ""),
            missing,
        )
    return found


def _names(group: _Group) -> dict[ExternalId, int]:
    """The nodes of a type by id. Raises: BadRequest: two have the same."""
    names: dict[ExternalId, int] = {}
    for at, (place, node) in enumerate(group.items()):
        if node.id is not None and (first := names.setdefault(node.id, at)) != at:
            raise BadRequest(f"{place}.id: {node.id!r} is also the id of {list(group)[first]}")
    return names


def _features(
    group: _Group, node_type: str, graph: Graph | LiveView, spec: ModelSpec, encoder: RowEncoder | None
) -> FloatArray:
    """Feature rows of inline nodes, with the learned columns that a node which came later has."""
    schema, learned = graph.schema.node_types[node_type], spec.embeddings.get(node_type)
    if learned is not None and learned.later == "refuse":
        raise BadRequest(str(no_row(spec, f"nodes of type {node_type!r} that are not in the graph")))
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


def _check_kinds(
    key: str, absent: Collection[str], edges: InlineEdges, lists: Mapping[str, Sequence[ExternalId]]
) -> None:
    """Refuse edges of kinds on whose absence the model's answers rely."""
    if not absent:
        return
    for i, (place, ids) in enumerate(lists.items()):
        own = edges.neighbors[edges.offsets[i] : edges.offsets[i + 1]]
        _, first = np.unique(own, return_index=True)
        found = ""
        if REPEATED in absent and first.shape[0] < own.shape[0]:
            again = int(np.setdiff1d(np.arange(own.shape[0]), first)[0])
            found = f"{np.asarray(ids[again]).item()!r} is listed more than once"
        elif LOOPS in absent and (own == -1 - i).any():
            found = "the node is its own neighbour"
        elif NEGATIVE in absent and (edges.weight[edges.offsets[i] : edges.offsets[i + 1]] < 0).any():
            found = "a weight is negative"
        if found:
            raise BadRequest(
                f"{place}.neighbors: {found}. The model was packaged on a graph whose {key} has "
                f"no {' and no '.join(absent)}, and its answers rely on that. {remedy(absent)}"
            )


def inline_states(
    levels: list[dict[str, Level]], features: dict[str, Matrix], nodes: Mapping[str, InlineNodes],
    as_of: int, states: States,
) -> dict[str, FloatArray]:  # fmt: skip
    """Final states of inline nodes by type, float32 [n, d].

    Args:
        features: node type -> [N, d], for those in the process.
        states: level, node type, int64 [n] distinct global ids -> their states float32 [n, d].
    """
    own = {name: each.features for name, each in nodes.items()}
    for number in range(len(levels)):
        below = dict(own)
        for name, each in nodes.items():
            level = levels[number].get(name)
            # No later level reads a state that has no stage: the type's raw features may be all that is
            # read.
            if level is None or level.runner is None:
                continue
            everyone = np.arange(len(each.features))
            views = {
                key: _view(levels, features, each.edges[key], number, relation, below, as_of, states)
                for key, relation in level.relations.items()
            }
            out = np.empty((len(everyone), level.stage.state_dim), np.float32)
            structure = None if level.structure is None else level.structure.described(each)
            own[name] = level.runner.run(
                len(everyone), below[name], everyone, each.features, everyone, views, out, structure
            ).copy()
    return own


def _view(
    levels: list[dict[str, Level]],
    features: dict[str, Matrix],
    edges: InlineEdges,
    number: int,
    relation: Relation,
    own: Mapping[str, FloatArray],
    as_of: int,
    states: States,
) -> EdgeView:
    """The neighbours of inline nodes along one edge type.

    Args:
        own: states of inline nodes one level below, by type.
    """
    offsets, picked = _sample(relation.sampler, edges)
    neighbors = edges.neighbors[picked]
    known = np.unique(neighbors[neighbors >= 0])
    source = relation.adjacency.src
    below = levels[number - 1][source]
    if below.runner is None and below.source is None:
        slots = known if relation.source_slots is None else relation.source_slots.slots(known)
        base = np.empty((slots.shape[0], features[source].shape[1]), np.float32)
        gather(features[source], slots, 0, base.shape[1], base, 0)
    else:
        none = np.empty((0, below.stage.state_dim), np.float32)
        base = states(number - 1, source, known) if known.shape[0] else none
    if source in own:
        base = np.concatenate([base, own[source]]).astype(np.float32, copy=False)
    rows = np.where(neighbors >= 0, np.searchsorted(known, neighbors), known.shape[0] - 1 - neighbors)
    base = np.ascontiguousarray(base)
    view = EdgeView(base, rows.astype(np.int64), offsets)
    if relation.reads_weight:
        view.weight = np.ascontiguousarray(edges.weight[picked])
    if edges.attr is not None:
        view.attr = edges.attr[picked]
    owner = -1 - np.repeat(np.arange(offsets.shape[0] - 1), np.diff(offsets))
    view.is_self = (neighbors == owner) & (source == relation.adjacency.dst)
    view.num_eligible = np.diff(edges.offsets)
    if relation.gcn:
        _normalise(view, edges, relation, neighbors, as_of)
    return view


def _normalise(
    view: EdgeView, edges: InlineEdges, relation: Relation, neighbors: IdArray, as_of: int
) -> None:
    """Set the coefficients of `gcn`: an inline node's degree is that of the request, plus its self-loop."""
    counts = np.diff(edges.offsets)
    owner = np.repeat(np.arange(counts.shape[0]), counts)
    weight = edges.weight if relation.gcn_weighted else np.ones(owner.shape[0], np.float32)
    loops = relation.add_loops & (edges.neighbors == -1 - owner)
    degree = np.bincount(owner, np.where(loops, 0.0, weight), counts.shape[0]).astype(np.float32)
    loop_weight = np.ones(counts.shape[0], np.float32)
    loop_weight[owner[loops]] = weight[loops]
    if relation.add_loops:
        degree += loop_weight
    degree_neighbor = np.empty(neighbors.shape[0], np.float32)
    is_known = neighbors >= 0
    degree_neighbor[is_known] = relation.degree_with_loop(neighbors[is_known], as_of)
    degree_neighbor[~is_known] = degree[-1 - neighbors[~is_known]]
    view.coefficients = np.empty(neighbors.shape[0], np.float32)
    view.self_coefficients = np.empty(counts.shape[0], np.float32)
    assert view.num_eligible is not None
    assert view.is_self is not None
    gcn_coefficients(
        relation.add_loops, view.is_self, view.offsets, view.weight if relation.gcn_weighted else NO_FLOATS,
        degree, degree_neighbor, view.num_eligible, loop_weight if relation.add_loops else NO_FLOATS,
        view.coefficients, view.self_coefficients,
    )  # fmt: skip


def _sample(sampler: Sampler, edges: InlineEdges) -> tuple[IdArray, IdArray]:
    """The layer's keyed sample of inline lists: (offsets int64 [n+1], positions in the lists).

    Every inline node is sampled as node 0 of a separate graph, so that its answer does not depend on
    its place in the request. The last neighbours of a list count as the most recent ones.
    """
    starts, counts = edges.offsets[:-1], np.diff(edges.offsets)
    if sampler.fanout < 0 or (counts <= sampler.fanout).all():
        return edges.offsets, np.arange(edges.neighbors.shape[0])
    by_weight = sampler.mode == "weighted"  # without, lists of the same length have the same sample
    drawn: dict[int, IdArray] = {}
    picked = []
    for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
        if by_weight or count not in drawn:
            drawn[count] = _draw(sampler, count, edges.weight[start : start + count] if by_weight else None)
        picked.append(drawn[count])
    sizes = [len(own) for own in picked]
    return np.cumsum([0, *sizes]), np.concatenate(picked) + np.repeat(starts, sizes)


def _draw(sampler: Sampler, count: int, weight: FloatArray | None) -> IdArray:
    """The sample of one list: positions in it."""
    edge = sampler.adjacency
    own = Adjacency(
        src=edge.src, relation=edge.relation, dst=edge.dst, has_self_loops=False, max_degree=count,
        indptr=np.array([0, count]), indices=np.arange(count, dtype=np.int32), attr=None, weight=weight,
        cumweight=None if weight is None else np.cumsum(weight, dtype=np.float64),
        time=np.arange(count) if sampler.mode == "recent" else None,
    )  # fmt: skip
    alone = Sampler(own, sampler.fanout, sampler.mode, sampler.key)
    return alone.sample(np.zeros(1, np.int64), BlockBuffers()).neighbors


def _resolve(
    graph: Graph | LiveView,
    adjacency: Adjacency | LiveAdjacency,
    lists: list[Any],
    names: dict[ExternalId, int],
) -> tuple[IdArray, list[ExternalId]]:
    """Neighbour ids as in InlineEdges.neighbors, and the ids that neither graph nor request has."""
    flat: Any
    if not names and all(isinstance(x, np.ndarray) and x.dtype == np.int64 and x.ndim == 1 for x in lists):
        flat = np.concatenate(lists)
    else:
        flat = [*chain.from_iterable(ids.tolist() if isinstance(ids, np.ndarray) else ids for ids in lists)]
    if not names:
        found = graph.nodes[adjacency.src].ids.lookup(flat)
        return found, [np.asarray(flat[p]).item() for p in np.flatnonzero(found < 0)]
    found = np.array([-1 - names[name] if name in names else 0 for name in flat], np.int64)
    outside = np.flatnonzero(found == 0)
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
