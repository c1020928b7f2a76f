"""Packaged models of every kind that the engine treats apart, each with its module and its graph."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    from torch_geometric.nn import (
        FAConv,
        GATConv,
        GATv2Conv,
        GCNConv,
        GENConv,
        GINEConv,
        HeteroConv,
        LGConv,
        MessagePassing,
        PNAConv,
        SAGEConv,
        TransformerConv,
    )
    from torch_geometric.utils import add_self_loops, degree, remove_self_loops, softmax

from hopline.artifact import read_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model, StateCachePlan
from hopline.engine.tasks import default_outputs
from hopline.graph import EdgeTable, Graph, NodeTable
from hopline.memory.arena import Arena
from tests.packaged import package

N = 120
EDGE = "node__to__node"


class Sage(nn.Module):
    """Two mean layers, one max layer, a skip connection and a head."""

    def __init__(self):
        super().__init__()
        self.a = SAGEConv(6, 16)
        self.b = SAGEConv(16, 16, aggr="max")
        self.c = SAGEConv(16, 8)
        self.out = nn.Linear(8 + 16, 3)

    def forward(self, x, edge_index):
        h1 = self.a(x, edge_index).relu()
        h2 = self.b(h1, edge_index).relu() + h1
        h3 = self.c(h2, edge_index).relu()
        return self.out(torch.cat([h3, h1], dim=-1))


class Plain(nn.Module):
    """What most people serve: every layer an own row and a mean or sum."""

    def __init__(self):
        super().__init__()
        self.a = SAGEConv(6, 16)
        self.b = SAGEConv(16, 12, aggr="sum")
        self.c = SAGEConv(12, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x, edge_index):
        h2 = self.b(self.a(x, edge_index).relu(), edge_index).relu()
        return self.out(self.c(h2, edge_index).relu())


class Gcn(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = GCNConv(6, 16)
        self.b = GCNConv(16, 1)

    def forward(self, x, edge_index, edge_weight):
        return self.b(self.a(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


class Gat(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = GATConv(6, 8, heads=2, edge_dim=2, add_self_loops=False)
        self.b = GATConv(16, 4, heads=2, concat=False)

    def forward(self, x, edge_index, edge_attr):
        return self.b(self.a(x, edge_index, edge_attr).relu(), edge_index)


class Mixed(nn.Module):
    """Attention of every kind, beside rows of edges in one stage, and edge code in another."""

    def __init__(self):
        super().__init__()
        self.a = GATv2Conv(6, 8, heads=2, edge_dim=2)
        self.b = TransformerConv(16, 8, heads=2, edge_dim=2, beta=True)
        self.c = GINEConv(nn.Linear(16, 16), edge_dim=2)
        self.d = GATConv(16, 3, residual=True)
        self.e = GATv2Conv(16, 3, edge_dim=4, share_weights=True)
        self.edge = nn.Linear(2, 4)

    def forward(self, x, edge_index, edge_attr):
        h = self.a(x, edge_index, edge_attr).relu()
        h = (self.b(h, edge_index, edge_attr) + self.c(h, edge_index, edge_attr)).relu()
        return self.d(h, edge_index) + self.e(h, edge_index, self.edge(edge_attr).relu())


class Aggregated(nn.Module):
    """Aggregations over rows of edges; odd widths, and activations that a runtime may vectorise."""

    def __init__(self):
        super().__init__()
        degrees = torch.tensor([5, 9, 12, 8, 3])
        scalers = ["identity", "amplification", "attenuation"]
        self.a = PNAConv(6, 6, ["mean", "min", "max", "std"], scalers, degrees, edge_dim=2, towers=3)
        self.b = GENConv(6, 7, learn_t=True, norm="layer", edge_dim=2)
        self.c = SAGEConv(7, 3, aggr=["mean", "var"])

    def forward(self, x, edge_index, edge_attr):
        h = nn.functional.elu(self.a(x, edge_index, edge_attr))
        h = nn.functional.softplus(self.b(h, edge_index, edge_attr))
        return self.c(h, edge_index)


class Edgewise(MessagePassing):
    """A convolution of somebody's own: gated messages, an attention, and the number of neighbours."""

    def __init__(self, dim, out):
        super().__init__(aggr=["sum", "max"])
        self.gate, self.out = nn.Linear(2 * dim + 2, dim), nn.Linear(2 * dim, out)

    def forward(self, x, edge_index, edge_attr):
        edge_index, edge_attr = remove_self_loops(edge_index, edge_attr)
        edge_index, edge_attr = add_self_loops(edge_index, edge_attr, "mean", num_nodes=x.size(0))
        count = degree(edge_index[1], x.size(0))
        return self.propagate(edge_index, x=x, edge_attr=edge_attr) / count.sqrt().view(-1, 1)

    def message(self, x_i, x_j, edge_attr, index, ptr, size_i):
        gate = self.gate(torch.cat([x_i, x_j, edge_attr], dim=-1))
        return softmax(gate.sum(dim=-1, keepdim=True), index, ptr, size_i) * torch.sigmoid(gate) * x_j

    def update(self, aggregated):
        return self.out(aggregated)


class General(nn.Module):
    """Convolutions without a dense form: a reduction, blocks with and without self-loops, degrees."""

    def __init__(self):
        super().__init__()
        self.a = Edgewise(6, 9)
        self.b = FAConv(9)
        self.c = LGConv()
        self.out = nn.Linear(9, 3)

    def forward(self, x, edge_index, edge_attr):
        first = self.a(x, edge_index, edge_attr).tanh()
        return self.out(self.c(nn.functional.elu(self.b(first, first, edge_index)), edge_index))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 12)
        self.a = SAGEConv(12, 16)
        self.b = SAGEConv(16, 8)

    def forward(self, x, edge_index):
        return self.b(self.a(self.lin(x).relu(), edge_index).relu(), edge_index)


class Hetero(nn.Module):
    def __init__(self):
        super().__init__()

        def layer(users, items, out):
            return HeteroConv(
                {
                    ("user", "buys", "item"): SAGEConv((users, items), out),
                    ("item", "bought_by", "user"): SAGEConv((items, users), out),
                    ("user", "knows", "user"): GATConv(users, out, add_self_loops=False),
                },
                aggr="sum",
            )

        self.a = layer(5, 7, 12)
        self.b = layer(12, 12, 4)

    def forward(self, x_dict, edge_index_dict):
        h = {t: x.relu() for t, x in self.a(x_dict, edge_index_dict).items()}
        return self.b(h, edge_index_dict)["user"]


class Learned(Hetero):
    """The rows of users are learned, and they have no others."""

    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(80, 5)

    def forward(self, x_dict, edge_index_dict):
        return super().forward(x_dict | {"user": self.users.weight}, edge_index_dict)


@dataclass
class Case:
    """One model: `module(graph tensors)` is the oracle, `folder` the artifact."""

    name: str
    folder: Path
    module: nn.Module
    graph: Graph

    def model(self, caches: bool, fanout: int | None = None, max_degree: int | None = None) -> Model:
        """Load it, with state caches that hold every row or none; `fanout` replaces all fanouts."""
        spec = read_spec(self.folder)
        if fanout is not None:
            import msgspec

            fanouts = dict.fromkeys(spec.fanouts, (fanout,) * spec.num_layers)
            spec = msgspec.structs.replace(spec, fanouts=fanouts, max_degree=max_degree)
        plan = StateCachePlan(spec, self.graph, 2**26 if caches else 0)
        return Model(self.folder, spec, self.graph, plan.build(Arena(plan.num_bytes)))

    def answerer(self, caches: bool, fanout: int | None = None) -> Answerer:
        model = self.model(caches, fanout)
        return Answerer(model, default_outputs(model.spec), 1000)

    def oracle(self, graph: Graph | None = None) -> np.ndarray:
        """PyG on the full graph: logits (node models) or final states (link models)."""
        with torch.no_grad():
            return self.module(*tensors(graph or self.graph, self.name)).numpy()


def tensors(graph: Graph, name: str) -> tuple:
    """The module's arguments for a graph."""
    if name in ("hetero", "learned"):
        return (
            {t: torch.from_numpy(np.array(n.features)) for t, n in graph.nodes.items()},
            {(e.src, e.relation, e.dst): edge_index(e) for e in graph.edges.values()},
        )
    edges = graph.edges[EDGE]
    arguments = [torch.from_numpy(np.array(graph.nodes["node"].features)), edge_index(edges)]
    if name == "gcn":
        arguments.append(torch.from_numpy(np.array(edges.weight)))
    if name in ("gat", "mixed", "aggregated", "general"):
        arguments.append(torch.from_numpy(np.array(edges.attr)))
    return tuple(arguments)


def edge_index(edges) -> torch.Tensor:
    destinations = np.repeat(np.arange(len(edges.indptr) - 1), np.diff(edges.indptr))
    return torch.from_numpy(np.stack([edges.indices.astype(np.int64), destinations]))


def homogeneous(seed: int, keep: np.ndarray | None = None, since: np.datetime64 | None = None) -> Graph:
    """Hubs, isolated nodes, self-loops, multi-edges; times, weights, attributes; string ids.

    Times are 0 to 99; or as many hours after `since`, in its unit.
    """
    rng = np.random.default_rng(seed)
    count = 900
    edges = (N * rng.random((2, count)) ** 2).astype(np.int64)
    edges[:, :5] = 3  # repeated self-loops
    table = {
        "edge_time": rng.integers(0, 100, count),
        "edge_weight": rng.random(count).astype(np.float32) + np.float32(0.1),
        "edge_attr": rng.standard_normal((count, 2)).astype(np.float32),
    }
    if since is not None:
        table["edge_time"] = since + table["edge_time"].astype("m8[h]")
    x = rng.standard_normal((N, 6)).astype(np.float32)
    if keep is not None:
        edges, table = edges[:, keep], {name: values[keep] for name, values in table.items()}
    ids = [f"n{i}" for i in range(N)]
    return Graph.from_edges(edge_ids(edges), x, ids=ids, **table)


def edge_ids(edges: np.ndarray) -> list[list[str]]:
    return [[f"n{i}" for i in row] for row in edges]


def times(seed: int) -> np.ndarray:
    """Edge times of `homogeneous(seed)` in input order."""
    rng = np.random.default_rng(seed)
    rng.random((2, 900))
    return rng.integers(0, 100, 900)


def heterogeneous(*, learned: bool = False) -> Graph:
    """Users and items; with `learned`, users have no features."""
    rng = np.random.default_rng(5)

    def edges(a, b, count):
        return EdgeTable(np.stack([rng.integers(0, a, count), (b * rng.random(count) ** 2).astype(int)]))

    return Graph.from_tables(
        {
            "user": NodeTable(
                None if learned else rng.standard_normal((80, 5)).astype(np.float32), num_nodes=80
            ),
            "item": NodeTable(rng.standard_normal((60, 7)).astype(np.float32)),
        },
        {
            ("user", "buys", "item"): edges(80, 60, 400),
            ("item", "bought_by", "user"): edges(60, 80, 400),
            ("user", "knows", "user"): edges(80, 80, 300),
        },
    )


def build(repository: Path) -> dict[str, Case]:
    """Package every model of the zoo."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    g = homogeneous(1)
    plans = [
        ("sage", Sage(), g, [4, 3, 5], {"task": "multiclass"}),
        ("plain", Plain(), g, [4, 3, 5], {"task": "multiclass"}),
        ("gcn", Gcn(), g, [4, 3], {"task": "binary"}),
        ("gat", Gat(), g, [4, 3], {"task": "multiclass"}),
        ("mixed", Mixed(), g, [4, 3, 3], {"task": "multiclass"}),
        ("aggregated", Aggregated(), g, [4, 3, 3], {"task": "multiclass"}),
        ("general", General(), g, [4, 3, 3], {"task": "multiclass"}),
        ("hetero", Hetero(), heterogeneous(), [4, 3], {"task": "multiclass", "target": "user"}),
        (
            "learned",
            Learned(),
            heterogeneous(learned=True),
            [4, 3],
            {
                "task": "multiclass",
                "target": "user",
                "embeddings": {"users": "user"},
                "later_nodes": "zero",
            },
        ),
        ("link", Encoder(), g, [4, 3], {"task": "binary", "head": "dot"}),
    ]
    cases = {}
    for name, module, graph, fanouts, options in plans:
        module.eval()
        report = package(module, graph, repository, name=name, fanouts=fanouts, check_nodes=60, **options)
        cases[name] = Case(name, report.path, module, graph)
    return cases
