"""Small graphs and models whose scores are explained, and PyG's answers on edited graphs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan, load_model
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.memory.arena import Arena
from tests.packaged import package

PAYS, OWNS, OWNED = ("user", "pays", "user"), ("user", "owns", "device"), ("device", "rev_owns", "user")
COLUMNS = ["age", "amount", "balance"]


class Typed(nn.Module):
    """Two layers over users and devices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.pays = nn.ModuleList([SAGEConv((3, 3), 8), SAGEConv((8, 8), 8)])
        self.owns = nn.ModuleList([SAGEConv((3, 2), 8), SAGEConv((8, 8), 8)])
        self.owned = nn.ModuleList([SAGEConv((2, 3), 8, aggr="max"), SAGEConv((8, 8), 8, aggr="sum")])
        self.out = nn.Linear(8, 3)

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        """Logits of users."""
        user, device = x_dict["user"], x_dict["device"]
        for pays, owns, owned in zip(self.pays, self.owns, self.owned, strict=True):
            user, device = (
                (
                    pays((user, user), edge_index_dict[PAYS])
                    + owned((device, user), edge_index_dict[OWNS].flip(0))
                ).tanh(),
                owns((user, device), edge_index_dict[OWNS]).tanh(),
            )
        return self.out(user)


class Plain(nn.Module):
    """Two convolutions of one class over users and their payments."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second = conv(3, 6), conv(6, 2)

    def forward(self, x: Any, edge_index: Any) -> Any:
        """Logits."""
        return self.second(self.first(x, edge_index).tanh(), edge_index)


CONVS = {"sage": SAGEConv, "gat": GATConv, "gcn": GCNConv}


@dataclass
class World:
    """A graph, a module and its package.

    Attributes:
        x: node type -> features. edges: edge type -> int64 [2, E], own types only.
    """

    graph: Graph
    module: nn.Module
    folder: Path
    x: dict[str, Any]
    edges: dict[tuple[str, str, str], Any]
    typed: bool

    def model(self, *, cached: bool = False) -> Model:
        """The package, loaded."""
        from hopline.artifact import read_spec

        spec = read_spec(self.folder)
        plan = StateCachePlan(spec, self.graph, 2**24 if cached else 0)
        return load_model(self.folder, spec, self.graph, plan.build(Arena(plan.num_bytes)))

    def answerer(self) -> Answerer:
        """Answers score requests, with edits of any size."""
        return Answerer(self.model(), ("logits",), 10**6)

    def module_logits(self, x: Any, edges: Any) -> Any:
        """Logits of all users of PyG's module on a graph of these rows and edges."""
        with torch.no_grad():
            tensors = {name: torch.from_numpy(each) for name, each in x.items()}
            if not self.typed:
                return self.module(tensors["user"], torch.from_numpy(edges[PAYS])).numpy()
            index = {key: torch.from_numpy(each) for key, each in edges.items()}
            return self.module(tensors, index).numpy()


def world(folder: Path, kind: str, fanouts: list[int], *, num_users: int = 40, num_pays: int = 70) -> World:
    """A world of users who pay each other; of kind "typed" they own devices, some of them together."""
    rng = np.random.default_rng(7)
    x = {
        "user": rng.normal(size=(num_users, 3)).astype("f4"),
        "device": rng.normal(size=(12, 2)).astype("f4"),
    }
    pays = rng.integers(0, num_users, (2, num_pays))
    owns = np.stack([np.arange(num_users), rng.integers(0, 12, num_users)])
    users = NodeTable(x["user"], ids=[f"u{at}" for at in range(num_users)], feature_names=COLUMNS)
    typed = kind == "typed"
    if typed:
        nodes = {"user": users, "device": NodeTable(x["device"])}
        tables = {PAYS: EdgeTable(pays, by_row=True), OWNS: EdgeTable(owns, by_row=True)}
        module: nn.Module = Typed()
    else:
        nodes, tables, module = {"user": users}, {PAYS: EdgeTable(pays, by_row=True)}, Plain(CONVS[kind])
    graph = Graph.from_tables(nodes, tables, both_directions=typed).save(folder / "graph")
    report = package(
        module.eval(), graph, folder / "models", name="risk", task="multiclass",
        fanouts=fanouts, target="user" if typed else None,
    )  # fmt: skip
    return World(graph, module, report.path, x, {PAYS: pays, OWNS: owns}, typed)
