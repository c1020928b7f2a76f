"""Chooses the nodes for calibration and evaluation, in buckets of degree.

Hubs are few and affect many answers: a uniform draw would rarely include them. Half of the calibration
nodes are drawn by degree, and the evaluation nodes in equal shares from each bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopline.graph import Graph
from hopline.types import IdArray

#: Shares of all nodes at which the buckets end; the last bucket holds the hubs.
_SHARES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, eq=False)
class JudgedNodes:
    """The nodes on which a model is evaluated.

    Attributes:
        nodes: int64 [n], distinct.
        bucket: int64 [n], index into `names`.
        names: of the buckets, ascending by degree.
        shares: float64 [buckets], share of the graph's nodes in each bucket.
    """

    nodes: IdArray
    bucket: IdArray
    names: tuple[str, ...]
    shares: NDArray[np.float64]


def degrees(graph: Graph, node_type: str) -> IdArray:
    """In-edges of each node, of all types: int64 [N]."""
    total = np.zeros(graph.nodes[node_type].num_nodes, np.int64)
    for adjacency in graph.edges.values():
        if adjacency.dst == node_type:
            indptr: IdArray = np.asarray(adjacency.indptr, np.int64)
            total += indptr[1:] - indptr[:-1]
    return total


def draw(degree: IdArray, count: int, rng: np.random.Generator) -> IdArray:
    """Distinct nodes to calibrate on, in random order: half of them drawn uniformly, half by degree."""
    count = min(count, degree.shape[0])
    weights = degree + 1e-9
    by_degree = rng.choice(degree.shape[0], count // 2, replace=False, p=weights / weights.sum())
    rest = np.setdiff1d(np.arange(degree.shape[0]), by_degree)
    evenly = rng.choice(rest, count - by_degree.shape[0], replace=False)
    drawn: IdArray = rng.permutation(np.concatenate([by_degree, evenly]))
    return drawn


def judged(
    degree: IdArray, allowed: IdArray, count: int, least: int, rng: np.random.Generator
) -> JudgedNodes:
    """Draw the nodes for the evaluation of a model.

    Args:
        degree: int64 [N].
        allowed: nodes that may be drawn, distinct.
        count: how many, in about equal shares from each bucket.
        least: smallest number of nodes in a bucket; smaller buckets are joined.
    """
    ends = _ends(degree, degree[allowed], least)
    place = np.searchsorted(ends, degree, side="right")
    names = tuple(_name(low, high) for low, high in zip([0, *ends], [*ends, None], strict=True))
    share = np.bincount(place, minlength=len(names)) / degree.shape[0]
    chosen, left = [], count
    groups = sorted((np.flatnonzero(place[allowed] == b) for b in range(len(names))), key=len)
    for number, group in enumerate(groups):  # the unused share of a small bucket goes to the larger ones
        taken = min(group.shape[0], max(least, left // (len(groups) - number)))
        chosen.append(allowed[rng.choice(group, taken, replace=False)])
        left -= taken
    nodes = rng.permutation(np.concatenate(chosen))
    return JudgedNodes(nodes, place[nodes], names, share)


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
