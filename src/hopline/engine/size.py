"""Number of rows that a request will read, predicted by fanouts, or by degrees without fanouts.

direct   seeds, and their neighbours: read even if all states are cached
below    paths further down, as if no two paths met and no rows were cached: the share of them that is
         read is learned from batches
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hopline.engine.inline_features import INLINE_ROWS, LISTED_PER_ROW
from hopline.sampling import Sampler, layer_key
from hopline.types import IdArray, InlineNode

if TYPE_CHECKING:
    from hopline.artifact import ModelSpec
    from hopline.graph import Graph
    from hopline.graph.live.view import LiveView


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
