"""How many rows a request to a graph model will read, as far as can be told when it comes.

By fanouts, where these bound a node's neighbours. By the degrees of the request's own nodes, where they do
not. And for the nodes of requests that were larger than was predicted so: by what was counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hopline.engine.size import RequestSize
from hopline.errors import BadRequest
from hopline.graph.live.view import LiveView
from hopline.types import ExternalId, IdArray, ScoreRequest

if TYPE_CHECKING:
    from hopline.artifact import ModelSpec
    from hopline.graph.snapshot import Graph

#: Nodes that are remembered.
_REMEMBERED = 4096

_Key = tuple[ExternalId, ...]


class PredictedRows:
    """Args:
    spec: the model.
    graph: that it answers about.
    num_hops: of the model.

    Attributes:
        per_seed: predicted for a node of which nothing is known.
        by_degree: whether nodes differ, so that `of` knows more than `per_seed`.
    """

    def __init__(self, spec: ModelSpec, graph: Graph | LiveView, num_hops: int) -> None:
        head = spec.head
        self._types = (head.node_type, head.dst_node_type or head.node_type)
        self._graph = graph
        if isinstance(graph, LiveView):
            self._graph = graph.beside("sizes")
            with self._graph:
                self._size = RequestSize(spec, self._graph, num_hops)
        else:
            self._size = RequestSize(spec, graph, num_hops)
        asked = self._types if head.kind == "link" else self._types[:1]
        self.per_seed = max(self._size.per_seed[name] for name in asked)
        self.by_degree = bool(self._size.by_degree.intersection(asked))
        #: The only node (or pair) of a request -> rows that it reads.
        self._large: dict[_Key, int] = {}

    def of(self, request: ScoreRequest, num_seeds: int, share: float) -> int:
        """Predicted rows of a request.

        Args:
            num_seeds: that it asks for, inline nodes and their neighbours included.
            share: rows read for each predicted one.
        """
        rows = int(num_seeds * self.per_seed)
        if self.by_degree:
            rows = self._by_degree(request, num_seeds)
        if self._large:
            found = self._large.get(_only(request), 0)
            if found:
                rows = max(rows, int(found / share))
        return rows

    def remember(self, request: ScoreRequest, rows: int, some: int) -> None:
        """A request read so many rows: what it is about is large, unless these are no more than `some`."""
        key = _only(request)
        if not key:
            return
        if rows <= some:
            self._large.pop(key, None)
            return
        self._large[key] = rows
        if len(self._large) > _REMEMBERED:
            del self._large[next(iter(self._large))]

    def knows(self, request: ScoreRequest) -> bool:
        """Whether what it is about was large."""
        return bool(self._large) and _only(request) in self._large

    def _by_degree(self, request: ScoreRequest, num_seeds: int) -> int:
        graph = self._graph
        if not isinstance(graph, LiveView):
            return self._counted(graph, request, num_seeds)
        with graph:
            return self._counted(graph, request, num_seeds)

    def _counted(self, graph: Graph | LiveView, request: ScoreRequest, num_seeds: int) -> int:
        asked = (request.nodes,) if request.pairs is None else request.pairs
        rows, others = 0, num_seeds
        for node_type, external in zip(self._types, asked, strict=False):
            if not len(external):
                continue
            try:
                ids: IdArray = graph.nodes[node_type].ids.lookup(external)
            except BadRequest:
                continue  # the batch says so, in its own words
            if ids.shape[0] > 1 or ids[0] < 0:
                ids = np.unique(ids[ids >= 0])
            others -= len(external)
            rows += self._size.rows(node_type, ids)
        return rows + int(others * self.per_seed)


def _only(request: ScoreRequest) -> _Key:
    """The one node or pair that a request is about; () where it is about more."""
    if request.inline:
        return ()
    if request.pairs is not None:
        sources, targets = request.pairs
        return (sources[0], targets[0]) if len(sources) == 1 else ()
    return (request.nodes[0],) if len(request.nodes) == 1 else ()
