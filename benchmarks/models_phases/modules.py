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
    APPNP,
    GATConv,
    GATv2Conv,
    GCNConv,
    GENConv,
    GINConv,
    HeteroConv,
    HGTConv,
    LGConv,
    MessagePassing,
    PNAConv,
    ResGatedGraphConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
)

DIM, WIDTH, OUT = 64, 128, 32
#: Rows of the learned table of `lightgcn`.
NUM_LEARNED = 1_000_000
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


class Transformer(nn.Module):
    """HGT as in PyG's example: a linear layer for each node type, two convolutions, a linear layer."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target
        metadata = (list(NODE_TYPES), list(EDGE_TYPES))
        self.first = nn.ModuleDict({name: nn.Linear(DIM, WIDTH) for name in NODE_TYPES})
        self.convs = nn.ModuleList(HGTConv(WIDTH, WIDTH, metadata, HEADS) for _ in range(2))
        self.last = nn.Linear(WIDTH, OUT)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        """float32 [n, out] of the target type."""
        h = {name: self.first[name](x).relu() for name, x in x_dict.items()}
        for conv in self.convs:
            h = conv(h, edge_index_dict)
        return self.last(h[self.target])


class Propagated(nn.Module):
    """A linear layer, then APPNP over two hops."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.spread = nn.Linear(DIM, OUT), APPNP(K=2, alpha=0.1)

    def forward(self, x: Tensor, edge_index: Tensor, hops: Any = None) -> Tensor:
        """float32 [n, out]."""
        return self.spread(self.linear(x), edge_index)


class LightGCN(nn.Module):
    """LightGCN: a learned row for each node, and the mean over what is left after 0 to 3 hops.

    Attributes:
        embedding: float32 [NUM_LEARNED, DIM].
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_LEARNED, DIM)
        self.convs = nn.ModuleList(LGConv() for _ in range(3))

    def forward(self, edge_index: Tensor, nodes: Tensor | None = None) -> Tensor:
        """float32 [n, DIM], of all nodes or of those of a sample, int64 [n]."""
        x = self.embedding.weight if nodes is None else self.embedding(nodes)
        out = x / 4
        for conv in self.convs:
            x = conv(x, edge_index)
            out = out + x / 4
        return out


class SharperAttention(GATv2Conv):
    """GATv2 with another message: attention is applied to rows whose negative part is damped."""

    def message(self, x_j: Tensor, alpha: Tensor) -> Tensor:
        """float32 [E, heads, channels]."""
        return nn.functional.leaky_relu(x_j, 0.5) * alpha.unsqueeze(-1)


class GatedMean(MessagePassing):
    """A convolution as people write them: a gate from both ends, the mean, and the node's row."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__(aggr="mean")
        self.value = nn.Linear(width_in, width_out)
        self.gate = nn.Linear(2 * width_in, width_out)
        self.skip = nn.Linear(width_in, width_out)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """float32 [n, width_out]."""
        return self.propagate(edge_index, x=x) + self.skip(x)

    def message(self, x_i: Tensor, x_j: Tensor) -> Tensor:
        """float32 [E, width_out]."""
        return self.value(x_j) * self.gate(torch.cat([x_i, x_j], dim=-1)).sigmoid()


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the benchmark.

    Attributes:
        make: the module with random weights.
        graph: "plain", "relations", "types" or "learned".
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
    # Split by their code.
    "hgt": Entry(lambda: Transformer("user"), "types", (5, 3)),
    "lightgcn": Entry(LightGCN, "learned", (10, 5, 5)),
    "gatv2_subclass": Entry(_heads(SharperAttention), "plain"),
    "appnp": Entry(Propagated, "plain"),
    "resgated": Entry(
        lambda: Layers(ResGatedGraphConv(DIM, WIDTH), ResGatedGraphConv(WIDTH, OUT)), "plain"
    ),
    "gated_mean": Entry(lambda: Layers(GatedMean(DIM, WIDTH), GatedMean(WIDTH, OUT)), "plain"),
}


def make(name: str) -> nn.Module:
    """The module of an entry, with weights that depend on its name only."""
    torch.manual_seed(sum(map(ord, name)))
    return TABLE[name].make().eval()
