"""Every class of `torch_geometric.nn.models`: the modules over node rows it is tried in, or why none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import conv as pyg
from torch_geometric.nn import models as zoo

from benchmarks.zoo_phases.convs import HeteroPlain
from benchmarks.zoo_phases.entry import (
    ATTR_DIM,
    CLASSES,
    WIDTH,
    X_DIM,
    Called,
    Dicts,
    Entry,
    Excluded,
    Table,
    mlp,
)
from benchmarks.zoo_phases.graphs import HETERO_NODES, NUM_NODES

_W = WIDTH

EXCLUDED: Excluded = {
    "ARLinkPredictor": "answers pairs, of rows that it encodes without edges",
    "AttentiveFP": "molecules: answers graphs",
    "CorrectAndSmooth": "needs labels and a mask of the nodes that have one",
    "DimeNet": "molecules",
    "DimeNetPlusPlus": "molecules",
    "GNNFF": "molecules",
    "GPSE": "takes a batch object with random node encodings, answers encodings",
    "GPSENodeEncoder": "takes no edges",
    "InnerProductDecoder": "answers pairs",
    "LPFormer": "answers pairs, and needs a matrix of PageRanks",
    "LightGCN": "takes no node rows: embeddings by number",
    "MLP": "takes no edges",
    "MaskLabel": "needs labels and a mask of the nodes that have one",
    "MetaPath2Vec": "takes no node rows: embeddings by number",
    "NeuralFingerprint": "molecules: answers graphs",
    "Node2Vec": "takes no node rows: embeddings by number",
    "RENet": "events of a knowledge graph",
    "SchNet": "molecules",
    "TGNMemory": "keeps a state of events",
    "ViSNet": "molecules",
    "captum_output_to_dicts": "a function for explainers",
    "to_captum_input": "a function for explainers",
    "to_captum_model": "a function for explainers",
}


class Encoder(nn.Module):
    """Encoder of the autoencoders."""

    def __init__(self, variational: bool = False) -> None:
        super().__init__()
        self.conv1 = pyg.SAGEConv(X_DIM, _W)
        self.conv2 = pyg.SAGEConv(_W, CLASSES)
        self.deviation = pyg.SAGEConv(_W, CLASSES) if variational else None

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        h = self.conv1(x, edge_index).relu()
        mean = self.conv2(h, edge_index)
        return mean if self.deviation is None else (mean, self.deviation(h, edge_index))


def _encoded(make: Callable[[], nn.Module]) -> Entry:
    def encode(model: Any, x: Tensor, edge_index: Tensor) -> Tensor:
        return model.encode(x, edge_index)

    return Entry(lambda: Called(make(), encode), variant="encode")


def _called(
    make: Callable[[], nn.Module], call: Callable[[Any, Tensor, Tensor], Tensor], **options: Any
) -> Entry:
    return Entry(lambda: Called(make(), call), options=options)


def _basic(make: Any, *, attr: bool = False, weight: bool = False, **options: Any) -> list[Entry]:
    """The entries of a `BasicGNN`."""

    def build(**more: Any) -> Callable[[], nn.Module]:
        return lambda: make(X_DIM, _W, 2, CLASSES, **(options | more))

    entries = [
        Entry(build(norm="BatchNorm", jk="cat"), variant="norm and jk"),
        Entry(build(act="elu", norm="LayerNorm"), variant="LayerNorm", options={"freeze": True}),
        Entry(build()),
    ]
    if attr:
        entries.append(Entry(build(edge_dim=ATTR_DIM), "attr"))
    if weight:
        with_weights = {"arguments": {"edge_weight": "edge_weight"}}
        entries.append(Entry(build(), "weight", options=with_weights))
    return entries


class Jumping(nn.Module):
    """Two layers whose rows meet in a JumpingKnowledge."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.SAGEConv(X_DIM, _W), pyg.SAGEConv(_W, _W)
        self.jump = zoo.JumpingKnowledge(mode, _W, 2)
        self.last = nn.Linear(2 * _W if mode == "cat" else _W, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        first = self.conv1(x, edge_index).relu()
        return self.last(self.jump([first, self.conv2(first, edge_index).relu()]))


class HeteroJumping(HeteroPlain):
    """The same over two node types."""

    def __init__(self, mode: str) -> None:
        super().__init__(lambda: pyg.SAGEConv((_W, _W), _W), attr=False)
        self.jump = zoo.HeteroJumpingKnowledge(list(HETERO_NODES), mode, _W, 2)
        self.last = nn.Linear(2 * _W if mode == "cat" else _W, CLASSES)

    def forward(self, x_dict: Dicts, edge_index_dict: Dicts) -> Tensor:
        h = {kind: self.first[kind](x).relu() for kind, x in x_dict.items()}
        states: dict[str, list[Tensor]] = {kind: [] for kind in h}
        for conv in self.convs:
            h = {kind: rows.relu() for kind, rows in conv(h, edge_index_dict).items()}
            for kind, rows in h.items():
                states[kind].append(rows)
        return self.last(self.jump(states)["paper"])


class Messages(nn.Module):
    """A MetaLayer: rows of edges from their ends, rows of nodes from the mean of their edges."""

    def __init__(self) -> None:
        super().__init__()
        self.edge, self.node = mlp(2 * X_DIM, _W), mlp(X_DIM + _W, CLASSES)
        self.layer = zoo.MetaLayer(self._edges, self._nodes)

    def _edges(self, src: Tensor, dst: Tensor, attr: Any, u: Any, batch: Any) -> Tensor:
        return self.edge(torch.cat([src, dst], 1))

    def _nodes(self, x: Tensor, edge_index: Tensor, rows: Tensor, u: Any, batch: Any) -> Tensor:
        from torch_geometric.utils import scatter

        mean = scatter(rows, edge_index[1], dim=0, dim_size=x.size(0), reduce="mean")
        return self.node(torch.cat([x, mean], 1))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layer(x, edge_index)[0]


class Signed(nn.Module):
    """SignedGCN over edges of trust and of distrust."""

    def __init__(self) -> None:
        super().__init__()
        self.model = zoo.SignedGCN(X_DIM, _W, 2)

    def forward(self, x_dict: Dicts, edge_index_dict: Dicts) -> Tensor:
        edges = [edge_index_dict["node", name, "node"] for name in ("trusts", "distrusts")]
        return self.model(x_dict["node"], *edges)


class Deep(nn.Module):
    """Two DeepGCNLayers."""

    def __init__(self, block: str) -> None:
        super().__init__()
        self.first, self.last = (
            nn.Linear(X_DIM, _W),
            nn.Linear(_W * (4 if block == "dense" else 1), CLASSES),
        )
        widths = (_W, 2 * _W) if block == "dense" else (_W, _W)
        self.layers = nn.ModuleList(
            zoo.DeepGCNLayer(pyg.SAGEConv(w, w), nn.LayerNorm(w), nn.ReLU(inplace=True), block=block)
            for w in widths
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = self.first(x)
        for layer in self.layers:
            h = layer(h, edge_index)
        return self.last(h)


class Reversible(nn.Module):
    """GroupAddRev over two groups."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(X_DIM, _W), nn.Linear(_W, CLASSES)
        self.layer = zoo.GroupAddRev(pyg.SAGEConv(_W // 2, _W // 2), num_groups=2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.layer(self.first(x), edge_index))


def _infomax() -> nn.Module:
    return zoo.DeepGraphInfomax(
        CLASSES,
        Encoder(),
        summary=lambda z, *args, **kwargs: z.mean(dim=0).sigmoid(),
        corruption=lambda x, edge_index: (x[torch.randperm(x.size(0))], edge_index),
    )


_PNA: dict[str, Any] = {
    "aggregators": ["mean", "max", "std"],
    "scalers": ["identity", "amplification"],
    "deg": torch.tensor([20, 300, 400, 300, 200, 100, 50, 20, 10, 5]),
}

TABLE: Table = {
    "ARGA": [_encoded(lambda: zoo.ARGA(Encoder(), mlp(CLASSES, 1)))],
    "ARGVA": [_encoded(lambda: zoo.ARGVA(Encoder(True), mlp(CLASSES, 1)))],
    "DeepGCNLayer": [Entry(partial(Deep, block), variant=block) for block in ("res+", "res", "dense")],
    "DeepGraphInfomax": [_called(_infomax, lambda model, x, edge_index: model(x, edge_index)[0])],
    "EdgeCNN": _basic(zoo.EdgeCNN),
    "GAE": [_encoded(lambda: zoo.GAE(Encoder()))],
    "GAT": [
        *_basic(zoo.GAT, attr=True, heads=2),
        Entry(lambda: zoo.GAT(X_DIM, _W, 2, CLASSES, v2=True), variant="v2"),
    ],
    "GCN": _basic(zoo.GCN, weight=True),
    "GIN": _basic(zoo.GIN, train_eps=True),
    "GraphSAGE": _basic(zoo.GraphSAGE),
    "GraphUNet": [Entry(lambda: zoo.GraphUNet(X_DIM, _W, CLASSES, depth=2))],
    "GroupAddRev": [Entry(Reversible)],
    "HeteroJumpingKnowledge": [
        Entry(partial(HeteroJumping, mode), "hetero", mode, target="paper")
        for mode in ("cat", "max", "lstm")
    ],
    "JumpingKnowledge": [Entry(partial(Jumping, mode), variant=mode) for mode in ("cat", "max", "lstm")],
    "LINKX": [
        Entry(
            lambda: zoo.LINKX(NUM_NODES, X_DIM, _W, CLASSES, 2),
            layers=1,
            options={"embeddings": {"edge_lin.weight": "node"}},
        )
    ],
    "LabelPropagation": [
        _called(
            lambda: zoo.LabelPropagation(2, 0.9),
            lambda model, x, edge_index: model(x[:, :CLASSES].sigmoid(), edge_index),
            output="logits",
        )
    ],
    "MetaLayer": [Entry(Messages, layers=1)],
    "PMLP": [
        Entry(lambda: zoo.PMLP(X_DIM, _W, CLASSES, 2, norm=False)),
        Entry(lambda: zoo.PMLP(X_DIM, _W, CLASSES, 2), variant="norm"),
    ],
    "PNA": _basic(zoo.PNA, attr=True, **_PNA),
    "Polynormer": [
        _called(
            lambda: zoo.Polynormer(X_DIM, _W, CLASSES, local_layers=2, global_layers=1),
            lambda model, x, edge_index: model(x, edge_index, torch.zeros(x.size(0), dtype=torch.long)),
        )
    ],
    "RECT_L": [Entry(lambda: zoo.RECT_L(X_DIM, _W), layers=1)],
    "SGFormer": [
        _called(
            lambda: zoo.SGFormer(X_DIM, _W, CLASSES, gnn_num_layers=2),
            lambda model, x, edge_index: model(x, edge_index, torch.zeros(x.size(0), dtype=torch.long)),
        )
    ],
    "SignedGCN": [Entry(Signed, "signed")],
    "VGAE": [_encoded(lambda: zoo.VGAE(Encoder(True)))],
}
