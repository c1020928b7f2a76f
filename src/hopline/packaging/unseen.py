"""Nodes that the graph does not have, for the gate: copies of its nodes, as a request describes them.

The module answers for a copy on the graph with the copy in it; a server answers from the request's lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.packaging.check_graph import CheckGraph
from hopline.types import IdArray, InlineNode

#: Numbers of nodes and of their neighbours that are copied, so that copies refer to each other.
_COPIES, _NEIGHBOURS = 8, 8


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
