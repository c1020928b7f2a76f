"""What of the graph a request reads: raw features, in-degrees, features of neighbours, unknown nodes.

Read again from the snapshot, on the monitor's thread: the engine is not touched. Neighbours are drawn
anew, since their distribution is what counts and not which of them a model's sampler took.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from hopline.engine.ego import EgoModel
from hopline.engine.model import Model
from hopline.errors import NodeNotFound
from hopline.graph import Adjacency
from hopline.records.drift.answers import chosen_rows
from hopline.records.drift.observed import DEGREE, Observed, Quantity
from hopline.types import AnyArray, FloatArray, IdArray, InlineNode, ScoreRequest

#: In-neighbours of a node whose features are looked at, and nodes of one look.
MAX_NEIGHBORS = 16
MAX_SEEDS = 1024

_PRESENCE = Quantity("graph", "presence")


class Structure:
    """Reads around the nodes of requests to one model.

    Args:
        model: it is only read.
        max_columns: feature columns of a node type that are watched, the first ones.
        columns: names of those to watch instead; empty for the first ones.
        random: chooses rows and neighbours.
    """

    def __init__(
        self, model: Model | EgoModel, max_columns: int, columns: Sequence[str], random: np.random.Generator
    ) -> None:
        self._model = model
        self._max_columns = max_columns
        self._columns = columns
        self._random = random
        head = model.spec.head
        self._types = (head.node_type, head.dst_node_type or head.node_type)
        #: node type -> edge types that lead to it and that the model reads
        self._edges: dict[str, list[Adjacency]] = {}
        for key in model.spec.fanouts:
            edges = model.graph.edges[key]
            self._edges.setdefault(edges.dst, []).append(edges)

    def read(self, requests: Sequence[ScoreRequest], outcomes: Sequence[Any], into: Observed) -> None:
        """Take note of the nodes of requests; those about another time are left out."""
        pairs = zip(requests, outcomes, strict=True)
        now = [(request, outcome) for request, outcome in pairs if request.as_of is None]
        unknown = [outcome for _, outcome in now if isinstance(outcome, NodeNotFound)]
        into.categories(_PRESENCE, ["unknown"] * sum(len(outcome.missing) for outcome in unknown))
        answered = [request for request, outcome in now if not isinstance(outcome, NodeNotFound)]
        if self._model.spec.head.kind == "link":
            linked = [request.pairs for request in answered if request.pairs is not None]
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
        ids = self._model.graph.nodes[node_type].ids.lookup(list(chain.from_iterable(wanted)))
        known = ids[ids >= 0][:MAX_SEEDS]
        into.categories(_PRESENCE, ["known"] * known.shape[0] + ["unknown"] * int((ids < 0).sum()))
        if known.shape[0]:
            self.read_nodes(known, node_type, prefix, into)

    def read_nodes(self, ids: IdArray, node_type: str, prefix: str, into: Observed) -> None:
        """Take features, degrees and neighbours of nodes; ids: int64 [n] global ids."""
        rows = self._features(node_type, ids)
        for at, name in self._named(node_type):
            into.numbers(Quantity("input", prefix + name), rows[:, at].copy())
        leading = self._edges.get(node_type, [])
        for edges in leading:
            suffix = f" {edges.relation}" if len(leading) > 1 else ""
            into.numbers(Quantity("graph", f"{DEGREE}{suffix}{_of(prefix)}"), edges.degree(ids))
            means = self._neighbor_means(edges, ids)
            for at, name in self._named(edges.src):
                into.numbers(Quantity("neighbor", f"{prefix}{name}{suffix}"), means[:, at].copy())

    def _read_inline(self, nodes: Sequence[InlineNode], into: Observed) -> None:
        into.categories(_PRESENCE, ["inline"] * len(nodes))
        rows = np.array([node.features for node in nodes], np.float32)
        for at, name in self._named(self._types[0]):
            into.numbers(Quantity("input", name), rows[:, at].copy())
        leading = self._edges.get(self._types[0], [])
        for edges in leading:
            suffix = f" {edges.relation}" if len(leading) > 1 else ""
            counts = [_length(node, edges, alone=len(leading) == 1) for node in nodes]
            into.numbers(Quantity("graph", f"{DEGREE}{suffix}"), counts)

    def _named(self, node_type: str) -> list[tuple[int, str]]:
        """(column, name) of each watched feature of a node type."""
        schema = self._model.graph.schema.node_types[node_type]
        names = schema.feature_names or [f"f{column}" for column in range(schema.feature_dim)]
        watched = list(enumerate(names))
        if self._columns:
            watched = [(at, name) for at, name in watched if name in self._columns]
        return watched[: self._max_columns]

    def _features(self, node_type: str, ids: IdArray) -> FloatArray:
        """float32 [n, dim]; NaN where a store's row is not near."""
        source = getattr(self._model, "sources", {}).get(node_type)
        if source is None:
            rows: FloatArray = self._model.graph.nodes[node_type].features[ids].astype(np.float32)
            return rows
        dim = self._model.graph.schema.node_types[node_type].feature_dim
        rows = np.empty((ids.shape[0], dim), np.float32)
        rows[source.read(ids, rows, stale=True)] = np.nan
        return rows

    def _neighbor_means(self, edges: Adjacency, ids: IdArray) -> AnyArray:
        """Mean features of some in-neighbours, float64 [n, dim]; NaN where a node has none."""
        degrees = edges.degree(ids)
        places = np.arange(MAX_NEIGHBORS)
        drawn = (self._random.random((ids.shape[0], MAX_NEIGHBORS)) * degrees[:, None]).astype(np.int64)
        offsets = np.where(degrees[:, None] <= MAX_NEIGHBORS, places, drawn)
        at, which = (places < degrees[:, None]).nonzero()
        neighbors = edges.indices[edges.indptr[ids[at]] + offsets[at, which]].astype(np.int64)
        distinct, back = np.unique(neighbors, return_inverse=True)
        rows = self._features(edges.src, distinct)[back].astype(np.float64)
        present = ~np.isnan(rows).any(axis=1) if rows.shape[1] else np.ones(at.shape[0], np.bool_)
        sums = np.zeros((ids.shape[0], rows.shape[1]))
        np.add.at(sums, at[present], rows[present])
        counts = np.bincount(at[present], minlength=ids.shape[0]).astype(np.float64)
        counts[counts == 0] = np.nan
        means: AnyArray = sums / counts[:, None]
        return means


def _some(ids: Any, random: np.random.Generator) -> list[Any]:
    rows = chosen_rows(len(ids), random)
    return ids[rows].tolist() if isinstance(ids, np.ndarray) else [ids[row] for row in rows]


def _length(node: InlineNode, edges: Adjacency, *, alone: bool) -> int:
    """Neighbours that an inline node names along an edge type."""
    count = len(node.neighbors.get(edges.key, ()))
    return count + (len(node.neighbors.get("", ())) if alone else 0)


def _of(prefix: str) -> str:
    return f" of {prefix.strip()}" if prefix else ""
