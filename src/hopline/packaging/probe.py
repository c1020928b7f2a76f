"""The graph on which a package is checked: real nodes and edges, and strangers.

Strangers are nodes with real feature rows and drawn edges that no real node is joined to. They are what
the sample of a real graph may lack: chains longer than the model reads, so that each seed's neighbourhood
ends before the graph does; isolated nodes; a hub, and a node that many read. If a model's answer for a node
depends on anything but the node's neighbourhood, it answers differently here than on that alone.

Unseen nodes are copies of nodes, as a request describes them: the module answers for a copy on the graph
with the copy in it, and a server from the request's lists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopline.artifact import LOOPS, REPEATED
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.graph.ids import RangeIds
from hopline.graph.parts import Nodes
from hopline.packaging.check_graph import CheckEdges, CheckGraph, Kinds
from hopline.types import FloatArray, IdArray, InlineNode

Column = TypeVar("Column", FloatArray, IdArray)

#: Strangers of each type in one step of a chain.
_WIDTH = 3
_ISOLATED = 2
#: In-neighbours of the hub among the strangers: of a few, and of a crowd that the sample may lack.
_FEW, CROWD = 24, 512
#: Numbers of nodes and of their neighbours that are copied, so that copies refer to each other.
_COPIES, _NEIGHBOURS = 8, 8


@dataclass(frozen=True, slots=True)
class Probe:
    """A graph to check on, as the server reads it and as the module reads it.

    Attributes:
        graph: in memory; ids are row numbers. For each type the real nodes come first.
        check: the same as plain arrays.
        real: the real part alone.
        hops: strangers' chains are longer than these.
        asked: places of requested strangers, counted from the first stranger of a type.
    """

    graph: Graph
    check: CheckGraph
    real: CheckGraph
    hops: int
    asked: IdArray

    @classmethod
    def of(
        cls, real: CheckGraph, hops: int, *, without: Kinds | None = None,
        signed: Collection[str] = (), both_directions: bool = False, wide: bool = True, seed: int = 0,
    ) -> Probe:  # fmt: skip
        """Add strangers to a real graph.

        Args:
            hops: that the model reads.
            without, signed: as of `strangers`.
            both_directions: as of the real graph.
            wide: half of the strangers have features of other signs and sizes than real ones.
            seed: of the random numbers.
        """
        rng = np.random.default_rng(seed)
        check = beside(real, strangers(real, hops, rng, CROWD, without, signed))
        if wide:
            check = beside(check, widened(strangers(real, hops, rng, _FEW, without, signed), rng))
        graph = graph_of(check, both_directions)
        core = _core(hops)
        first = len(next(iter(check.features.values()))) - len(next(iter(real.features.values())))
        beginnings = (0, first - core - _FEW) if wide else (0,)
        asked = np.concatenate([at + np.arange(core) for at in beginnings])
        return cls(graph, CheckGraph.of(graph), real, hops, asked)

    @classmethod
    def of_all(cls, graph: Graph) -> Probe:
        """A whole graph without strangers."""
        nodes = {name: Nodes(part.features, RangeIds(part.num_nodes)) for name, part in graph.nodes.items()}
        check = CheckGraph.of(graph)
        return cls(Graph(graph.schema, nodes, graph.edges), check, check, 0, np.zeros(0, np.int64))

    def seeds(self, node_type: str, most: int) -> IdArray:
        """Nodes to request: real ones from the smallest to the largest in-degree, and strangers.

        Args:
            most: real nodes.

        Returns: distinct rows, int64.
        """
        num_real = self.real.num_nodes(node_type)
        degree = np.zeros(num_real, np.int64)
        for edges in self.real.edges.values():
            if edges.dst == node_type:
                degree += np.diff(edges.indptr)
        order = np.argsort(degree, kind="stable")
        picks = np.unique(np.linspace(0, num_real - 1, min(most, num_real)).astype(np.int64))
        return np.concatenate([order[picks], num_real + self.asked])


def graph_of(check: CheckGraph, both_directions: bool = False) -> Graph:
    """The arrays as a graph in memory."""
    nodes = {
        name: NodeTable(rows if rows.shape[1] else None, num_nodes=len(rows))
        for name, rows in check.features.items()
    }
    edges = {}
    for key, part in check.edges.items():
        src, relation, dst = key.split("__")
        edges[src, relation, dst] = EdgeTable(
            part.edge_index, attr=part.attr, time=part.time, weight=part.weight, by_row=True
        )
    return Graph.from_tables(nodes, edges, both_directions=both_directions)


def strangers(
    real: CheckGraph, hops: int, rng: np.random.Generator, crowd: int = _FEW, without: Kinds | None = None,
    signed: Collection[str] = (),
) -> CheckGraph:  # fmt: skip
    """Nodes with real rows in chains, some isolated, one hub; edges with the data of real ones.

    Edges go one way, some are self-loops and some are repeated, also where no real ones are: a later graph
    may have such edges, and a model must not rely on their absence.

    Args:
        hops: chains have more than twice as many steps.
        crowd: in-neighbours of the hub.
        without: edge type -> kinds of edges that are not drawn.
        signed: edge types of which some weights are below 0.
    """
    steps = _steps(hops)
    count = _core(hops) + crowd
    features = {name: rows[rng.integers(0, len(rows), count)] for name, rows in real.features.items()}
    edges = {
        key: _drawn(part, steps, crowd, rng, (without or {}).get(key, ()), key in signed)
        for key, part in real.edges.items()
    }
    return CheckGraph(features, edges)


def _steps(hops: int) -> int:
    return 2 * hops + 4


def _core(hops: int) -> int:
    """Strangers of a type, without those that only point to the hub."""
    return _steps(hops) * _WIDTH + _ISOLATED + 1


def widened(graph: CheckGraph, rng: np.random.Generator, factor: float = 3.0) -> CheckGraph:
    """The graph with features of other signs and sizes; columns of integers (maybe codes) are unchanged."""
    features = {}
    for name, rows in graph.features.items():
        whole = (rows == np.rint(rows)).all(axis=0)
        scale = rng.choice(np.array([-factor, -1.0, 0.0, 1.0, factor], np.float32), rows.shape)
        features[name] = np.where(whole[None, :], rows, rows * scale)
    return CheckGraph(features, graph.edges)


def _drawn(
    real: CheckEdges, steps: int, crowd: int, rng: np.random.Generator, without: tuple[str, ...],
    signed: bool,
) -> CheckEdges:  # fmt: skip
    """Edges from each step of the chains to the next one, from the crowd to the hub, from it to a chain.

    A node without in-edges has one to each of the crowd and to a chain.
    """
    sources: list[int] = []
    targets: list[int] = []
    for step in range(1, steps):
        for place in range(_WIDTH):
            count = max(int(rng.integers(0, 3)), place == 0)
            # the first of each step reads the first one before it, so that this chain has no gap
            order = np.arange(_WIDTH) if place == 0 else rng.permutation(_WIDTH)
            sources += (_WIDTH * (step - 1) + order[:count]).tolist()
            targets += [_WIDTH * step + place] * count
    hub = steps * _WIDTH + _ISOLATED
    count = hub + 1 + crowd
    members, alone = np.arange(hub + 1, count), np.full(crowd + 1, steps * _WIDTH)
    src = np.concatenate([np.asarray(sources, np.int64), members, [hub, hub], alone])
    of_hub = [_WIDTH, 3 * _WIDTH + 1]
    dst = np.concatenate(
        [np.asarray(targets, np.int64), np.full(crowd, hub), of_hub, members, [_WIDTH + 2]]
    )
    if real.src == real.dst and LOOPS not in without:
        loops = np.arange(0, steps * _WIDTH, 5)
        src, dst = np.concatenate([src, loops]), np.concatenate([dst, loops])
    if REPEATED not in without:
        src, dst = np.concatenate([src, src[:4]]), np.concatenate([dst, dst[:4]])
    drawn = real.taken(real.drawn(len(src), rng), src, dst, count)
    if drawn.weight is not None and signed and (drawn.weight >= 0).all():
        drawn.weight[::6] *= -1
    return drawn


def beside(first: CheckGraph, second: CheckGraph) -> CheckGraph:
    """Join two graphs of one schema, with no edge between them; rows of the first come first."""
    features = {
        name: np.concatenate([rows, second.features[name]]) for name, rows in first.features.items()
    }
    edges = {}
    for key, one in first.edges.items():
        other = second.edges[key]
        edges[key] = CheckEdges(
            one.src, one.dst, np.concatenate([one.indptr, other.indptr[1:] + len(one.indices)]),
            np.concatenate([one.indices, other.indices + first.num_nodes(one.src)]),
            _joined(one.attr, other.attr), _joined(one.weight, other.weight), _joined(one.time, other.time),
        )  # fmt: skip
    return CheckGraph(features, edges)


def _joined(one: Column | None, other: Column | None) -> Column | None:
    return None if one is None or other is None else np.concatenate([one, other])


def reordered(graph: CheckGraph) -> CheckGraph:
    """The same edges in another order within each destination; parallel edges keep theirs."""
    rng = np.random.default_rng(2)
    edges = {}
    for key, part in graph.edges.items():
        rank = rng.permutation(max(1, graph.num_nodes(part.src)))
        edges[key] = part.taken(np.argsort(rank[part.indices], kind="stable"))
    return CheckGraph(graph.features, edges)


def only(graph: CheckGraph, stays: Mapping[str, NDArray[np.bool_]]) -> CheckGraph:
    """The subgraph of some nodes.

    Args:
        stays: node type -> bool [N], true for those that stay.
    """
    number = {name: np.cumsum(kept) - 1 for name, kept in stays.items()}
    edges = {}
    for key, part in graph.edges.items():
        kept = stays[part.src][part.indices] & stays[part.dst][part.destinations]
        src, dst = number[part.src][part.indices[kept]], number[part.dst][part.destinations[kept]]
        edges[key] = part.taken(kept, src, dst, int(stays[part.dst].sum()))
    return CheckGraph({name: rows[stays[name]] for name, rows in graph.features.items()}, edges)


@dataclass(frozen=True, slots=True)
class Unseen:
    """Copies of nodes of one type.

    Attributes:
        check: the graph with the copies in it, behind all other nodes of the type; they have no outgoing
            edges, except to each other.
        of: the nodes that were copied, int64 [n].
        nodes: the same as a request describes them.
        linked: they refer to each other, and are requested together.
    """

    check: CheckGraph
    of: IdArray
    nodes: tuple[InlineNode, ...]
    linked: bool


def chosen(check: CheckGraph, node_type: str, asked: IdArray) -> IdArray:
    """Nodes to copy: some of the requested nodes, and some of their neighbours, int64 [n]."""
    picks = np.unique(np.linspace(0, len(asked) - 1, min(len(asked), _COPIES)).astype(np.int64))
    found = dict.fromkeys(asked[picks].tolist())
    near: list[int] = []
    for edges in check.edges.values():
        if edges.src == edges.dst == node_type:
            for node in asked[picks].tolist():
                near += edges.indices[edges.indptr[node] : edges.indptr[node + 1]][:2].tolist()
    found |= dict.fromkeys(near[:_NEIGHBOURS])
    return np.array(list(found), np.int64)


def copied(check: CheckGraph, node_type: str, of: IdArray, *, linked: bool) -> Unseen:
    """Add copies of nodes to a graph, each with the in-edges of its original.

    Args:
        linked: in-edges from copied neighbours come from the copies; otherwise only self-loops do.
    """
    first = check.num_nodes(node_type)
    copy = np.arange(first)
    copy[of] = first + np.arange(len(of))
    features = dict(check.features)
    features[node_type] = np.concatenate([features[node_type], features[node_type][of]])
    neighbors: list[dict[str, Any]] = [{} for _ in of]
    attrs: list[dict[str, object]] = [{} for _ in of]
    weights: list[dict[str, object]] = [{} for _ in of]
    edges = dict(check.edges)
    for key, part in check.edges.items():
        if part.dst != node_type:
            continue
        places, ends = part.into(of)
        src = part.indices[places]
        if part.src == node_type:
            src = np.where(linked | (src == of[ends]), copy[src], src)
        for i in range(len(of)):
            is_new = part.src == node_type
            own = src[ends == i].tolist()
            neighbors[i][key] = [f"copy {s - first}" if is_new and s >= first else s for s in own]
            if part.attr is not None:
                attrs[i][key] = part.attr[places[ends == i]]
            if part.weight is not None:
                weights[i][key] = part.weight[places[ends == i]]
        both = np.append(part.indices, src), np.append(part.destinations, first + ends)
        edges[key] = part.taken(np.append(np.arange(len(part.indices)), places), *both, first + len(of))
    nodes = tuple(
        InlineNode(features[node_type][first + i], neighbors[i], f"copy {i}", attrs[i], weights[i])
        for i in range(len(of))
    )
    return Unseen(CheckGraph(features, edges), of, nodes, linked)
