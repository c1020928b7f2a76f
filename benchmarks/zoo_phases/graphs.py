"""The graphs of the zoo: skewed degrees, hubs, isolated nodes; larger than what the gate samples."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

import hopline
from benchmarks.zoo_phases.entry import ATTR_DIM, X_DIM, GraphName
from hopline.graph import Graph

NUM_NODES, NUM_ISOLATED = 1_500, 20
EDGES_PER_NODE = 3
HETERO: dict[tuple[str, str, str], int] = {
    ("paper", "cites", "paper"): 2_500,
    ("author", "writes", "paper"): 2_500,
    ("paper", "by", "author"): 2_500,
}
HETERO_NODES = {"paper": 1_000, "author": 700}
NUM_RELATIONS = 3


@dataclass(frozen=True, slots=True)
class ZooGraph:
    """A graph as PyG has it and as Hopline opens it.

    Attributes:
        num_nodes: by node type.
        popular: node type -> nodes, those with most in-edges first, isolated ones last.
    """

    data: Any
    graph: Graph
    num_nodes: dict[str, int]
    popular: dict[str, NDArray[np.int64]]

    def arguments(self, module: nn.Module) -> dict[str, Any]:
        """Arguments of a module's forward: the required ones, and edge data that it may have."""
        parameters = inspect.signature(module.forward).parameters
        usual = ("x", "edge_index")
        wanted = [name for name, each in parameters.items() if each.default is each.empty or name in usual]
        if isinstance(self.data, Data):
            held = [name for name in ("edge_attr", "edge_weight") if name in self.data]
            wanted += [name for name in held if name in parameters and name not in wanted]
        return {name: self._argument(name) for name in wanted}

    def _argument(self, name: str) -> Any:
        data = self.data
        if name.endswith("_dict"):
            return data.collect(name.removesuffix("_dict"))
        if isinstance(data, Data):
            return data[name]
        kinds = data.edge_types  # relations in one list
        if name == "x":
            return data["node"].x
        if name == "edge_type":
            sizes = torch.tensor([data[kind].edge_index.shape[1] for kind in kinds])
            return torch.repeat_interleave(torch.arange(len(kinds)), sizes)
        return torch.cat([data[kind][name] for kind in kinds], 1 if name == "edge_index" else 0)

    def seeds(self, node_type: str, count: int) -> NDArray[np.int64]:
        """Hubs, isolated nodes, and others in between."""
        order = self.popular[node_type]
        rng = np.random.default_rng(1)
        others = rng.permutation(order[10:-10])[: max(0, count - 20)]
        return np.concatenate([order[:10], order[-10:], others])


def _edges(rng: np.random.Generator, num_src: int, num_dst: int, count: int) -> Tensor:
    """Distinct pairs, no self-loops; a few nodes are the source or the destination of many edges."""
    src = (num_src * rng.random(3 * count) ** 3).astype(np.int64)
    dst = ((num_dst - NUM_ISOLATED) * rng.random(3 * count) ** 2).astype(np.int64)
    src = rng.permutation(num_src)[src]
    pairs = np.unique(np.stack([src, dst])[:, src != dst], axis=1)
    return torch.from_numpy(pairs[:, rng.permutation(pairs.shape[1])[:count]])


def _rows(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32))


def _popular(num_nodes: int, *edges: Tensor) -> NDArray[np.int64]:
    degrees = sum(np.bincount(each[1].numpy(), minlength=num_nodes) for each in edges)
    return np.argsort(-np.asarray(degrees), kind="stable")


def homogeneous(kind: str) -> Data:
    """One node type; with `edge_attr` or `edge_weight`, or with edges in order of their ends, by `kind`."""
    rng = np.random.default_rng(7)
    edge_index = _edges(rng, NUM_NODES, NUM_NODES, EDGES_PER_NODE * NUM_NODES)
    data = Data(x=_rows(rng, NUM_NODES, X_DIM), edge_index=edge_index)
    if kind == "attr":
        data.edge_attr = torch.rand(edge_index.shape[1], ATTR_DIM)
    if kind.endswith("weight"):
        data.edge_weight = torch.rand(edge_index.shape[1]) + 0.5
    return data.sort(sort_by_row=False) if kind == "sorted" else data


def heterogeneous(attr: bool) -> HeteroData:
    """Two node types, three edge types."""
    rng = np.random.default_rng(8)
    data = HeteroData()
    for name, count in HETERO_NODES.items():
        data[name].x = _rows(rng, count, X_DIM)
    for (src, relation, dst), count in HETERO.items():
        store = data[src, relation, dst]
        store.edge_index = _edges(rng, HETERO_NODES[src], HETERO_NODES[dst], count)
        if attr:
            store.edge_attr = torch.rand(store.edge_index.shape[1], ATTR_DIM)
    return data


def relational(names: list[str], attr: bool) -> HeteroData:
    """One node type, several edge types."""
    rng = np.random.default_rng(9)
    data = HeteroData()
    data["node"].x = _rows(rng, NUM_NODES, X_DIM)
    for name in names:
        edge_index = _edges(rng, NUM_NODES, NUM_NODES, NUM_NODES)
        data["node", name, "node"].edge_index = edge_index
        if attr:
            data["node", name, "node"].edge_attr = torch.rand(edge_index.shape[1], ATTR_DIM)
    return data


@cache
def zoo_graph(name: GraphName, folder: Path) -> ZooGraph:
    """Make a graph, write it and open it from the disk."""
    torch.manual_seed(0)
    data: Any
    if name in ("plain", "both", "both_weight", "sorted", "attr", "weight"):
        data = homogeneous(name)
        num_nodes = {"node": NUM_NODES}
        popular = {"node": _popular(NUM_NODES, data.edge_index)}
    else:
        if name.startswith("hetero"):
            data = heterogeneous(name.endswith("attr"))
        elif name.startswith("relations"):
            data = relational([f"r{r}" for r in range(NUM_RELATIONS)], name.endswith("attr"))
        else:
            data = relational(["trusts", "distrusts"], attr=False)
        num_nodes = {kind: len(data[kind].x) for kind in data.node_types}
        popular = {
            kind: _popular(
                num_nodes[kind], *(data[edge].edge_index for edge in data.edge_types if edge[2] == kind)
            )
            for kind in data.node_types
        }
    hopline.Graph.from_pyg(data, both_directions=name.startswith("both")).save(folder / name)
    return ZooGraph(data, Graph.open(folder / name), num_nodes, popular)
