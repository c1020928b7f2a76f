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
    dim=6, *, attr_dim=0, weight=False, num_nodes=40, num_edges=160, loops=True, offset=0.0, seed=0
):
    """One node type, one edge type; at most one self-loop a node where there are weights."""
    rng = np.random.default_rng(seed)
    return Graph.from_edges(
        _edges(rng, num_nodes, num_nodes, num_edges, loops=loops),
        (offset + rng.normal(size=(num_nodes, dim))).astype(np.float32),
        edge_attr=rng.normal(size=(num_edges, attr_dim)).astype(np.float32) if attr_dim else None,
        edge_weight=rng.uniform(0.5, 2.0, num_edges).astype(np.float32) if weight else None,
    )


def hetero(*, paper_dim=6, author_dim=5, attr_dim=0, seed=0):
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
    return Graph.from_tables(nodes, edges)


def relational(num_relations=3, dim=6, seed=0):
    """One node type, several relations r0, r1, ..."""
    rng = np.random.default_rng(seed)
    nodes = {"node": NodeTable(rng.normal(size=(40, dim)).astype(np.float32))}
    edges = {
        ("node", f"r{r}", "node"): EdgeTable(_edges(rng, 40, 40, 60 + 7 * r, loops=True))
        for r in range(num_relations)
    }
    return Graph.from_tables(nodes, edges)
