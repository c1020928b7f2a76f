"""Predicts how many rows a request to a graph model reads, when it comes.

    direct + share x below          what is remembered of its node
                                    where it was larger than predicted

`direct` are seeds and their neighbours, which are read even if all states are cached: counted from the
degrees of the request's own nodes, where no fanout bounds them. `below` are paths further down, as if no
two paths met and no rows were cached. `share` is learned from batches that ran: it is below 1 where paths
meet and where state caches have rows. It rises faster than it falls, since to take much for little is the
dearer error; but what was larger than predicted by far is no part of it: it was counted, waited and ran as
what it is, and says nothing of others.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from hopline.engine.guard import Guard
from hopline.engine.inline_features import INLINE_ROWS, LISTED_PER_ROW
from hopline.engine.request_ids import sides_of
from hopline.errors import BadRequest
from hopline.graph.live.view import LiveView
from hopline.sampling import Sampler, layer_key
from hopline.types import ExternalId, IdArray, InlineNode, ScoreRequest

if TYPE_CHECKING:
    from hopline.artifact import ModelSpec
    from hopline.graph.snapshot import Graph
    from hopline.scheduling.work import Work

#: Nodes of the larger made-up request by which a model is measured.
MEASURED = 33
#: Nodes that are remembered.
_REMEMBERED = 4096
#: How much one batch says of the share: most, and one that read more than twice what was predicted. Enough
#: to see within a few batches that others are asked for now, and too little for one of them to make the
#: next hundred look large.
_DOWN, _UP = 0.05, 0.25
#: Times the present share that one batch may say.
_CLIP = 8.0
#: Batches that read fewer rows than this are never surprising.
_SOME_ROWS = 256
_LEAST_SHARE, _MOST_SHARE = 1 / 1024, 16.0


class RequestSize:
    """Predicts rows for seeds, as (direct, below); see the module.

    Args:
        spec: its fanouts.
        graph: read by the constructor and by `rows`; for a live graph, a separate view that the caller
            has entered.
        num_hops: of the model.

    Attributes:
        per_seed: node type -> the mean prediction for one seed of it.
        links: node type -> (counts neighbours, rows below each) for each edge type into it.
        most_below: upper bound: the whole graph at each hop.
        by_degree: node types whose seeds differ: an edge type into them is read without a fanout.
    """

    def __init__(self, spec: ModelSpec, graph: Graph | LiveView, num_hops: int) -> None:
        fanouts = dict(sorted(spec.fanouts.items()))
        num_edges = {key: graph.edges[key].num_edges for key in fanouts}
        self.most_below = float(num_hops) * (
            sum(nodes.num_nodes for nodes in graph.nodes.values()) + sum(num_edges.values())
        )
        means = {
            key: num_edges[key] / max(1, graph.nodes[graph.edges[key].dst].num_nodes) for key in fanouts
        }
        # Rows below a node of each type that `hop` reaches; those of the last hop have none.
        below = dict.fromkeys(graph.nodes, 0.0)
        for hop in range(num_hops - 1, 0, -1):
            above = dict.fromkeys(graph.nodes, 0.0)
            for key, own in fanouts.items():
                bound, adjacency = _bound(own[hop : hop + 1], spec.max_degree), graph.edges[key]
                above[adjacency.dst] += min(bound, max(1.0, 2.0 * means[key])) * (
                    1.0 + below[adjacency.src]
                )
            below = above
        self.links: dict[str, list[tuple[Sampler, float]]] = {}
        self.per_seed = dict.fromkeys(graph.nodes, (1.0, 0.0))
        for key, own in fanouts.items():
            adjacency = graph.edges[key]
            bound = _bound(own[:1], spec.max_degree)
            fanout = -1 if math.isinf(bound) else int(bound)
            each = below[adjacency.src]
            sampler = Sampler(adjacency, fanout, "uniform", layer_key(0, 0, key))
            self.links.setdefault(adjacency.dst, []).append((sampler, each))
            direct, under = self.per_seed[adjacency.dst]
            edges = min(bound, max(1.0, means[key]))
            self.per_seed[adjacency.dst] = direct + edges, min(under + edges * each, self.most_below)
        self.by_degree = frozenset(
            name for name, links in self.links.items() if any(sampler.fanout < 0 for sampler, _ in links)
        )

    def rows(self, node_type: str, ids: IdArray) -> tuple[float, float]:
        """The prediction for known seeds int64 [n] of a type."""
        direct, below = float(ids.shape[0]), 0.0
        for sampler, each in self.links.get(node_type, ()):
            edges = sampler.bound(ids)
            direct += edges
            below += edges * each
        return direct, min(below, self.most_below)

    def described(self, node_type: str, nodes: Sequence[InlineNode]) -> tuple[float, float]:
        """The prediction for inline nodes: their lists are sampled, so that fanouts bound what is read."""
        direct, below = float(INLINE_ROWS * len(nodes)), 0.0
        links = {
            sampler.adjacency.key: (sampler.fanout, each) for sampler, each in self.links.get(node_type, ())
        }
        only = next(iter(links.values()), (0, 0.0))  # that the empty name means
        for node in nodes:
            for key, ids in node.neighbors.items():
                listed = len(ids)
                fanout, each = links.get(key, only if not key else (0, 0.0))
                edges = listed if fanout < 0 else min(listed, fanout)
                rows = node.edge_attr.get(key, ())
                are_encoded = len(rows) and isinstance(rows[0], Mapping)
                direct += edges + (listed * INLINE_ROWS if are_encoded else listed / LISTED_PER_ROW)
                below += edges * each
        return direct, min(below, self.most_below)


def _bound(fanout: Sequence[int], max_degree: int | None) -> float:
    """Largest number of edges of a node at a hop with this fanout; 0 where there is no such hop."""
    if not fanout:
        return 0.0
    bound = float(fanout[0]) if fanout[0] >= 0 else math.inf
    return bound if max_degree is None else min(bound, max_degree)


class PredictedRows:
    """Predicts the rows of requests to one model on one graph.

    Attributes:
        direct, below: for a node of which nothing is known.
        share: see the module.
        large: the only node (or pair) of requests that were large -> rows that they read.
        differs: True if nodes differ, so that `of` knows more than a product with the number of nodes.
    """

    def __init__(self, spec: ModelSpec, graph: Graph | LiveView, num_hops: int) -> None:
        self._spec, head = spec, spec.head
        self._graph = graph
        if isinstance(graph, LiveView):
            self._graph = graph.beside("sizes")
            with self._graph:
                self._size = RequestSize(spec, self._graph, num_hops)
        else:
            self._size = RequestSize(spec, graph, num_hops)
        #: Of the nodes that are asked for; None where the graph changes, or requests name their type.
        is_plain = not isinstance(graph, LiveView) and not spec.heads
        self._index = graph.nodes[head.node_type].ids if is_plain else None
        #: So many of them are their own row numbers.
        self._num_range = len(self._index) if self._index is not None and self._index.kind == "range" else 0
        #: (where lists of neighbours begin, if known; counts them; rows below each) of their edge types.
        self._lists = [
            (sampler.starts if sampler.fanout < 0 else None, sampler, each)
            for sampler, each in self._size.links.get(head.node_type, ())
        ]
        types = {*spec.by_type, head.dst_node_type or head.node_type}
        self.direct, self.below = max(self._size.per_seed[name] for name in types)
        self.share = 1.0
        self._by_degree = self.differs = bool(self._size.by_degree.intersection(types))
        self.large: dict[_Key, int] = {}

    def of(self, request: ScoreRequest, num_seeds: int) -> tuple[float, float]:
        """(direct, below) of a request."""
        if request.inline or request.context:
            own = request.node_type or self._spec.head.node_type
            direct, below = self._size.described(own, request.inline)
            parts = [self.of(replace(request, inline=(), context=()), num_seeds - len(request.inline))]
            parts += [self._size.described(each.type or own, [each]) for each in request.context]
            return direct + sum(part[0] for part in parts), below + sum(part[1] for part in parts)
        if request.edits or request.excludes:  # all below is sampled, to see what they reach
            plain = replace(request, edits=(), exclude_seed_edges="")
            return sum(self.of(plain, num_seeds)), 0.0
        if self.large:
            rows = self.large.get(_only(request), 0)
            if rows:
                return rows, 0.0
        if not self._by_degree:
            return num_seeds * self.direct, num_seeds * self.below
        nodes, graph = request.nodes, self._graph
        if num_seeds == 1 and len(nodes) == 1 and self._index is not None:
            # All in one place, without calls and arrays: each request comes by here.
            node = nodes.item(0) if type(nodes) is np.ndarray else nodes[0]
            if type(node) is not int or not 0 <= node < self._num_range:
                try:
                    node = self._index.lookup(nodes).item(0)
                except BadRequest:
                    node = -1  # the batch reports it
                if node < 0:
                    return 1.0, 0.0
            direct, below = 1.0, 0.0
            for starts, sampler, each in self._lists:
                if starts is None:
                    edges = sampler.bound(np.array([node]))
                else:
                    edges = starts.item(node + 1) - starts.item(node)
                direct += edges
                below += edges * each
            return direct, below if below < self._size.most_below else self._size.most_below
        if not isinstance(graph, LiveView):
            return self._counted(graph, request, num_seeds)
        with graph:
            return self._counted(graph, request, num_seeds)

    def learn(self, batch: Sequence[Work], rows: int, *, is_first: bool = False) -> float:
        """A batch read so many rows.

        Args:
            batch: with what was predicted for it, see `Work`.
            is_first: forget what was before.

        Returns: what is predicted now for a node of which nothing is known.
        """
        direct = below = 0.0
        for item in batch:
            if item.direct < 0:
                direct += item.num_seeds * self.direct
                below += item.num_seeds * self.below
            else:
                direct += item.direct
                below += item.below
        if below >= 1.0 and rows:
            seen = max(0.0, rows - direct) / below
            if is_first:
                self.share = max(_LEAST_SHARE, min(seen, _MOST_SHARE))
            else:
                seen = max(_LEAST_SHARE, min(seen, _CLIP * self.share, _MOST_SHARE))
                is_surprise = seen > 2.0 * self.share and rows > _SOME_ROWS
                self.share += (_UP if is_surprise else _DOWN) * (seen - self.share)
        return self.direct + self.share * self.below

    def remember(self, request: ScoreRequest, rows: int, some: int) -> None:
        """A request read so many rows: what it is about is large, unless these are no more than `some`."""
        key = _only(request)
        if not key:
            return
        if rows <= some:
            self.large.pop(key, None)
            return
        self.differs = True
        self.large[key] = rows
        if len(self.large) > _REMEMBERED:
            del self.large[next(iter(self.large))]

    def knows(self, request: ScoreRequest) -> bool:
        """True if what it is about was large."""
        return _only(request) in self.large

    def _counted(
        self, graph: Graph | LiveView, request: ScoreRequest, num_seeds: int
    ) -> tuple[float, float]:
        direct = below = 0.0
        others = num_seeds
        for node_type, external in sides_of(self._spec, request):
            if not len(external):
                continue
            try:
                ids: IdArray = graph.nodes[node_type].ids.lookup(external)
            except BadRequest:
                continue  # the batch reports it
            if ids.shape[0] > 1 or ids[0] < 0:
                ids = np.unique(ids[ids >= 0])
            others -= len(external)
            own, under = self._size.rows(node_type, ids)
            direct += own
            below += under
        return direct + others * self.direct, below + others * self.below


_Key = tuple[ExternalId, ...]


def first_costs(
    preflight: Callable[[IdArray], object], guard: Guard, num_nodes: int
) -> tuple[IdArray, tuple[int, int], tuple[float, float]]:
    """Times of made-up requests for one node and for `MEASURED` nodes, from all over the graph.

    Returns: (the nodes, rows of both requests, microseconds of processor time of both).
    """

    def cost_of(local_ids: IdArray) -> tuple[float, int]:
        guard.rows = 0
        began = time.thread_time()
        preflight(local_ids)
        return (time.thread_time() - began) * 1e6, guard.rows

    nodes = np.linspace(0, num_nodes - 1, MEASURED + 3, dtype=np.int64)
    few = min(cost_of(node[None]) for node in nodes[:3])
    many = cost_of(nodes[3:])
    return nodes[3:], (few[1], many[1]), (few[0], many[0])


def _only(request: ScoreRequest) -> _Key:
    """The one node or pair that a request is about; () where it is about more."""
    if request.inline or request.context or request.edits or request.excludes:
        return ()
    if (ends := request.ends) is not None:
        sources, targets = ends
        edge = request.edges[0].id if request.edges else None
        own = (sources[0], targets[0]) if edge is None else (edge,)
        return own if len(sources) == 1 else ()
    return (request.nodes[0], *filter(None, [request.node_type])) if len(request.nodes) == 1 else ()
