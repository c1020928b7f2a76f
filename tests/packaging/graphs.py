"""Graphs that hold what breaks convs: isolated nodes, multi-edges, self-loops, a hub."""

from __future__ import annotations

import numpy as np

from hopline.graph import EdgeTable, Graph, NodeTable


def _edges(rng, num_src, num_dst, num_edges, *, loops):
    src = rng.integers(0, num_src, num_edges)
    dst = rng.integers(0, num_dst - 4, num_edges)  # the last nodes have no in-edge
    dst[:25] = 2  # a hub
    if loops:
        src[30:36] = dst[30:36] = np.arange(5, 11)
    src[50:55], dst[50:55] = src[40:45], dst[40:45]
    return np.stack([src, dst])


def homogeneous(
    dim=6,
    *,
    attr_dim=0,
    weight=False,
    num_nodes=40,
    num_edges=160,
    loops=True,
    offset=0.0,
    seed=0,
    both=False,
):
    """One node type, one edge type; at most one self-loop a node where there are weights."""
    rng = np.random.default_rng(seed)
    edges = _edges(rng, num_nodes, num_nodes, num_edges, loops=loops)
    x = (offset + rng.normal(size=(num_nodes, dim))).astype(np.float32)
    table = EdgeTable(
        edges,
        attr=rng.normal(size=(num_edges, attr_dim)).astype(np.float32) if attr_dim else None,
        weight=rng.uniform(0.5, 2.0, num_edges).astype(np.float32) if weight else None,
    )
    return Graph.from_tables({"node": NodeTable(x)}, {("node", "to", "node"): table}, both_directions=both)


def molecules(count=15, dim=6, seed=0):
    """Components of 2 to 7 nodes, each edge in both directions."""
    rng = np.random.default_rng(seed)
    edges, first = [], 0
    for size in rng.integers(2, 8, count).tolist():
        tree = [(node, int(rng.integers(max(0, node - 2), node))) for node in range(1, size)]
        ring = [(size - 1, 0)] if size > 3 else []
        edges += [(first + a, first + b) for a, b in dict.fromkeys(tree + ring)]
        first += size
    pairs = np.array(edges).T
    return Graph.from_edges(
        np.concatenate([pairs, pairs[::-1]], axis=1), rng.normal(size=(first, dim)).astype(np.float32)
    )


#: Hops that collect the largest graph of `molecules`.
MOLECULE_HOPS = 6


def hetero(*, paper_dim=6, author_dim=5, attr_dim=0, seed=0, both=False):
    """Papers cite papers, authors write papers, papers are written by authors."""
    rng = np.random.default_rng(seed)
    sizes = {"paper": (40, paper_dim), "author": (30, author_dim)}
    nodes = {name: NodeTable(rng.normal(size=shape).astype(np.float32)) for name, shape in sizes.items()}
    edges = {}
    for src, relation, dst in (
        ("paper", "cites", "paper"),
        ("author", "writes", "paper"),
        ("paper", "by", "author"),
    ):
        pairs = _edges(rng, sizes[src][0], sizes[dst][0], 120, loops=src == dst)
        attr = rng.normal(size=(120, attr_dim)).astype(np.float32) if attr_dim else None
        edges[src, relation, dst] = EdgeTable(pairs, attr=attr)
    return Graph.from_tables(nodes, edges, both_directions=both)


def relational(num_relations=3, dim=6, seed=0):
    """One node type, several relations r0, r1, ..."""
    rng = np.random.default_rng(seed)
    nodes = {"node": NodeTable(rng.normal(size=(40, dim)).astype(np.float32))}
    edges = {
        ("node", f"r{r}", "node"): EdgeTable(_edges(rng, 40, 40, 60 + 7 * r, loops=True))
        for r in range(num_relations)
    }
    return Graph.from_tables(nodes, edges)
