"""Every class of `torch_geometric.nn.conv`: the modules of two layers that it is tried in, or why none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import conv as pyg

from benchmarks.zoo_phases.entry import (
    ATTR_DIM,
    CLASSES,
    WIDTH,
    X_DIM,
    Attr,
    Dicts,
    Entry,
    Excluded,
    Initial,
    Layers,
    Plain,
    Relations,
    RelationsAttr,
    Table,
    Weight,
    mlp,
)
from benchmarks.zoo_phases.graphs import HETERO, HETERO_NODES, NUM_RELATIONS

_W = WIDTH
Make = Callable[[], nn.Module]

EXCLUDED: Excluded = {
    "MessagePassing": "the base class of the others",
    "CuGraphGATConv": "needs pylibcugraphops",
    "CuGraphRGCNConv": "needs pylibcugraphops",
    "CuGraphSAGEConv": "needs pylibcugraphops",
    "DynamicEdgeConv": "point clouds: makes its own edges, with torch-cluster",
    "FusedGATConv": "needs dgNN",
    "GravNetConv": "point clouds: makes its own edges, with torch-cluster",
    "MeshCNNConv": "meshes: rows are edges of a mesh, each with four neighbours in order",
    "PANConv": "needs torch-sparse",
    "PPFConv": "point clouds: positions and normals",
    "PointGNNConv": "point clouds: positions",
    "PointNetConv": "point clouds: positions",
    "PointTransformerConv": "point clouds: positions",
    "SplineConv": "needs torch-spline-conv",
    "XConv": "point clouds: makes its own edges, with torch-cluster",
}


def _two(make: Make, layers: type[Layers] = Plain, width: int = _W) -> Make:
    return lambda: layers([make(), make()], width)


def _plain(make: Make, variant: str = "") -> Entry:
    return Entry(_two(make), variant=variant)


def _both(make: Make, variant: str = "") -> Entry:
    return Entry(_two(make), "both", variant)


def _attr(make: Make, variant: str = "") -> Entry:
    return Entry(_two(make, Attr), "attr", variant)


def _weight(make: Make, variant: str = "") -> Entry:
    return Entry(_two(make, Weight), "weight", variant)


class Hetero(nn.Module):
    """Two layers of HeteroConv, a convolution for each edge type."""

    def __init__(self, make: Make, attr: bool) -> None:
        super().__init__()
        self.first = nn.ModuleDict({kind: nn.Linear(X_DIM, _W) for kind in HETERO_NODES})
        self.convs = nn.ModuleList(pyg.HeteroConv({key: make() for key in HETERO}) for _ in range(2))
        self.last = nn.Linear(_W, CLASSES)

    def run(self, x_dict: Dicts, edge_index_dict: Dicts, **more: Dicts) -> Tensor:
        h = {kind: self.first[kind](x).relu() for kind, x in x_dict.items()}
        for conv in self.convs:
            h = {kind: rows.relu() for kind, rows in conv(h, edge_index_dict, **more).items()}
        return self.last(h["paper"])


class HeteroPlain(Hetero):
    """Over the edges alone."""

    def forward(self, x_dict: Dicts, edge_index_dict: Dicts) -> Tensor:
        return self.run(x_dict, edge_index_dict)


class HeteroAttr(Hetero):
    """With edge attributes."""

    def forward(self, x_dict: Dicts, edge_index_dict: Dicts, edge_attr_dict: Dicts) -> Tensor:
        return self.run(x_dict, edge_index_dict, edge_attr_dict=edge_attr_dict)


class Native(nn.Module):
    """Two layers of a convolution that is itself heterogeneous."""

    def __init__(self, make: Callable[[Any], nn.Module]) -> None:
        super().__init__()
        metadata = (list(HETERO_NODES), list(HETERO))
        self.first = nn.ModuleDict({kind: nn.Linear(X_DIM, _W) for kind in HETERO_NODES})
        self.convs = nn.ModuleList(make(metadata) for _ in range(2))
        self.last = nn.Linear(_W, CLASSES)

    def forward(self, x_dict: Dicts, edge_index_dict: Dicts) -> Tensor:
        h = {kind: self.first[kind](x).relu() for kind, x in x_dict.items()}
        for conv in self.convs:
            h = {kind: rows.relu() for kind, rows in conv(h, edge_index_dict).items()}
        return self.last(h["paper"])


class Signed(nn.Module):
    """Two layers over edges of trust and of distrust."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = pyg.SignedConv(X_DIM, _W // 2, first_aggr=True)
        self.conv2 = pyg.SignedConv(_W // 2, _W // 2, first_aggr=False)
        self.last = nn.Linear(_W, CLASSES)

    def forward(self, x_dict: Dicts, edge_index_dict: Dicts) -> Tensor:
        edges = [edge_index_dict["node", name, "node"] for name in ("trusts", "distrusts")]
        h = self.conv1(x_dict["node"], *edges).relu()
        return self.last(self.conv2(h, *edges).relu())


class WithoutTypes(RelationsAttr):
    """HEATConv, whose nodes are all of one type here."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, edge_attr: Tensor) -> Tensor:
        types = torch.zeros(x.size(0), dtype=torch.long)
        return self.run(x, edge_index, types, edge_type, edge_attr)


class History(Layers):
    """DNAConv, which reads the rows of all layers before it."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        states = self.first(x).relu().view(-1, 1, _W)
        for conv in self.convs:
            h = conv(states, edge_index).relu()
            states = torch.cat([states, h.view(-1, 1, _W)], dim=1)
        return self.last(states[:, -1])


class Colours(nn.Module):
    """WLConv, whose rows are numbers of colours."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.WLConv() for _ in range(2))
        self.last = nn.Linear(1, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = (x[:, 0] > 0).long()
        for conv in self.convs:
            h = conv(h, edge_index)
        return self.last(h.view(-1, 1).float())


def _hetero(make: Make, variant: str = "") -> Entry:
    return Entry(lambda: HeteroPlain(make, attr=False), "hetero", variant, target="paper")


def _hetero_attr(make: Make, variant: str = "") -> Entry:
    return Entry(lambda: HeteroAttr(make, attr=True), "hetero_attr", variant, target="paper")


def _relations(make: Make, variant: str = "") -> Entry:
    return Entry(_two(make, Relations), "relations", variant)


_PAIR = (_W, _W)
_DEGREES = torch.tensor([20, 300, 400, 300, 200, 100, 50, 20, 10, 5])
_SCALERS = ["identity", "amplification", "attenuation"]

TABLE: Table = {
    "AGNNConv": [_plain(lambda: pyg.AGNNConv())],
    "APPNP": [_plain(lambda: pyg.APPNP(3, 0.1)), _weight(lambda: pyg.APPNP(3, 0.1))],
    "ARMAConv": [
        _plain(lambda: pyg.ARMAConv(_W, _W, num_stacks=2, num_layers=2)),
        _weight(lambda: pyg.ARMAConv(_W, _W)),
    ],
    "AntiSymmetricConv": [_plain(lambda: pyg.AntiSymmetricConv(_W))],
    "CGConv": [
        _plain(lambda: pyg.CGConv(_W)),
        _attr(lambda: pyg.CGConv(_W, ATTR_DIM, batch_norm=True)),
        _hetero(lambda: pyg.CGConv(_PAIR)),
        _hetero_attr(lambda: pyg.CGConv(_PAIR, ATTR_DIM)),
    ],
    "ChebConv": [
        _both(lambda: pyg.ChebConv(_W, _W, 3)),
        Entry(_two(lambda: pyg.ChebConv(_W, _W, 2), Weight), "both_weight"),
    ],
    "ClusterGCNConv": [_plain(lambda: pyg.ClusterGCNConv(_W, _W, diag_lambda=0.1))],
    "DNAConv": [Entry(_two(lambda: pyg.DNAConv(_W, 4, 4), History))],
    "DirGNNConv": [
        _both(lambda: pyg.DirGNNConv(pyg.SAGEConv(_W, _W))),
        _both(lambda: pyg.DirGNNConv(pyg.GCNConv(_W, _W)), "GCNConv"),
    ],
    "EGConv": [
        _plain(lambda: pyg.EGConv(_W, _W, aggregators=["sum", "mean", "max"])),
        _plain(lambda: pyg.EGConv(_W, _W, aggregators=["symnorm", "std"]), "symnorm"),
    ],
    "EdgeConv": [
        _plain(lambda: pyg.EdgeConv(mlp(2 * _W, _W))),
        _hetero(lambda: pyg.EdgeConv(mlp(2 * _W, _W))),
    ],
    "FAConv": [Entry(_two(lambda: pyg.FAConv(_W), Initial))],
    "FastRGCNConv": [
        _relations(lambda: pyg.FastRGCNConv(_W, _W, NUM_RELATIONS)),
        _relations(lambda: pyg.FastRGCNConv(_W, _W, NUM_RELATIONS, num_bases=2), "bases"),
    ],
    "FeaStConv": [
        _plain(lambda: pyg.FeaStConv(_W, _W, heads=2)),
        _hetero(lambda: pyg.FeaStConv(_W, _W, heads=2, add_self_loops=False)),
    ],
    "FiLMConv": [
        _plain(lambda: pyg.FiLMConv(_W, _W)),
        _hetero(lambda: pyg.FiLMConv(_PAIR, _W)),
        _relations(lambda: pyg.FiLMConv(_W, _W, num_relations=NUM_RELATIONS)),
    ],
    "GATConv": [
        _plain(lambda: pyg.GATConv(_W, _W // 4, heads=4)),
        _plain(lambda: pyg.GATConv(_W, _W, heads=2, concat=False, residual=True), "residual"),
        _attr(lambda: pyg.GATConv(_W, _W // 2, heads=2, edge_dim=ATTR_DIM)),
        _hetero(lambda: pyg.GATConv(_PAIR, _W // 2, heads=2, add_self_loops=False)),
        _hetero_attr(lambda: pyg.GATConv(_PAIR, _W, edge_dim=ATTR_DIM, add_self_loops=False)),
    ],
    "GATv2Conv": [
        _plain(lambda: pyg.GATv2Conv(_W, _W // 4, heads=4)),
        _plain(lambda: pyg.GATv2Conv(_W, _W, share_weights=True, residual=True), "residual"),
        _attr(lambda: pyg.GATv2Conv(_W, _W // 2, heads=2, edge_dim=ATTR_DIM)),
        _hetero(lambda: pyg.GATv2Conv(_PAIR, _W // 2, heads=2, add_self_loops=False)),
        _hetero_attr(lambda: pyg.GATv2Conv(_PAIR, _W, edge_dim=ATTR_DIM, add_self_loops=False)),
    ],
    "GCN2Conv": [Entry(lambda: Initial([pyg.GCN2Conv(_W, 0.1, 0.5, layer) for layer in (1, 2)]))],
    "GCNConv": [
        _plain(lambda: pyg.GCNConv(_W, _W)),
        _plain(lambda: pyg.GCNConv(_W, _W, improved=True), "improved"),
        _plain(lambda: pyg.GCNConv(_W, _W, normalize=False), "not normalized"),
        _plain(lambda: pyg.GCNConv(_W, _W, cached=True), "cached"),
        _weight(lambda: pyg.GCNConv(_W, _W)),
        _weight(lambda: pyg.GCNConv(_W, _W, normalize=False), "not normalized"),
    ],
    "GENConv": [
        _plain(lambda: pyg.GENConv(_W, _W, learn_t=True, norm="layer")),
        _plain(lambda: pyg.GENConv(_W, _W, aggr="powermean", learn_p=True, msg_norm=True), "powermean"),
        _attr(lambda: pyg.GENConv(_W, _W, edge_dim=ATTR_DIM)),
        _hetero(lambda: pyg.GENConv(_PAIR, _W)),
    ],
    "GINConv": [
        _plain(lambda: pyg.GINConv(mlp(_W, _W), train_eps=True)),
        _hetero(lambda: pyg.GINConv(mlp(_W, _W))),
    ],
    "GINEConv": [
        _attr(lambda: pyg.GINEConv(mlp(_W, _W), edge_dim=ATTR_DIM)),
        _hetero_attr(lambda: pyg.GINEConv(mlp(_W, _W), edge_dim=ATTR_DIM)),
    ],
    "GMMConv": [
        _attr(lambda: pyg.GMMConv(_W, _W, ATTR_DIM, 3)),
        _hetero_attr(lambda: pyg.GMMConv(_PAIR, _W, ATTR_DIM, 3)),
    ],
    "GPSConv": [
        _plain(lambda: pyg.GPSConv(_W, pyg.GINConv(mlp(_W, _W)), heads=2)),
        _plain(lambda: pyg.GPSConv(_W, pyg.SAGEConv(_W, _W), heads=2, attn_type="performer"), "performer"),
    ],
    "GatedGraphConv": [
        _plain(lambda: pyg.GatedGraphConv(_W, 2)),
        _weight(lambda: pyg.GatedGraphConv(_W, 1)),
    ],
    "GeneralConv": [
        _plain(lambda: pyg.GeneralConv(_W, _W, attention=True, heads=2)),
        _plain(lambda: pyg.GeneralConv(_W, _W, directed_msg=False, l2_normalize=True), "l2"),
        _attr(lambda: pyg.GeneralConv(_W, _W, ATTR_DIM, attention=True, heads=2)),
        _hetero(lambda: pyg.GeneralConv(_PAIR, _W)),
    ],
    "GraphConv": [
        _plain(lambda: pyg.GraphConv(_W, _W)),
        _plain(lambda: pyg.GraphConv(_W, _W, aggr="max"), "max"),
        _weight(lambda: pyg.GraphConv(_W, _W, aggr="mean")),
        _hetero(lambda: pyg.GraphConv(_PAIR, _W)),
    ],
    "HANConv": [
        Entry(
            lambda: Native(lambda meta: pyg.HANConv(_W, _W, meta, heads=2)),
            "hetero",
            target="paper",
            options={"freeze": True},
        )
    ],
    "HEATConv": [
        Entry(
            _two(lambda: pyg.HEATConv(_W, _W, 1, NUM_RELATIONS, 4, ATTR_DIM, 4), WithoutTypes),
            "relations_attr",
        )
    ],
    "HGTConv": [
        Entry(lambda: Native(lambda meta: pyg.HGTConv(_W, _W, meta, heads=2)), "hetero", target="paper")
    ],
    "HeteroConv": [
        _hetero(lambda: pyg.SAGEConv(_PAIR, _W)),
        Entry(lambda: _aggregated("mean"), "hetero", "mean", target="paper"),
        Entry(lambda: _aggregated("max"), "hetero", "max", target="paper"),
        Entry(lambda: _aggregated("cat"), "hetero", "cat", target="paper"),
    ],
    "HypergraphConv": [_both(lambda: pyg.HypergraphConv(_W, _W))],
    "LEConv": [
        _plain(lambda: pyg.LEConv(_W, _W)),
        _weight(lambda: pyg.LEConv(_W, _W)),
        _hetero(lambda: pyg.LEConv(_PAIR, _W)),
    ],
    "LGConv": [
        _plain(lambda: pyg.LGConv()),
        _plain(lambda: pyg.LGConv(normalize=False), "not normalized"),
        _weight(lambda: pyg.LGConv()),
    ],
    "MFConv": [
        _plain(lambda: pyg.MFConv(_W, _W, max_degree=6)),
        _hetero(lambda: pyg.MFConv(_PAIR, _W, max_degree=6)),
    ],
    "MixHopConv": [
        Entry(
            lambda: Plain([pyg.MixHopConv(_W, _W, [0, 1, 2]), pyg.MixHopConv(3 * _W, _W, [0, 1])], 2 * _W)
        ),
    ],
    "NNConv": [
        _attr(lambda: pyg.NNConv(_W, _W, mlp(ATTR_DIM, _W * _W), aggr="mean")),
        _hetero_attr(lambda: pyg.NNConv(_PAIR, _W, mlp(ATTR_DIM, _W * _W))),
    ],
    "PDNConv": [_attr(lambda: pyg.PDNConv(_W, _W, ATTR_DIM, 8))],
    "PNAConv": [
        _plain(lambda: pyg.PNAConv(_W, _W, ["mean", "min", "max", "std"], _SCALERS, _DEGREES)),
        _attr(
            lambda: pyg.PNAConv(_W, _W, ["mean", "sum"], _SCALERS, _DEGREES, edge_dim=ATTR_DIM, towers=2)
        ),
    ],
    "RGATConv": [
        _relations(lambda: pyg.RGATConv(_W, _W, NUM_RELATIONS)),
        Entry(
            _two(lambda: pyg.RGATConv(_W, _W, NUM_RELATIONS, edge_dim=ATTR_DIM), RelationsAttr),
            "relations_attr",
        ),
    ],
    "RGCNConv": [
        _relations(lambda: pyg.RGCNConv(_W, _W, NUM_RELATIONS)),
        _relations(lambda: pyg.RGCNConv(_W, _W, NUM_RELATIONS, num_bases=2, aggr="add"), "bases"),
        _relations(lambda: pyg.RGCNConv(_W, _W, NUM_RELATIONS, num_blocks=4, aggr="max"), "blocks"),
    ],
    "ResGatedGraphConv": [
        _plain(lambda: pyg.ResGatedGraphConv(_W, _W)),
        _attr(lambda: pyg.ResGatedGraphConv(_W, _W, edge_dim=ATTR_DIM)),
        _hetero(lambda: pyg.ResGatedGraphConv(_PAIR, _W)),
    ],
    "SAGEConv": [
        _plain(lambda: pyg.SAGEConv(_W, _W)),
        _plain(lambda: pyg.SAGEConv(_W, _W, aggr="max", project=True, normalize=True), "max"),
        _plain(lambda: pyg.SAGEConv(_W, _W, aggr=["mean", "std"]), "mean and std"),
        Entry(_two(lambda: pyg.SAGEConv(_W, _W, aggr="lstm")), "sorted", "lstm"),
        _plain(lambda: pyg.SAGEConv(_W, _W, aggr="median"), "median"),
        _both(lambda: pyg.SAGEConv(_W, _W, flow="target_to_source"), "out-edges"),
        _hetero(lambda: pyg.SAGEConv(_PAIR, _W)),
    ],
    "SGConv": [_plain(lambda: pyg.SGConv(_W, _W, K=2)), _weight(lambda: pyg.SGConv(_W, _W, K=2))],
    "SSGConv": [
        _plain(lambda: pyg.SSGConv(_W, _W, 0.1, K=3)),
        _weight(lambda: pyg.SSGConv(_W, _W, 0.1, K=2)),
    ],
    "SignedConv": [Entry(Signed, "signed")],
    "SimpleConv": [
        _plain(lambda: pyg.SimpleConv("mean", "self_loop")),
        _weight(lambda: pyg.SimpleConv("sum", "sum")),
        _hetero(lambda: pyg.SimpleConv("mean", "sum")),
    ],
    "SuperGATConv": [
        _plain(lambda: pyg.SuperGATConv(_W, _W // 4, heads=4)),
        _plain(lambda: pyg.SuperGATConv(_W, _W, attention_type="SD"), "SD"),
    ],
    "TAGConv": [
        _plain(lambda: pyg.TAGConv(_W, _W, K=3)),
        _plain(lambda: pyg.TAGConv(_W, _W, K=2, normalize=False), "not normalized"),
        _weight(lambda: pyg.TAGConv(_W, _W, K=2)),
    ],
    "TransformerConv": [
        _plain(lambda: pyg.TransformerConv(_W, _W // 4, heads=4, beta=True)),
        _attr(lambda: pyg.TransformerConv(_W, _W // 2, heads=2, edge_dim=ATTR_DIM)),
        _hetero(lambda: pyg.TransformerConv(_PAIR, _W // 2, heads=2)),
        _hetero_attr(lambda: pyg.TransformerConv(_PAIR, _W, edge_dim=ATTR_DIM)),
    ],
    "WLConv": [Entry(Colours)],
    "WLConvContinuous": [
        _plain(lambda: pyg.WLConvContinuous()),
        _weight(lambda: pyg.WLConvContinuous()),
    ],
}


def _aggregated(aggr: str) -> nn.Module:
    """HeteroConv with other ways to join what the edge types give."""
    model = HeteroPlain(lambda: pyg.SAGEConv(_PAIR, _W), attr=False)
    for conv in model.convs:
        setattr(conv, "aggr", aggr)  # noqa: B010
    if aggr == "cat":  # papers have two edge types, authors one
        widths = {"paper": 2 * _W, "author": _W}
        second = {key: pyg.SAGEConv((widths[key[0]], widths[key[2]]), _W) for key in HETERO}
        model.convs[1] = pyg.HeteroConv(second, aggr=aggr)
        model.last = nn.Linear(2 * _W, CLASSES)
    return model
