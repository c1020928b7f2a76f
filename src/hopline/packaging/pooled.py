"""Graphs of models that answer one row for a graph: a node's answer is that of its whole component.

A server collects a component hop by hop along in-edges. Too few hops would pool over a part of it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from hopline.errors import NotServable
from hopline.graph import Graph
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.probe import only
from hopline.packaging.reference import Reference, Rows
from hopline.packaging.settings import CheckedFanouts
from hopline.types import IdArray

#: Nodes whose components are measured, and nodes that are visited for all of them.
_SEEDS, _MOST_VISITED = 512, 2_000_000


def check_components(
    graph: Graph, keys: Collection[str], target: str, fanouts: CheckedFanouts, max_degree: int | None
) -> None:
    """Check that the fanouts collect whole components.

    Args:
        keys: edge types that the model reads.

    Raises: NotServable: they do not; gives the number that does.
    """
    lists = list(fanouts.values()) if isinstance(fanouts, dict) else [fanouts]
    if max_degree is not None or any(fanout != -1 for each in lists for fanout in each):
        raise NotServable(
            "the model answers one row for a graph, and a sample of its neighbours would be a part of it: "
            "give fanouts of -1, and no max_degree"
        )
    given = max(map(len, lists))
    number, sizes = components(graph, keys)
    num_nodes = graph.nodes[target].num_nodes
    seeds = np.unique(np.linspace(0, num_nodes - 1, min(num_nodes, _SEEDS)).astype(np.int64))
    needed, too_few, visited = 1, 0, 0
    for seed in seeds.tolist():
        hops, reached = _reach(graph, keys, target, seed)
        visited += reached
        if reached < sizes[number[target][seed]]:
            raise NotServable(
                f"the model answers one row for a graph, and a server collects a node's graph along edges "
                f"that enter it: from row {seed} of {target!r} these reach {reached} of the "
                f"{sizes[number[target][seed]]} nodes that edges join to it. Add each edge in both "
                "directions (undirected=True, or reverse edge types)"
            )
        needed, too_few = max(needed, hops), too_few + (hops > given)
        if visited > _MOST_VISITED:
            break
    if needed > given:
        raise NotServable(
            f"the model answers one row for a graph, and {given} fanouts were given: they collect a part "
            f"of the graph of {too_few} of {len(seeds)} nodes, and would pool over that part. Give "
            f"{needed} fanouts, for example fanouts={[-1] * needed}"
        )


def components(graph: Graph | CheckGraph, keys: Collection[str]) -> tuple[dict[str, IdArray], IdArray]:
    """Node type -> the component of each node, int64 [N]; and the number of nodes of each component."""
    if isinstance(graph, CheckGraph):
        counts = {name: len(rows) for name, rows in graph.features.items()}
    else:
        counts = {name: nodes.num_nodes for name, nodes in graph.nodes.items()}
    ends = np.cumsum([0, *counts.values()])
    first = dict(zip(counts, ends.tolist(), strict=False))
    pairs = []
    for part in (graph.edges[key] for key in keys):
        indptr = np.asarray(part.indptr[:])
        into = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        pairs.append((np.asarray(part.indices[:]) + first[part.src], into + first[part.dst]))
    label = np.arange(ends[-1])
    while True:
        before = label.copy()
        for one, other in pairs:
            lowest = np.minimum(label[one], label[other])
            np.minimum.at(label, one, lowest)
            np.minimum.at(label, other, lowest)
        label = label[label]
        if np.array_equal(before, label):
            break
    sizes = np.bincount(label, minlength=int(ends[-1]))
    return {name: label[start : start + counts[name]] for name, start in first.items()}, sizes


def _reach(graph: Graph | CheckGraph, keys: Collection[str], target: str, seed: int) -> tuple[int, int]:
    """Hops until no further node is found, and nodes found."""
    found: dict[str, set[int]] = {name: set() for key in keys for name in (graph.edges[key].src, target)}
    found[target].add(seed)
    frontier = {target: [seed]}
    hops = 0
    while frontier:
        hops += 1
        following: dict[str, list[int]] = {}
        for edges in (graph.edges[key] for key in keys):
            for node in frontier.get(edges.dst, ()):
                near = edges.indices[int(edges.indptr[node]) : int(edges.indptr[node + 1])]
                new = set(near.tolist()) - found[edges.src]
                found[edges.src] |= new
                following.setdefault(edges.src, []).extend(new)
        frontier = {name: nodes for name, nodes in following.items() if nodes}
    return hops, sum(map(len, found.values()))


def answers(
    reference: Reference, check: CheckGraph, seeds: IdArray, hops: int
) -> tuple[tuple[IdArray], Rows]:
    """Seeds whose components are found within the hops, and the module's answers for these components.

    Args:
        seeds: rows of the target type, int64 [n].
    """
    target, keys = reference.targets[0], reference.binding.relations
    seeds = np.array([s for s in seeds.tolist() if _reach(check, keys, target, s)[0] <= hops], np.int64)
    number, _ = components(check, keys)
    rows = [
        reference.answers(
            only(check, {name: label == number[target][seed] for name, label in number.items()})
        )
        for seed in seeds.tolist()
    ]
    return (seeds,), np.concatenate(rows)
