"""The models of `benchmarks.models`: one module each, for PyG and for `hopline.package`.

`forward` takes what PyG's models usually take. PyG's side calls it on the sampled subgraph; `hops`, where
it is given, says how many nodes and edges each layer still needs (PyG's `trim_to_layer`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GENConv,
    GINConv,
    HeteroConv,
    PNAConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
)

DIM, WIDTH, OUT = 64, 128, 32
HEADS, HEAD_DIM = 4, 32
NUM_RELATIONS = 4
NODE_TYPES = {"user": 50_000, "item": 40_000, "shop": 10_000}
EDGE_TYPES: tuple[tuple[str, str, str], ...] = (
    ("user", "buys", "item"),
    ("item", "bought_by", "user"),
    ("shop", "sells", "item"),
    ("item", "sold_by", "shop"),
    ("user", "follows", "user"),
    ("user", "visits", "shop"),
)


class Layers(nn.Module):
    """Convolutions with a ReLU between them."""

    def __init__(self, *convs: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(convs)

    def forward(self, x: Tensor, edge_index: Tensor, hops: Any = None) -> Tensor:
        """float32 [n, out]; with `hops`, only the seeds' rows come first and are right."""
        for number, conv in enumerate(self.convs):
            if hops is not None:
                num_nodes, num_edges = hops[number]
                x, edge_index = x[:num_nodes], edge_index[:, :num_edges]
            x = conv(x, edge_index)
            if number + 1 < len(self.convs):
                x = x.relu()
        return x


class Relations(nn.Module):
    """RGCN over one node type."""

    def __init__(self) -> None:
        super().__init__()
        self.a = RGCNConv(DIM, WIDTH, NUM_RELATIONS)
        self.b = RGCNConv(WIDTH, OUT, NUM_RELATIONS)

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        """float32 [n, out]."""
        return self.b(self.a(x, edge_index, edge_type).relu(), edge_index, edge_type)


class Types(nn.Module):
    """Two layers over several node and edge types; `make(in, out)` is one convolution."""

    def __init__(self, make: Callable[[int, int], nn.Module], hidden: int, target: str) -> None:
        super().__init__()
        self.target = target
        self.a = HeteroConv({edge: make(DIM, WIDTH) for edge in EDGE_TYPES}, aggr="sum")
        into = {edge: make(hidden, OUT) for edge in EDGE_TYPES if edge[2] == target}
        with warnings.catch_warnings():
            # PyG warns of types that a layer does not update; the last layer needs only the target.
            warnings.filterwarnings("ignore", message="There exist node types")
            self.b = HeteroConv(into, aggr="sum")

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        """float32 [n, out] of the target type."""
        h = {name: x.relu() for name, x in self.a(x_dict, edge_index_dict).items()}
        return self.b(h, edge_index_dict)[self.target]


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the benchmark.

    Attributes:
        make: the module with random weights.
        graph: "plain", "relations" or "types".
        fanouts: of every edge type.
    """

    make: Callable[[], nn.Module]
    graph: str
    fanouts: tuple[int, ...] = (10, 5)


def _gin(width_in: int, width_out: int) -> GINConv:
    return GINConv(nn.Sequential(nn.Linear(width_in, WIDTH), nn.ReLU(), nn.Linear(WIDTH, width_out)))


def _pna(width_in: int, width_out: int) -> PNAConv:
    scalers, degrees = ["identity", "amplification", "attenuation"], torch.tensor([1, 2, 4, 8, 16, 32])
    return PNAConv(width_in, width_out, ["mean", "min", "max", "std"], scalers, degrees)


def _heads(conv: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: Layers(
        conv(DIM, HEAD_DIM, heads=HEADS, **options),
        conv(HEADS * HEAD_DIM, OUT, heads=HEADS, concat=False, **options),
    )


TABLE: dict[str, Entry] = {
    "gat": Entry(_heads(GATConv), "plain"),
    "gatv2": Entry(_heads(GATv2Conv), "plain"),
    "transformer": Entry(_heads(TransformerConv), "plain"),
    "gin": Entry(lambda: Layers(_gin(DIM, WIDTH), _gin(WIDTH, OUT)), "plain"),
    "gcn": Entry(lambda: Layers(GCNConv(DIM, WIDTH), GCNConv(WIDTH, OUT)), "plain"),
    "sage2": Entry(lambda: Layers(SAGEConv(DIM, WIDTH), SAGEConv(WIDTH, OUT)), "plain"),
    "sage3": Entry(
        lambda: Layers(SAGEConv(DIM, WIDTH), SAGEConv(WIDTH, WIDTH), SAGEConv(WIDTH, OUT)),
        "plain",
        (15, 10, 5),
    ),
    "pna": Entry(lambda: Layers(_pna(DIM, WIDTH), _pna(WIDTH, OUT)), "plain"),
    "gen": Entry(lambda: Layers(GENConv(DIM, WIDTH), GENConv(WIDTH, OUT)), "plain"),
    "rgcn": Entry(Relations, "relations", (4, 3)),
    "hetero_sage": Entry(lambda: Types(lambda a, b: SAGEConv((a, a), b), WIDTH, "user"), "types", (5, 3)),
    "hetero_gatv2": Entry(
        lambda: Types(
            lambda a, b: GATv2Conv((a, a), b // HEADS, heads=HEADS, add_self_loops=False), WIDTH, "user"
        ),
        "types",
        (5, 3),
    ),
}


def make(name: str) -> nn.Module:
    """The module of an entry, with weights that depend on its name only."""
    torch.manual_seed(sum(map(ord, name)))
    return TABLE[name].make().eval()
