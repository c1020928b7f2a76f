"""Reads the edits of a request (`if`) as an overlay: known nodes get other rows and other in-neighbours.

Edits apply in order, as events of a live graph do: a removal removes all edges from one node to another, or
those of one time. Lists are in the order of a graph that is built from the edited edges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from hopline.engine.inline import check_kinds, edge_columns, node_rows, parse_inline
from hopline.engine.model import Model
from hopline.engine.overlay import ADDED, Lists, Overlay, offsets_of
from hopline.engine.scored_edges import NamedEdges, described_ends
from hopline.errors import BadRequest, NodeNotFound, RequestTooLarge
from hopline.sampling.keyed import NO_CUT
from hopline.types import (
    AnyArray,
    ContextNode,
    EdgeEdit,
    Edit,
    ExternalIds,
    FloatArray,
    IdArray,
    ScoreRequest,
)

_NO_TIMES = (
    "the model {}, and a request cannot change the graph for it, with or without times of edges: no `if`, "
    "inline nodes or exclude_seed_edges that change what it reads. Build a graph with the change and score "
    "there, or ask a model {}"
)


def overlays_of(
    model: Model, request: ScoreRequest, max_neighbors: int, as_of: int, named: NamedEdges | None = None
) -> list[tuple[int, Overlay]]:
    """The overlays of a request that changes the graph for itself, in the order of `Overlay.joined`.

    Returns: (0, overlay); where each pair has a separate graph, (pair, overlay) of those that differ, and
        (number of pairs, overlay) for the others.

    Raises: BadRequest, NodeNotFound, RequestTooLarge: as `parse_inline`; an edit that cannot be made.
    """
    head, found, others = model.spec.head, list[tuple[int, Overlay]](), 0
    if model.spec.windows and (request.edits or request.inline or request.context):
        raise BadRequest(_NO_TIMES.format("has windows of time", "packaged without windows="))
    if request.excludes and request.ends is not None:
        types = head.node_type, head.dst_node_type or head.node_type
        by_id = (None, None) if named is None else named.sides
        ends = [_known(model, request, *side) for side in zip(types, request.ends, by_id, strict=True)]
        for i, (source, target) in enumerate(zip(*ends, strict=True)):
            if source >= 0 and target >= 0:
                edits = _Edits(model, max_neighbors, as_of, "exclude_seed_edges")
                edits.make(request.edits)
                is_both = request.exclude_seed_edges == "reverse"
                edits.exclude(types, source, target, f"exclude_seed_edges: pair {i}", both=is_both)
                if edits.lists or edits.rows:
                    found.append((i, edits.overlay()))
        others = len(ends[0])
    if request.edits:
        edits = _Edits(model, max_neighbors, as_of)
        edits.make(request.edits)
        found.append((others, edits.overlay()))
    if request.inline or request.context:
        found.append((others, parse_inline(model, request.inline, max_neighbors, request.context)))
    if found and model.spec.windows:
        raise BadRequest(_NO_TIMES.format("has windows of time", "packaged without windows="))
    for key in model.reads_time:
        if any((each.lists[key].positions < 0).any() for _, each in found if key in each.lists):
            raise BadRequest(_NO_TIMES.format(f"reads times of {key!r}", "that reads no times"))
    return found


def _known(
    model: Model, request: ScoreRequest, node_type: str, external: ExternalIds, named: IdArray | None
) -> list[int]:
    """Rows of one side of the pairs; -1 for ends that the graph lacks, and for those that `context` has."""
    found, left = described_ends(request, external, node_type, model.spec.head.node_type, named)
    rows = np.where(found >= ADDED, -1, found)
    if left:
        rows[found == -1] = model.graph.nodes[node_type].ids.lookup(left)
    known: list[int] = rows.tolist()
    return known


class _Edits:
    """Reads edits against one model and its graph.

    Attributes:
        lists: edge type -> destination -> "neighbors", "positions" (as in `Lists`) and "time" of its edges.
        added: edge type -> weight and attributes of each added edge, [1] and [1, d_e], or [0].
        rows: node type -> node -> float32 [1, d].
    """

    def __init__(self, model: Model, max_neighbors: int, as_of: int, name: str = "if") -> None:
        self._model, self._graph, self._spec = model, model.graph, model.spec
        self._max_neighbors, self._as_of, self._name = max_neighbors, as_of, name
        self.lists: dict[str, dict[int, dict[str, AnyArray]]] = defaultdict(dict)
        self.added: dict[str, list[tuple[FloatArray, FloatArray]]] = defaultdict(list)
        self.rows: dict[str, dict[int, FloatArray]] = defaultdict(dict)
        levels = [level for stages in model.levels for level in stages.values()]
        if model.sources or model.is_stored:
            raise BadRequest(
                f"{name}: features or edges of this graph lie in a store, which no request edits"
            )
        if any(level.structure is not None for level in levels):
            raise BadRequest(
                f"{name}: a student reads rows that were computed from the graph; ask its teacher"
            )
        packed = any(each.sampler.packed for level in levels for each in level.relations.values())
        if self._spec.sampling == "weighted" and packed:
            # Its running sums are of codes: a draw at a boundary could differ from that of an edited list.
            raise BadRequest(f"{name}: the model samples by weight, and the graph's weights are compressed")

    def make(self, edits: Sequence[Edit]) -> None:
        """Make edits, after those that were made before."""
        for i, edit in enumerate(edits):
            if edit.set is not None:
                self._set(edit.set, f"if[{i}].set")
            elif edit.remove_edge is not None:
                self._remove(edit.remove_edge, f"if[{i}].remove_edge")
            elif edit.add_edge is not None:
                self._add(edit.add_edge, f"if[{i}].add_edge")

    def exclude(self, types: tuple[str, str], source: int, target: int, where: str, *, both: bool) -> None:
        """Remove all edges from one node to another, and with `both` those back."""
        for key, each in self._graph.schema.own_edge_types.items():
            if (each.src, each.dst) == types:
                self._take(key, source, target, where)
            if both and (each.dst, each.src) == types:
                self._take(key, target, source, where)

    def overlay(self) -> Overlay:
        """The graph as it is after the edits."""
        rows = {}
        for name, own in self.rows.items():
            nodes = sorted(own)
            rows[name] = np.array(nodes), np.concatenate([own[node] for node in nodes])
        return Overlay(rows, {key: self._joined(key) for key in self.lists}, edits_known=True)

    def _joined(self, key: str) -> Lists:
        """The lists of an edge type in canonical order, up to the cut."""
        own, adjacency = self.lists[key], self._graph.edges[key]
        nodes = np.array(sorted(own))
        growth = sum(len(own[node]["positions"]) for node in nodes) - int(adjacency.degree(nodes).sum())
        if key in self._spec.types_nonempty and growth < 0 and adjacency.num_edges + growth <= 0:
            raise BadRequest(
                f"{self._name}: {key!r} would have no edges; the model takes another branch then"
            )
        parts = []
        for node in nodes.tolist():
            columns = own[node]
            time = columns.get("time")
            order = np.lexsort((columns["neighbors"],) if time is None else (columns["neighbors"], time))
            if time is not None and self._as_of != NO_CUT:
                order = order[time[order] <= self._as_of]
            parts.append((columns["neighbors"][order], columns["positions"][order]))
        neighbors, positions = (np.concatenate(column) for column in zip(*parts, strict=True))
        schema = self._graph.schema.edge_types[key]
        none = np.empty(0, np.float32), np.empty((0, schema.attr_dim), np.float32)
        weight, attr = (np.concatenate(column) for column in zip(none, *self.added[key], strict=True))
        counts = np.array([len(own_neighbors) for own_neighbors, _ in parts])
        return Lists(nodes, offsets_of(counts), neighbors, positions, weight, attr)

    def _set(self, edit: ContextNode, where: str) -> None:
        name = edit.type or self._spec.head.node_type
        if name not in self._graph.nodes:
            known = ", ".join(map(repr, self._graph.nodes))
            raise BadRequest(f"{where}.type: {name!r} is no node type; the graph has {known}")
        if name in self._spec.embeddings:
            raise BadRequest(f"{where}: nodes of type {name!r} have learned rows, which no request sets")
        if edit.neighbors or edit.edge_attr or edit.edge_weight:
            raise BadRequest(f"{where} has a node's row; its edges are separate edits")
        node = self._node(name, edit.id, f"{where}.id")
        encoder = self._model.encoders.get(name)
        self.rows[name][node] = node_rows({where: edit}, name, self._graph, self._spec, encoder)

    def _remove(self, edit: EdgeEdit, where: str) -> None:
        if edit.edge_weight is not None or edit.edge_attr is not None:
            raise BadRequest(f"{where}: an edge is removed by its ends and time, whatever its data are")
        key, source, target = self._ends(edit, where)
        if edit.time is not None and self._graph.edges[key].time is None:
            raise BadRequest(f"{where}.time: edge type {key!r} has no times")
        if not self._take(key, source, target, where, edit.time):
            at = "" if edit.time is None else f" at {edit.time}"
            raise BadRequest(f"{where}: no edge from {edit.src!r} to {edit.dst!r}{at} in {key!r}")

    def _take(self, key: str, source: int, target: int, where: str, time: int | None = None) -> bool:
        """Remove edges, and return True if there were any."""
        gone = np.zeros(0, np.bool_)
        for name, first, last in self._directions(key, source, target):
            own = self._edited(name, last, where)
            gone = own["neighbors"] == first
            if time is not None:
                gone &= own["time"] == time
            if gone.any():
                self.lists[name][last] = {what: column[~gone] for what, column in own.items()}
        return bool(gone.any())

    def _add(self, edit: EdgeEdit, where: str) -> None:
        own_key, *own_ends = self._ends(edit, where)
        ends = self._directions(own_key, *own_ends)
        if (edit.time is None) != (self._graph.edges[own_key].time is None):
            has = "times; give one" if edit.time is None else "no times"
            raise BadRequest(f"{where}.time: edge type {own_key!r} has {has}")
        sent: dict[str, list[Any]] = {
            "edge_weight": [None if edit.edge_weight is None else [edit.edge_weight]],
            "edge_attr": [None if edit.edge_attr is None else [edit.edge_attr]],
        }
        is_read = any(key in self._model.reads_attr for key, *_ in ends)
        values = edge_columns(self._model, own_key, sent, [[edit.src]], [where], is_read=is_read)
        for key, source, target in ends:
            self.added[key].append(values)
            place, edited = -len(self.added[key]), self._edited(key, target, where)
            new: dict[str, Any] = {"neighbors": source, "positions": place, "time": edit.time}
            own = {name: np.append(column, new[name]) for name, column in edited.items()}
            self.lists[key][target] = own
            neighbors = own["neighbors"]
            check_kinds(self._spec, key, where, neighbors, target, values[0], [edit.src] * len(neighbors))

    def _edited(self, key: str, node: int, where: str) -> dict[str, AnyArray]:
        """The list of a node, as it is so far."""
        found = self.lists[key].get(node) if key in self.lists else None
        if found is None:
            adjacency, ids = self._graph.edges[key], np.array([node])
            start, count = adjacency.starts(ids).item(), adjacency.degree(ids).item()
            if count > self._max_neighbors:
                raise RequestTooLarge(
                    f"{where}: a node with {count} in-neighbours in {key!r}; lists of at most "
                    f"{self._max_neighbors} can be edited (limits.max_inline_neighbors)"
                )
            positions = np.arange(start, start + count)
            found = {"neighbors": adjacency.indices[positions].astype(np.int64), "positions": positions}
            if adjacency.time is not None:
                found["time"] = adjacency.time[positions]
        return found

    def _ends(self, edit: EdgeEdit, where: str) -> tuple[str, int, int]:
        """Edge type, source and destination."""
        schema = self._graph.schema
        own = schema.own_edge_types
        key = edit.type or (next(iter(own)) if len(own) == 1 else "")
        if key not in own:
            wrong = f"{key!r} is no edge type" if key else "the edge type is missing"
            raise BadRequest(f"{where}.type: {wrong}; the graph has {', '.join(own)}")
        source = self._node(own[key].src, edit.src, f"{where}.from")
        target = self._node(own[key].dst, edit.dst, f"{where}.to")
        return key, source, target

    def _directions(self, key: str, source: int, target: int) -> list[tuple[str, int, int]]:
        """Edge type, source and destination; also those of the type that has the edge reversed."""
        edge_types = self._graph.schema.edge_types
        turned = [name for name, each in edge_types.items() if each.reverse_of == key]
        return [(key, source, target), *((name, target, source) for name in turned)]

    def _node(self, node_type: str, external: Any, where: str) -> int:
        if external is None:
            raise BadRequest(f"{where} is missing")
        found: IdArray = self._graph.nodes[node_type].ids.lookup([external])
        if found.item() < 0:
            raise NodeNotFound(f"{where}: {external!r} is not in graph {self._graph.version}", [external])
        return found.item()
