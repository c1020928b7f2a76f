"""Seeded graphs for tests and benchmarks, and graphs drawn in one line."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np

from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.types import IdArray

_EDGE = re.compile(r"^(?P<src>[^>@*]+)>(?P<dst>[^>@*]+)(@(?P<time>-?\d+))?(\*(?P<weight>-?[\d.]+))?$")


def power_law_edges(num_nodes: int, num_edges: int, seed: int = 0, *, exponent: float = 3.0) -> IdArray:
    """Edges int64 [2, E] with uniform sources and power-law in-degrees.

    Args:
        exponent: destinations are the `exponent`-th power of a uniform number, a larger one gives
            larger hubs: at 3 the largest of 1 M nodes gets 1 % of all edges.
    """
    rng = np.random.default_rng(seed)
    rank = (num_nodes * rng.random(num_edges) ** exponent).astype(np.int64)
    # Hubs are at random rows: features of adjacent rows would share cache lines.
    dst = rng.permutation(num_nodes)[np.minimum(rank, num_nodes - 1)]
    return np.stack([rng.integers(0, num_nodes, num_edges), dst])


def power_law_graph(
    num_nodes: int = 1_000,
    num_edges: int = 10_000,
    dim: int = 16,
    seed: int = 0,
    *,
    ids: Literal["range", "int", "string"] = "range",
    edge_attr_dim: int = 0,
    times: bool = False,
    weights: bool = False,
    feature_dtype: str = "float32",
) -> Graph:
    """A homogeneous graph of `power_law_edges` with standard normal features.

    Args:
        ids: external ids: row numbers, distinct large and negative integers, or "n<row>".
        edge_attr_dim: columns of standard normal edge attributes.
        times: edge times, uniform in [0, 1000).
        weights: edge weights, uniform in [0.1, 2).
    """
    rng = np.random.default_rng([seed, 1])
    edges: Any = power_law_edges(num_nodes, num_edges, seed)
    external: Any = None
    if ids == "int":
        external = (np.arange(num_nodes) - num_nodes // 2) * 1_000_003
        edges = external[edges]
    elif ids == "string":
        external = [f"n{row}" for row in range(num_nodes)]
        edges = tuple([external[row] for row in end] for end in edges.tolist())
    return Graph.from_edges(
        edges,
        rng.standard_normal((num_nodes, dim), dtype=np.float32),
        ids=external,
        edge_attr=rng.standard_normal((num_edges, edge_attr_dim)) if edge_attr_dim else None,
        edge_time=rng.integers(0, 1000, num_edges) if times else None,
        edge_weight=rng.uniform(0.1, 2.0, num_edges) if weights else None,
        feature_dtype=feature_dtype,
    )


def hetero_graph(seed: int = 0, *, num_users: int = 60, num_items: int = 40) -> Graph:
    """Users (string ids, 8 features) and items (integer ids, 5 features), four edge types.

    `user__buys__item` has times and 3 attributes, its reverse `item__bought_by__user` has times,
    `user__follows__user` has weights and self-loops, `item__like__item` has neither.
    """
    rng = np.random.default_rng(seed)
    user_ids = [f"user-{i}" for i in range(num_users)]
    item_ids = 10_000 + 7 * rng.permutation(num_items)

    def some(ids: Any, count: int) -> list[Any]:
        return [ids[i] for i in rng.integers(0, len(ids), count)]

    buyers, bought = some(user_ids, 300), some(item_ids.tolist(), 300)
    bought_at = rng.integers(0, 1000, 300)
    items = some(item_ids.tolist(), 160)
    return Graph.from_tables(
        {
            "user": NodeTable(rng.standard_normal((num_users, 8)), ids=user_ids),
            "item": NodeTable(rng.standard_normal((num_items, 5)), ids=item_ids),
        },
        {
            ("user", "buys", "item"): EdgeTable(
                (buyers, bought), attr=rng.standard_normal((300, 3)), time=bought_at
            ),
            ("item", "bought_by", "user"): EdgeTable((bought, buyers), time=bought_at),
            ("user", "follows", "user"): EdgeTable(
                (some(user_ids, 200) + user_ids[:3], some(user_ids, 200) + user_ids[:3]),
                weight=rng.uniform(0.1, 2.0, 203),
            ),
            ("item", "like", "item"): EdgeTable((items[:80], items[80:])),
        },
    )


def drawn(drawing: str, features: Any = None) -> Graph:
    """A homogeneous graph with string ids, from a text such as "a>b c>b b>d".

    Edges may carry a time and a weight: "a>b@17*0.5". A word without ">" is a node without an edge.
    Nodes are numbered as they first occur.

    Args:
        features: [N, d]; None: node i has one feature, i + 1.
    """
    ids: dict[str, int] = {}
    ends: list[tuple[str, str]] = []
    times: list[int] = []
    weights: list[float] = []
    for word in drawing.split():
        if ">" not in word:
            ids.setdefault(word, len(ids))
            continue
        edge = _EDGE.match(word)
        if edge is None:
            raise ValueError(f"{word!r} is not an edge: write it as a>b, a>b@time or a>b@time*weight")
        for name in (edge["src"], edge["dst"]):
            ids.setdefault(name, len(ids))
        ends.append((edge["src"], edge["dst"]))
        times += [int(edge["time"])] if edge["time"] else []
        weights += [float(edge["weight"])] if edge["weight"] else []
    for name, values in (("time", times), ("weight", weights)):
        if values and len(values) != len(ends):
            raise ValueError(f"either all edges have a {name} or none")
    return Graph.from_edges(
        ([src for src, _ in ends], [dst for _, dst in ends]),
        np.arange(1, len(ids) + 1, dtype=np.float32).reshape(-1, 1) if features is None else features,
        ids=list(ids),
        edge_time=times or None,
        edge_weight=weights or None,
    )
