"""How many rows a request will read, before it is planned: by fanouts, or by degrees where there are none.

Counted are the paths down from a seed, without regard to rows that paths share or that tables keep: how
many of them are read in the end is learned from batches (`scheduling.policy.CostModel`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hopline.sampling import Sampler, layer_key
from hopline.types import IdArray

if TYPE_CHECKING:
    from hopline.artifact import ModelSpec
    from hopline.graph import Adjacency, Graph
    from hopline.graph.live.view import LiveAdjacency, LiveView

#: Nodes whose degrees stand for those of all.
_PROFILED = 1 << 14


class RequestSize:
    """Predicts rows for seeds.

    Args:
        spec: its fanouts.
        graph: read when it is made, and by `rows`; of a live graph a view of one's own, entered by the
            caller.
        num_hops: of the model.

    Attributes:
        per_seed: node type -> rows for a seed of it, on the mean.
        by_degree: node types whose seeds differ: an edge type into them is read without a bound.
    """

    def __init__(self, spec: ModelSpec, graph: Graph | LiveView, num_hops: int) -> None:
        fanouts = dict(sorted(spec.fanouts.items()))
        num_edges = {key: graph.edges[key].num_edges for key in fanouts}
        degrees = {key: _neighbours_degree(graph, graph.edges[key], num_edges[key]) for key in fanouts}
        #: Nobody reads more than the whole graph at each hop.
        all_rows = sum(nodes.num_nodes for nodes in graph.nodes.values()) + sum(num_edges.values())
        self._most = all_rows * (num_hops + 1)
        below = dict.fromkeys(graph.nodes, 1.0)
        per_hop = [below]
        for hop in range(num_hops - 1, -1, -1):
            above = dict.fromkeys(graph.nodes, 1.0)
            for key, own in fanouts.items():
                adjacency = graph.edges[key]
                bound = _bound(own[hop : hop + 1], spec.max_degree)
                above[adjacency.dst] += min(bound, max(1.0, degrees[key])) * below[adjacency.src]
            per_hop.append(above)
            below = above
        self.per_seed = {name: min(rows, float(self._most)) for name, rows in per_hop[-1].items()}
        #: node type -> (counts neighbours, rows of each) for each edge type into it.
        self._links: dict[str, list[tuple[Sampler, float]]] = {}
        if num_hops:
            for key, own in fanouts.items():
                adjacency = graph.edges[key]
                bound = _bound(own[:1], spec.max_degree)
                sampler = Sampler(
                    adjacency, -1 if math.isinf(bound) else int(bound), "uniform", layer_key(0, 0, key)
                )
                self._links.setdefault(adjacency.dst, []).append((sampler, per_hop[-2][adjacency.src]))
        self.by_degree = frozenset(
            name for name, links in self._links.items() if any(sampler.fanout < 0 for sampler, _ in links)
        )

    def rows(self, node_type: str, ids: IdArray) -> int:
        """Predicted rows of known seeds int64 [n] of a type."""
        total = float(ids.shape[0])
        for sampler, each in self._links.get(node_type, ()):
            total += sampler.bound(ids) * each
        return int(min(total, self._most))


def _bound(fanout: Sequence[int], max_degree: int | None) -> float:
    """Of the edges of a node at a hop whose fanout is this; nothing where there is no such hop."""
    if not fanout:
        return 0.0
    bound = float(fanout[0]) if fanout[0] >= 0 else math.inf
    return bound if max_degree is None else min(bound, max_degree)


def _neighbours_degree(
    graph: Graph | LiveView, adjacency: Adjacency | LiveAdjacency, num_edges: int
) -> float:
    """Neighbours of a neighbour: who has many of them is met more often than others (`E[d²] / E[d]`)."""
    num_nodes = graph.nodes[adjacency.dst].num_nodes
    if not num_nodes or not num_edges:
        return 0.0
    ids = np.unique(np.linspace(0, num_nodes - 1, min(num_nodes, _PROFILED), dtype=np.int64))
    degrees = adjacency.degree(ids).astype(np.float64)
    return max(num_edges / num_nodes, float((degrees**2).sum() / max(1.0, degrees.sum())))
