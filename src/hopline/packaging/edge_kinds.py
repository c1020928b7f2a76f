"""Kinds of edges that the graph of packaging lacks, and that a later graph may have.

A model whose answers would be wrong for such edges relies on their absence: `ModelSpec.edges_without` lists
them, and a graph, a live graph or a request with such edges is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from hopline.artifact import LOOPS, NEGATIVE, ONE_WAY, REPEATED
from hopline.graph import Adjacency, Graph, csc
from hopline.packaging.arguments import Binding

#: Edge type key -> kinds of edges.
Kinds = Mapping[str, tuple[str, ...]]
ALL = (REPEATED, LOOPS, ONE_WAY, NEGATIVE)


def absent_of(graph: Graph) -> dict[str, tuple[str, ...]]:
    """Kinds that the edges of each type could have and have not."""
    found = {}
    for key in graph.schema.own_edge_types:
        edges = graph.edges[key]
        has = _present(edges)
        possible = ALL if edges.src == edges.dst else (REPEATED, NEGATIVE)
        found[key] = tuple(kind for kind in possible if kind not in has)
    return found


def of_matrix(absent: Kinds, binding: Binding) -> dict[str, tuple[str, ...]]:
    """The kinds that a sparse matrix treats differently from a list, of types read as a matrix."""
    found = {}
    for key in binding.relations if binding.reads_sparse else ():
        found[key] = tuple(kind for kind in absent[key] if kind in (REPEATED, LOOPS))
    return {key: kinds for key, kinds in found.items() if kinds}


def joined(one: Kinds, other: Kinds) -> dict[str, tuple[str, ...]]:
    """The kinds of both, in the order of `ALL`."""
    keys = dict.fromkeys((*one, *other))
    every = {key: {*one.get(key, ()), *other.get(key, ())} for key in keys}
    return {key: tuple(kind for kind in ALL if kind in kinds) for key, kinds in every.items() if kinds}


def minus(one: Kinds, other: Kinds) -> dict[str, tuple[str, ...]]:
    """The kinds of the first that the second lacks."""
    left = {key: tuple(k for k in kinds if k not in other.get(key, ())) for key, kinds in one.items()}
    return {key: kinds for key, kinds in left.items() if kinds}


def relied_on(absent: Kinds, known: Kinds, agrees: Callable[[Kinds], bool]) -> Kinds:
    """Kinds on whose absence answers rely: those known, and those for which they are wrong.

    Args:
        absent: from the graph. known: without a comparison.
        agrees: compares served answers with the module's on strangers that have such edges.
    """
    others = minus(absent, known)
    if not others or agrees(others):
        return known
    found = known
    for kind in ALL:
        alone = {key: (kind,) for key, kinds in others.items() if kind in kinds}
        if alone and not agrees(alone):
            found = joined(found, alone)
    return joined(known, others) if found is known else found


def _present(edges: Adjacency) -> set[str]:
    indptr, indices = np.asarray(edges.indptr[:]), np.asarray(edges.indices[:])
    repeated, one_way = edges.has_repeated_edges, edges.has_one_way_edges
    if repeated is None:  # saved before this was stored
        repeated = csc.repeated_edge(indptr, indices)[0] >= 0
    if one_way is None and edges.src == edges.dst:
        one_way = csc.any_one_way(indptr, indices, None if edges.time is None else edges.time[:])
    signed = edges.weight is None or edges.signed_weight
    has = {REPEATED: repeated, LOOPS: edges.has_self_loops, ONE_WAY: one_way, NEGATIVE: signed}
    return {kind for kind, is_there in has.items() if is_there}
