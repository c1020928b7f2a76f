"""The gate itself is tried: faults planted in the code on the served side, one at a time.

Packaging alone must catch each: it writes no artifact, or (runtime "auto") one whose answers are right.
"""

from __future__ import annotations

import functools
from collections import Counter

import pytest
import torch
from torch import nn
from torch_geometric import nn as pyg
from torch_geometric.nn import models

from hopline.errors import PackagingError
from hopline.packaging import job, package
from tests.packaging import engine_faults  # noqa: F401  # adds its own
from tests.packaging.faults import FAULTS
from tests.packaging.graphs import hetero, homogeneous, relational


class Behind(nn.Module):
    """A conv and code behind it."""

    def __init__(self, code):
        super().__init__()
        self.conv, self.code = pyg.SAGEConv(6, 6), code

    def forward(self, x, edge_index):
        return self.code(self.conv(x, edge_index))


def in_place(h):
    torch.relu_(h)
    return h


def item_set(h):
    h[:, :2] = 0.0
    return h


def branch(h):
    return torch.relu(h) if h.size(1) > 3 else torch.tanh(h)


def stacked(h):
    return torch.stack([h, h.sin(), h.cos(), h * h, h.tanh(), h.exp().neg()]).sum(dim=0)


class Adjacency(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GraphConv(6, 3)

    def forward(self, x, adj_t):
        return self.conv(x, adj_t)


class Weighted(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.GraphConv(6, 3)

    def forward(self, x, edge_index, edge_weight):
        return self.conv(x, edge_index, edge_weight)


class Attributed(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, edge_attr)


class AttributedByCode(Attributed):
    """The code computes the attributes of edges, so that attention is by the code of a stage."""

    def forward(self, x, edge_index, edge_attr):
        return self.conv(x, edge_index, edge_attr.tanh())


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = pyg.SAGEConv(6, 6), pyg.SAGEConv(6, 6), pyg.SAGEConv(6, 6, aggr="max")

    def forward(self, x, edge_index):
        h = self.a(x, edge_index).relu()
        return self.c(self.b(h, edge_index).tanh(), edge_index) - 2 * h


class Relational(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv(6, 3, 3)

    def forward(self, x, edge_index, edge_type):
        return self.conv(x, edge_index, edge_type)


class Hetero(nn.Module):
    def __init__(self):
        super().__init__()
        self.cites, self.writes = (
            pyg.GATConv(6, 3, add_self_loops=False),
            pyg.GATConv(6, 3, add_self_loops=False),
        )

    def forward(self, x_dict, edge_index_dict):
        papers, authors = x_dict["paper"], x_dict["author"]
        cited = self.cites((papers, papers), edge_index_dict["paper", "cites", "paper"])
        return {
            "paper": cited + self.writes((authors, papers), edge_index_dict["author", "writes", "paper"])
        }


class AttributedTypes(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(pyg.GINEConv(mlp(), edge_dim=2) for _ in range(2))

    def forward(self, x_dict, edge_index_dict, edge_attr_dict):
        found = []
        for conv, key in zip(
            self.convs, [("paper", "cites", "paper"), ("author", "writes", "paper")], strict=True
        ):
            rows = (x_dict[key[0]], x_dict["paper"])
            found.append(conv(rows, edge_index_dict[key], edge_attr_dict[key]))
        return {"paper": found[0] + found[1]}


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 1)

    def forward(self, h_src, h_dst):
        return self.linear(torch.cat([h_src, h_dst.tanh()], dim=1))


class Sigmoid(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = pyg.SAGEConv(6, 1)

    def forward(self, x, edge_index):
        return self.conv(x, edge_index).sigmoid()


class Clamped(Sigmoid):
    def forward(self, x, edge_index):
        return super().forward(x, edge_index).clamp(0.01, 0.99)


def mlp(columns_in=6, columns_out=3):
    return nn.Sequential(nn.Linear(columns_in, 5), nn.ReLU(), nn.Linear(5, columns_out))


def trained_norm():
    norm = nn.BatchNorm1d(6)
    norm.running_mean, norm.running_var = torch.linspace(-1, 1, 6), torch.linspace(0.5, 2, 6)
    return norm


PLAIN = functools.partial(homogeneous, num_edges=100)
ONE = {"fanouts": [8], "task": "multiclass"}
TWO = {"fanouts": [8, 6], "task": "multiclass"}
NO_WEIGHT = {"arguments": {"edge_weight": None}}
#: Name -> (module, graph, further arguments of `package`).
MODELS = {
    "in_place": lambda: (Behind(in_place), PLAIN(), ONE),
    "item_set": lambda: (Behind(item_set), PLAIN(), ONE),
    "branch": lambda: (Behind(branch), PLAIN(), ONE),
    "stacked": lambda: (Behind(stacked), PLAIN(), ONE),
    "batch_norm": lambda: (Behind(trained_norm()), PLAIN(), ONE),
    "adjacency": lambda: (Adjacency(), PLAIN(weight=True), ONE),
    "graph_conv": lambda: (Weighted(), PLAIN(weight=True), ONE),
    "sage": lambda: (models.GraphSAGE(6, 6, 2, 3), PLAIN(), TWO),
    "lifted": lambda: (models.GraphSAGE(6, 12, 2, 3), PLAIN(), TWO),
    "few": lambda: (models.GraphSAGE(6, 6, 2, 3), PLAIN(), {"fanouts": [2, 5], "task": "regression"}),
    "gcn": lambda: (models.GCN(6, 6, 2, 3), PLAIN(), TWO),
    "gcn_of_weighted": lambda: (models.GCN(6, 6, 2, 3), PLAIN(weight=True), TWO | NO_WEIGHT),
    "gat": lambda: (pyg.GATConv(6, 3, heads=2, concat=False), PLAIN(), ONE),
    "gatv2": lambda: (pyg.GATv2Conv(6, 3, heads=2), PLAIN(), ONE),
    "transformer": lambda: (pyg.TransformerConv(6, 3), PLAIN(), ONE),
    # Rows are wider than what they are projected to.
    "gat_projected": lambda: (pyg.GATConv(6, 1, heads=2), PLAIN(), ONE),
    "transformer_projected": lambda: (pyg.TransformerConv(6, 2), PLAIN(), ONE),
    "attended": lambda: (Attributed(pyg.GATv2Conv(6, 3, edge_dim=2)), PLAIN(attr_dim=2), ONE),
    "attended_by_code": lambda: (
        AttributedByCode(pyg.GATConv(6, 3, heads=2, concat=False, edge_dim=2)),
        PLAIN(attr_dim=2),
        ONE,
    ),
    "attended2_by_code": lambda: (
        AttributedByCode(pyg.GATv2Conv(6, 3, heads=2, edge_dim=2)),
        PLAIN(attr_dim=2),
        ONE,
    ),
    "transformer_by_code": lambda: (
        AttributedByCode(pyg.TransformerConv(6, 3, edge_dim=2)),
        PLAIN(attr_dim=2),
        ONE,
    ),
    "gin": lambda: (pyg.GINConv(mlp(), eps=0.5), PLAIN(), ONE),
    "gine": lambda: (Attributed(pyg.GINEConv(mlp(), edge_dim=2)), PLAIN(attr_dim=2), ONE),
    "gen": lambda: (pyg.GENConv(6, 3), PLAIN(), ONE),
    "pna": lambda: (
        pyg.PNAConv(
            *(6, 4, ["mean", "min", "std"], ["identity", "amplification"], torch.tensor([1, 4, 9, 3])),
            towers=2,
            divide_input=True,
        ),
        PLAIN(),
        ONE,
    ),
    "several": lambda: (pyg.SAGEConv(6, 3, aggr=["mean", "std"]), PLAIN(), ONE),
    "max": lambda: (pyg.SAGEConv(6, 3, aggr="max"), PLAIN(), ONE),
    "rgcn": lambda: (Relational(pyg.RGCNConv), relational(), ONE),
    "fast_rgcn": lambda: (Relational(pyg.FastRGCNConv), relational(), ONE),
    "hetero": lambda: (Hetero(), hetero(author_dim=6), ONE | {"target": "paper"}),
    # Samples of both types have the same number of nodes.
    "equal_types": lambda: (Hetero(), hetero(author_dim=6), ONE | {"target": "paper", "check_nodes": 20}),
    "attributed_types": lambda: (
        AttributedTypes(),
        hetero(author_dim=6, attr_dim=2),
        ONE | {"target": "paper"},
    ),
    "skip": lambda: (Skip(), PLAIN(), {"fanouts": [8, 6, 4], "task": "multiclass"}),
    "multilabel": lambda: (pyg.SAGEConv(6, 3), PLAIN(), ONE | {"task": "multilabel"}),
    "embedding": lambda: (pyg.SAGEConv(6, 3), PLAIN(), ONE | {"task": "embedding"}),
    "link": lambda: (pyg.SAGEConv(6, 3), PLAIN(), ONE | {"task": "binary", "head": Decoder()}),
    "sigmoid": lambda: (Sigmoid(), PLAIN(), ONE | {"task": "binary"}),
    "clamped": lambda: (Clamped(), PLAIN(), ONE | {"task": "binary"}),
}


@functools.cache
def made(name):
    torch.manual_seed(0)
    module, graph, options = MODELS[name]()
    return module.eval(), graph, options


def written(folder, name):
    """Package a model: where the artifact is."""
    module, graph, options = made(name)
    return package(module, graph, folder, name="m", **options).path


def keep_files(patch, model, files):
    """Write what the exporter, which takes most of the time, has written before for the same model."""
    right = job.export_stage

    def export(module, inputs, widths, path):
        if (model, path.name) in files:
            content, packed = files[model, path.name]
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)
        else:
            packed = right(module, inputs, widths, path)
            files[model, path.name] = path.read_bytes(), packed
        return packed

    patch.setattr(job, "export_stage", export)


@pytest.fixture(scope="module")
def files():
    """(model, file name) -> what the exporter writes and returns without a fault."""
    return {}


@pytest.fixture(scope="module")
def without_fault(tmp_path_factory, files):
    """Packages a model without a fault, once."""

    @functools.cache
    def package_it(model):
        with pytest.MonkeyPatch.context() as patch:
            keep_files(patch, model, files)
            written(tmp_path_factory.mktemp("right"), model)

    return package_it


def some_of_each_family():
    """Every sixth fault of each family; the others are left to the check of a release."""
    seen = Counter()
    for name, (family, _, _) in FAULTS.items():
        yield pytest.param(name, marks=[pytest.mark.release] * bool(seen[family] % 6))
        seen[family] += 1


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("name", list(some_of_each_family()))
def test_a_planted_fault_is_caught_by_packaging_alone(name, files, without_fault, tmp_path, monkeypatch):
    family, plant, model = FAULTS[name]
    without_fault(model)
    if family in ("engine", "post-processing"):
        keep_files(monkeypatch, model, files)
    plant(monkeypatch)
    with pytest.raises(PackagingError):
        written(tmp_path, model)
    assert not list(tmp_path.glob("m/*"))
