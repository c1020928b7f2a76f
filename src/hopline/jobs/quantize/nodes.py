"""Which nodes a model is calibrated on, which it is judged on, and in which buckets of degree.

Hubs are few and feed many answers: a draw by number would hardly meet them. Half of the calibration nodes
are drawn by degree, and the judged ones in equal shares from each bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopline.graph import Graph
from hopline.types import IdArray

#: Shares of all nodes below which the buckets end; the last one holds the hubs.
_SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, eq=False)
class Judged:
    """Nodes that a model is judged on.

    Attributes:
        nodes: int64 [n], distinct.
        bucket: int64 [n], index into `names`.
        names: of the buckets, ascending by degree.
        shares: float64 [buckets], of the nodes of the graph that lie in each.
    """

    nodes: IdArray
    bucket: IdArray
    names: tuple[str, ...]
    shares: NDArray[np.float64]


def degrees(graph: Graph, node_type: str) -> IdArray:
    """Edges that arrive at each node, of all types: int64 [N]."""
    total = np.zeros(graph.nodes[node_type].num_nodes, np.int64)
    for adjacency in graph.edges.values():
        if adjacency.dst == node_type:
            indptr: IdArray = np.asarray(adjacency.indptr, np.int64)
            total += indptr[1:] - indptr[:-1]
    return total


def draw(degree: IdArray, count: int, rng: np.random.Generator) -> IdArray:
    """Distinct nodes to calibrate on, in random order: half of them drawn evenly, half by degree."""
    count = min(count, degree.shape[0])
    weights = degree + 1e-9
    by_degree = rng.choice(degree.shape[0], count // 2, replace=False, p=weights / weights.sum())
    rest = np.setdiff1d(np.arange(degree.shape[0]), by_degree)
    evenly = rng.choice(rest, count - by_degree.shape[0], replace=False)
    drawn: IdArray = rng.permutation(np.concatenate([by_degree, evenly]))
    return drawn


def judged(degree: IdArray, allowed: IdArray, count: int, least: int, rng: np.random.Generator) -> Judged:
    """Draw the nodes to judge a model on.

    Args:
        degree: int64 [N].
        allowed: those that may be drawn, distinct.
        count: how many, in about equal shares from each bucket.
        least: nodes that each bucket has; buckets are joined until they do.
    """
    ends = _ends(degree, degree[allowed], least)
    place = np.searchsorted(ends, degree, side="right")
    names = tuple(_name(low, high) for low, high in zip([0, *ends], [*ends, None], strict=True))
    share = np.bincount(place, minlength=len(names)) / degree.shape[0]
    chosen, left = [], count
    groups = sorted((np.flatnonzero(place[allowed] == b) for b in range(len(names))), key=len)
    for number, group in enumerate(groups):  # what a small bucket leaves goes to the larger ones
        taken = min(group.shape[0], max(least, left // (len(groups) - number)))
        chosen.append(allowed[rng.choice(group, taken, replace=False)])
        left -= taken
    nodes = rng.permutation(np.concatenate(chosen))
    return Judged(nodes, place[nodes], names, share)


def _ends(degree: IdArray, allowed: IdArray, least: int) -> list[int]:
    """First degree of each bucket but the lowest: each has `least` allowed nodes, or is the only one."""
    ends: list[int] = []
    for share in _SHARES:
        end = int(np.quantile(degree, share)) + 1
        below = ends[-1] if ends else 0
        inside = int(((allowed >= below) & (allowed < end)).sum())
        if end > below and inside >= least and int((allowed >= end).sum()) >= least:
            ends.append(end)
    return ends


def _name(low: int, high: int | None) -> str:
    if high is None:
        return f"degree {low} and more" if low else "all degrees"
    return f"degree {low}" if high == low + 1 else f"degree {low} to {high - 1}"
