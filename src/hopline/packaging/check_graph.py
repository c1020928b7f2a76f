"""The small graph on which a package is checked: real rows and real edges, in plain arrays.

Depends on NumPy and the graph's arrays, not on torch. Equality of two implementations of the same
layers holds on any graph, so an induced subgraph checks as well as the whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hopline.errors import PackagingError
from hopline.graph.subgraph import edge_positions
from hopline.types import AnyArray, FloatArray, IdArray

if TYPE_CHECKING:
    from hopline.graph import Graph

#: Edge type key -> kinds of edges, as `ModelSpec.edges_without` has them.
Kinds = Mapping[str, tuple[str, ...]]
#: In-neighbours that are sampled of each node while the sample grows: enough to keep it connected, few
#: enough that one hub does not fill it.
_GROWTH_FANOUT = 8
#: Edges of one type above which a graph is sampled even if it has few nodes.
_MAX_EDGES = 200_000


@dataclass(frozen=True, slots=True)
class CheckEdges:
    """The edges of one type, grouped by destination as in `Adjacency`.

    Attributes:
        src, dst: node types.
        indptr: int64 [N_dst + 1].
        indices: int64 [E], source rows.
        attr: float32 [E, d_e] or None.
        weight: float32 [E] or None.
        time: int64 [E] or None.
    """

    src: str
    dst: str
    indptr: IdArray
    indices: IdArray
    attr: FloatArray | None = None
    weight: FloatArray | None = None
    time: IdArray | None = None

    @property
    def destinations(self) -> IdArray:
        """int64 [E], the destination row of each edge."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    @property
    def edge_index(self) -> IdArray:
        """int64 [2, E] in PyG's orientation: source row, destination row."""
        return np.stack([self.indices, self.destinations])

    def drawn(self, count: int, rng: np.random.Generator) -> IdArray:
        """Numbers of edges for `taken`, int64 [count]."""
        return rng.integers(0, max(1, len(self.indices)), count)

    def into(self, nodes: IdArray) -> tuple[IdArray, IdArray]:
        """Numbers of the edges that enter some nodes, for `taken`, and which of these nodes each enters.

        Args:
            nodes: int64 [n]; the number of all nodes is one without edges.
        """
        starts = np.append(self.indptr, self.indptr[-1])
        sizes = np.diff(starts)[nodes]
        ends = np.repeat(np.arange(len(nodes)), sizes)
        return np.arange(len(ends)) + np.repeat(starts[nodes] - np.cumsum(sizes) + sizes, sizes), ends

    def taken(
        self, places: IdArray | NDArray[np.bool_] | slice, src: IdArray | None = None,
        dst: IdArray | None = None, num_dst: int | None = None,
    ) -> CheckEdges:  # fmt: skip
        """Edges with the attributes and weights of some of these, in the given order for one destination.

        Args:
            places: numbers of edges, or bool [E]. If there is no edge, attributes and weights are 1.
            src, dst: other ends, int64 [n]; None for those of the edges at `places`.
            num_dst: nodes of the destination type; None for the number of now.
        """
        src = self.indices[places] if src is None else src
        dst = self.destinations[places] if dst is None else dst
        count = np.bincount(dst, minlength=len(self.indptr) - 1 if num_dst is None else num_dst)
        order = np.argsort(dst, kind="stable")

        def taken(column: AnyArray) -> AnyArray:
            if len(column):
                return column[places][order]
            return np.ones((len(dst), *column.shape[1:]), column.dtype)

        columns = (None if each is None else taken(each) for each in (self.attr, self.weight, self.time))
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)])
        return CheckEdges(self.src, self.dst, indptr, src[order], *columns)


@dataclass(frozen=True, slots=True)
class CheckGraph:
    """Features and edges in memory.

    Attributes:
        features: node type -> float32 [N, d].
        edges: edge type key -> edges, without the types that are derived from others.
    """

    features: dict[str, FloatArray]
    edges: dict[str, CheckEdges]

    def num_nodes(self, node_type: str) -> int:
        """Rows of `node_type`."""
        return len(self.features[node_type])

    def until(self, time: int) -> CheckGraph:
        """The same without later edges."""
        edges = {
            key: part if part.time is None else part.taken(part.time <= time)
            for key, part in self.edges.items()
        }
        return CheckGraph(self.features, edges)

    @classmethod
    def of(cls, graph: Graph, num_nodes: int | None = None, *, seed: int = 0) -> CheckGraph:
        """Take a whole graph, or the subgraph induced by a connected sample of it.

        Args:
            num_nodes: most nodes of each type; None takes everything.
            seed: of the sample.

        Raises: PackagingError: a node type without nodes.
        """
        for name, nodes in graph.nodes.items():
            if nodes.num_nodes == 0:
                raise PackagingError(
                    f"node type {name!r} has no nodes: nothing to compare the package on; build the graph "
                    "with some, or without this type and its edges"
                )
        chosen = {name: np.arange(nodes.num_nodes) for name, nodes in graph.nodes.items()}
        is_small = all(adjacency.num_edges <= _MAX_EDGES for adjacency in graph.edges.values())
        if num_nodes and not (is_small and all(len(rows) <= num_nodes for rows in chosen.values())):
            chosen = _sample(graph, num_nodes, seed)
        features = {}
        for name, nodes in graph.nodes.items():
            features[name] = np.ascontiguousarray(nodes.features[chosen[name]], dtype=np.float32)
        edges = {key: _induced(graph, key, chosen) for key in graph.schema.own_edge_types}
        return cls(features, edges)


def _sample(graph: Graph, num_nodes: int, seed: int) -> dict[str, IdArray]:
    """Breadth-first from a few random nodes of every type, at most `num_nodes` of each type."""
    rng = np.random.default_rng(seed)
    chosen: dict[str, set[int]] = {}
    for name, nodes in graph.nodes.items():
        starts = rng.integers(0, nodes.num_nodes, max(1, num_nodes // 8))
        chosen[name] = set(starts.tolist())
    frontier = {name: sorted(ids) for name, ids in chosen.items()}
    while any(frontier.values()):
        found: dict[str, list[int]] = {name: [] for name in chosen}
        for adjacency in graph.edges.values():
            members, taken = chosen[adjacency.src], found[adjacency.src]
            for node in frontier[adjacency.dst]:
                start, stop = int(adjacency.indptr[node]), int(adjacency.indptr[node + 1])
                if stop == start:
                    continue
                picks = rng.integers(start, stop, _GROWTH_FANOUT)
                for source in np.asarray(adjacency.indices[np.unique(picks)]).tolist():
                    if len(members) < num_nodes and source not in members:
                        members.add(source)
                        taken.append(source)
        frontier = found
    return {name: np.asarray(sorted(ids), dtype=np.int64) for name, ids in chosen.items()}


def _induced(graph: Graph, key: str, chosen: dict[str, IdArray]) -> CheckEdges:
    adjacency = graph.edges[key]
    destinations = chosen[adjacency.dst]
    local = np.full(graph.nodes[adjacency.src].num_nodes, -1, dtype=np.int64)
    local[chosen[adjacency.src]] = np.arange(len(chosen[adjacency.src]))
    places = edge_positions(adjacency, destinations)
    src = local[np.asarray(adjacency.indices[places])]
    dst = np.repeat(np.arange(len(destinations)), adjacency.degree(destinations))[src >= 0]
    places, src = places[src >= 0], src[src >= 0]
    attr, weight = (
        None if each is None else np.asarray(each[places], np.float32)
        for each in (adjacency.attr, adjacency.weight)
    )
    time = None if adjacency.time is None else np.asarray(adjacency.time[places])
    indptr = np.searchsorted(dst, np.arange(len(destinations) + 1))
    return CheckEdges(adjacency.src, adjacency.dst, indptr, src, attr, weight, time)
