"""The graphs of random modules: the larger one has the smaller one and a second component.

What hangs on the whole graph (its size, its means, its ids) differs between the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

import hopline
from hopline.graph import Graph

#: Nodes of the graph that is packaged on; more than `CHECK_NODES`, so that the gate sees a part of it.
NUM_NODES, CHECK_NODES = 90, 64
_SECOND = 120
_X_DIM, _ATTR_DIM = 6, 3
_FURTHER = ("edge_weight", "edge_attr", "pos", "feat", "code", "mask")


@dataclass(frozen=True, slots=True)
class Place:
    """A graph as PyG has it and as Hopline opens it, and nodes worth asking for: hubs, isolated ones."""

    data: Data
    graph: Graph
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Places:
    """Both graphs."""

    small: Place
    large: Place


def _component(rng: np.random.Generator, num_nodes: int, first: int, scale: float) -> Data:
    num_edges = 3 * num_nodes
    src = (num_nodes * rng.random(num_edges) ** 2).astype(np.int64)  # few are the source of many
    dst = rng.integers(0, num_nodes - 5, num_edges)  # the last ones have no in-edge
    dst[:25] = 2  # a hub
    src[30:34] = dst[30:34] = np.arange(5, 9)  # self-loops
    src[50:53], dst[50:53] = src[40:43], dst[40:43]  # the same edge twice
    loops = src == dst
    loops[30:34] = False
    dst[loops] = (dst[loops] + 1) % (num_nodes - 5)
    src[src == dst] = 0
    src[30:34] = dst[30:34]
    edge_index = torch.from_numpy(np.stack([src, dst]) + first)
    return Data(
        x=torch.from_numpy((scale * rng.normal(size=(num_nodes, _X_DIM)) + scale - 1).astype(np.float32)),
        edge_index=edge_index,
        edge_attr=torch.from_numpy(rng.normal(size=(num_edges, _ATTR_DIM)).astype(np.float32)),
        edge_weight=torch.from_numpy(rng.uniform(0.5, 2.0, num_edges).astype(np.float32)),
        pos=torch.from_numpy(rng.normal(size=(num_nodes, _X_DIM)).astype(np.float32)),
        feat=torch.from_numpy(rng.normal(size=(num_nodes, _X_DIM)).astype(np.float32)),
        code=torch.from_numpy(rng.integers(0, 5, num_nodes)),
        mask=torch.from_numpy(rng.random(num_nodes) < 0.5),
    )


def make_places(folder: Path, has: tuple[str, ...], *, symmetric: bool = False) -> Places:
    """Write and open both graphs.

    Args:
        has: data beside `x` and `edge_index`: `edge_weight`, `edge_attr`, and columns of nodes.
        symmetric: the smaller graph has each edge both ways, and the second component has not.
    """
    rng = np.random.default_rng(0)
    first, second = _component(rng, NUM_NODES, 0, 1.0), _component(rng, _SECOND, NUM_NODES, 2.0)
    if symmetric:
        data = ("edge_attr", "edge_weight")
        first.edge_index, values = to_undirected(
            first.edge_index, [first[name] for name in data], reduce="max"
        )
        first.update(dict(zip(data, values, strict=True)))
    large = Data(
        **{
            name: torch.cat([first[name], second[name]], 1 if name == "edge_index" else 0)
            for name in ("x", "edge_index", *_FURTHER)
        }
    )
    places = []
    for name, data in (("small", first), ("large", large)):
        for role in _FURTHER:
            if role not in has:
                del data[role]
        path = folder / "_".join([name, *["symmetric"] * symmetric, *sorted(has)])
        graph = hopline.Graph.from_pyg(data).save(path)
        n = data.num_nodes
        nodes = {2, 6, NUM_NODES - 1, 0, n - 1, n // 2, *rng.integers(0, n, 9).tolist()}
        places.append(Place(data, Graph.open(path) if graph is None else graph, tuple(sorted(nodes))))
    return Places(*places)
