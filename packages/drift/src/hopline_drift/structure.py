"""Reads the graph around requests: raw features, in-degrees, features of neighbours, unknown nodes.

The monitor's thread reads the snapshot again and does not touch the engine. It samples other neighbours
than the model's sampler did, which have the same distribution.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from hopline.artifact import ModelSpec
from hopline.engine.encoders import RowEncoder
from hopline.errors import NodeNotFound
from hopline.graph import Adjacency, Graph
from hopline.graph.live.view import LiveAdjacency, LiveNodes, LiveView
from hopline.graph.stored_columns import values_of
from hopline.types import AnyArray, FloatArray, IdArray, InlineNode, ScoreRequest
from hopline_drift.answers import chosen_rows
from hopline_drift.observed import DEGREE, Kind, Observed, Quantity

if TYPE_CHECKING:
    from hopline.engine.model import Model

#: Most in-neighbours of a node whose features are read.
MAX_NEIGHBORS = 8
#: Most nodes per read, and per part of a read.
MAX_SEEDS = 512
_PIECE = 128

_PRESENCE = Quantity("graph", "presence")


class Packaged(NamedTuple):
    """The parts of a graph model that are read, without its runtime.

    Attributes:
        encoders: node type or edge type -> its preprocessing. sources: node type -> the source of features
            that the graph does not hold.
    """

    spec: ModelSpec
    graph: Graph | LiveView
    encoders: Mapping[str, RowEncoder] = {}
    sources: Mapping[str, Any] = {}


GraphModel: TypeAlias = "Model | Packaged"


class Structure:
    """Reads the neighbourhoods of nodes in requests to one model.

    Args:
        model: the model, which is only read.
        max_columns: number of watched feature columns of a node type, the first ones.
        columns: names of columns to watch instead; empty: the first ones.
        random: chooses rows and neighbours.
        rest: called between pieces of work.
    """

    def __init__(
        self,
        model: GraphModel,
        max_columns: int,
        columns: Sequence[str],
        random: np.random.Generator,
        rest: Callable[[], object],
    ) -> None:
        self._rest = rest
        self._model = model
        self._max_columns = max_columns
        self._columns = columns
        self._random = random
        head = model.spec.head
        self._types = (head.node_type, head.dst_node_type or head.node_type)
        #: node type -> edge types with this destination that the model reads
        self._edges: dict[str, list[Adjacency | LiveAdjacency]] = {}
        for key in model.spec.fanouts:
            edges = model.graph.edges[key]
            self._edges.setdefault(edges.dst, []).append(edges)

    def read(self, requests: Sequence[ScoreRequest], outcomes: Sequence[Any], into: Observed) -> None:
        """Read the nodes of requests, except requests with a time cut or edits."""
        pairs = zip(requests, outcomes, strict=True)
        now = [each for each in pairs if each[0].as_of is None and not each[0].edits]
        unknown = [outcome for _, outcome in now if isinstance(outcome, NodeNotFound)]
        into.categories(_PRESENCE, ["unknown"] * sum(len(outcome.missing) for outcome in unknown))
        answered = [request for request, outcome in now if not isinstance(outcome, NodeNotFound)]
        if self._model.spec.head.kind == "link":
            linked = [ends for request in answered if (ends := request.ends) is not None]
            for side, prefix in enumerate(("source ", "destination ")):
                self._read_side([pair[side] for pair in linked], self._types[side], prefix, into)
            return
        self._read_side([request.nodes for request in answered], self._types[0], "", into)
        inline = [node for request in answered for node in request.inline]
        if inline:
            self._read_inline(inline[:MAX_SEEDS], into)

    def _read_side(self, external: Sequence[Any], node_type: str, prefix: str, into: Observed) -> None:
        wanted = [_some(ids, self._random) for ids in external if len(ids)]
        if not wanted:
            return
        external_ids = list(chain.from_iterable(wanted))[:MAX_SEEDS]
        ids = self._model.graph.nodes[node_type].ids.lookup(external_ids)
        known = ids[ids >= 0]
        into.categories(_PRESENCE, ["known"] * known.shape[0] + ["unknown"] * int((ids < 0).sum()))
        for first in range(0, known.shape[0], _PIECE):
            self.read_nodes(known[first : first + _PIECE], node_type, prefix, into)

    def read_nodes(self, ids: IdArray, node_type: str, prefix: str, into: Observed) -> None:
        """Read features, degrees, neighbours and edges of nodes; ids: int64 [n] global ids."""
        graph = self._model.graph
        with graph if isinstance(graph, LiveView) else contextlib.nullcontext():
            self._rest()
            nodes, encoder = graph.nodes[node_type], self._model.encoders.get(node_type)
            if encoder is None or node_type in self._model.sources:  # rows are kept encoded
                self._take("input", prefix, "", node_type, self._features(node_type, ids), into)
            elif isinstance(nodes, LiveNodes):
                cells = nodes.cells(LiveNodes.slots(nodes, ids))  # of the columns: nothing is encoded
                values = values_of(nodes.column_schemas, *cells)
                self._take_columns("input", (prefix, ""), encoder, values, into)
            elif nodes.columns is not None:
                self._take_columns("input", (prefix, ""), encoder, nodes.columns.values(ids), into)
            leading, side = self._edges.get(node_type, []), f" of {prefix.strip()}" if prefix else ""
            for edges in leading:
                suffix = f" {edges.relation}" if len(leading) > 1 else ""
                self._rest()
                into.numbers(Quantity("graph", f"{DEGREE}{suffix}{side}"), edges.degree(ids))
                at, positions = self._some_edges(edges, ids)
                means = self._neighbor_means(edges, at, positions, len(ids))
                self._take("neighbor", prefix, suffix, edges.src, means, into)
                own = graph.schema.edge_types[edges.key].reverse_of or edges.key
                if encoder := self._model.encoders.get(own):
                    values = self._edge_values(edges, own, positions)
                    self._take_columns("edge", (prefix, suffix), encoder, values, into)

    def _take(
        self, kind: Kind, prefix: str, suffix: str, node_type: str, rows: AnyArray, into: Observed
    ) -> None:
        """Add feature rows [n, watched columns]."""
        for at, (_, name) in enumerate(self._named(node_type)):
            into.numbers(Quantity(kind, f"{prefix}{name}{suffix}"), rows[:, at])

    def _take_columns(
        self, kind: Kind, ends: tuple[str, str], encoder: RowEncoder, values: dict[str, Any], into: Observed
    ) -> None:
        """Add values of columns as tables have them: categories by name, not what encodes them."""
        types = {column["name"]: column["type"] for column in encoder.columns}
        wanted = [name for name in types if name in values and name in (self._columns or types)]
        for name in wanted[: self._max_columns]:
            take = into.categories if types[name] == "text" else into.numbers
            take(Quantity(kind, name.join(ends)), values[name])

    def _read_inline(self, nodes: Sequence[InlineNode], into: Observed) -> None:
        into.categories(_PRESENCE, ["inline"] * len(nodes))
        encoder = self._model.encoders.get(self._types[0])
        if encoder is None:
            columns = [at for at, _ in self._named(self._types[0])]
            rows = np.array([[node.features[at] for at in columns] for node in nodes], np.float32)
            self._take("input", "", "", self._types[0], rows, into)
        else:
            given = [node.columns for node in nodes]
            self._take_columns("input", ("", ""), encoder, encoder.read(given, [""] * len(given)), into)
        leading = self._edges.get(self._types[0], [])
        for edges in leading:
            suffix = f" {edges.relation}" if len(leading) > 1 else ""
            keys = (edges.key, "") if len(leading) == 1 else (edges.key,)
            counts = [sum(len(node.neighbors.get(key, ())) for key in keys) for node in nodes]
            into.numbers(Quantity("graph", f"{DEGREE}{suffix}"), counts)
            sent = [row for node in nodes for key in keys for row in node.edge_attr.get(key, ())]
            if sent and (encoder := self._model.encoders.get(edges.key)):
                values = encoder.read(sent, [""] * len(sent))
                self._take_columns("edge", ("", suffix), encoder, values, into)

    def _named(self, node_type: str) -> list[tuple[int, str]]:
        """(column, name) of each watched feature of a node type."""
        schema = self._model.graph.schema.node_types[node_type]
        names = schema.feature_names or [f"f{column}" for column in range(schema.feature_dim)]
        watched = list(enumerate(names))
        if self._columns:
            watched = [(at, name) for at, name in watched if name in self._columns]
        return watched[: self._max_columns]

    def _features(self, node_type: str, ids: IdArray) -> FloatArray:
        """float32 [n, watched columns]; NaN where a row of a store is not in the L1 feature cache."""
        columns = np.array([at for at, _ in self._named(node_type)], np.int64)
        source = self._model.sources.get(node_type)
        if source is None:
            features = self._model.graph.nodes[node_type].features
            near: FloatArray = features[ids][:, columns].astype(np.float32)
            return near
        dim = self._model.graph.schema.node_types[node_type].feature_dim
        rows = np.empty((ids.shape[0], dim), np.float32)
        rows[source.read(ids, rows, stale=True)[0]] = np.nan
        return rows[:, columns]

    def _some_edges(self, edges: Adjacency | LiveAdjacency, ids: IdArray) -> tuple[IdArray, IdArray]:
        """Some edges into nodes: rows of `ids`, and the positions of the edges."""
        degrees = edges.degree(ids)
        places = np.arange(MAX_NEIGHBORS)
        drawn = (self._random.random((ids.shape[0], MAX_NEIGHBORS)) * degrees[:, None]).astype(np.int64)
        offsets = np.where(degrees[:, None] <= MAX_NEIGHBORS, places, drawn)
        at, which = (places < degrees[:, None]).nonzero()
        return at, edges.starts(ids)[at] + offsets[at, which]

    def _edge_values(self, edges: Any, own: str, positions: IdArray) -> dict[str, Any]:
        """Columns of edges; {} of a stored type that is derived, since its columns have another order."""
        if isinstance(edges, Adjacency):
            return {} if edges.columns is None else edges.columns.values(positions)
        rows: Any = self._model.graph.edges[own]
        return values_of(rows.column_schemas, *rows.cells(edges.slots(positions)))

    def _neighbor_means(
        self, edges: Adjacency | LiveAdjacency, at: IdArray, positions: IdArray, count: int
    ) -> AnyArray:
        """Mean features of some in-neighbours, float64 [n, watched columns]; NaN without neighbours."""
        rows = self._features(edges.src, edges.indices[positions].astype(np.int64))
        self._rest()
        near = ~np.isnan(rows).any(axis=1)
        means = np.full((count, rows.shape[1]), np.nan)
        owners, firsts, counts = np.unique(at[near], return_index=True, return_counts=True)
        if owners.shape[0]:  # sorted by owner
            sums = np.add.reduceat(rows[near].astype(np.float64), firsts, axis=0)
            means[owners] = sums / counts[:, None]
        return means


def _some(ids: Any, random: np.random.Generator) -> list[Any]:
    rows = chosen_rows(len(ids), random)
    return ids[rows].tolist() if isinstance(ids, np.ndarray) else [ids[row] for row in rows]
