"""Small models that are wide enough to be worth narrowing, on a graph with hubs."""

import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

with warnings.catch_warnings():
    # PyG 2.8 scripts some of its classes when imported, which torch 2.13 has deprecated.
    warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
    from torch_geometric.nn import GATConv, GATv2Conv, GINEConv, SAGEConv

from hopline.artifact import Head, read_spec, write_spec
from hopline.engine.answer import Answerer
from hopline.engine.model import Model
from hopline.graph import Graph
from hopline.packaging import package
from hopline.types import ScoreRequest

N, DIM, HIDDEN, CLASSES = 600, 24, 48, 5


class Sage(nn.Module):
    """Sums over neighbours: hubs see far larger rows than others. The head can be made to hurt."""

    def __init__(self, fragile=False):
        super().__init__()
        self.a = SAGEConv(DIM, HIDDEN, aggr="sum")
        self.b = SAGEConv(HIDDEN, HIDDEN, aggr="mean")
        self.out = nn.Linear(HIDDEN, 40)
        if fragile:
            # Classes differ by far less than int8's step of weights that nearly agree.
            with torch.no_grad():
                self.out.weight.copy_(500 + 0.02 * torch.randn(40, HIDDEN))

    def forward(self, x, edge_index):
        h = self.b(self.a(x, edge_index).relu(), edge_index).relu()
        return self.out(h)


class Gat(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = GATConv(DIM, HIDDEN, add_self_loops=False)
        self.b = GATv2Conv(HIDDEN, CLASSES, add_self_loops=False)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index).relu(), edge_index)


class Gine(nn.Module):
    """Rows of edges."""

    def __init__(self):
        super().__init__()
        inner = nn.Sequential(nn.Linear(DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 40))
        self.a = GINEConv(inner, edge_dim=2)

    def forward(self, x, edge_index, edge_attr):
        return self.a(x, edge_index, edge_attr)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = SAGEConv(DIM, HIDDEN)
        self.b = SAGEConv(HIDDEN, 32)

    def forward(self, x, edge_index):
        return self.b(self.a(x, edge_index).relu(), edge_index)


@dataclass
class Case:
    """A packaged model and its graph."""

    folder: Path
    graph: Graph

    @property
    def repository(self) -> Path:
        return self.folder.parents[1]


def hubs(seed=3, dim=DIM, **table) -> Graph:
    """Some nodes with hundreds of edges, most with few; string ids."""
    rng = np.random.default_rng(seed)
    dst = (N * rng.random(6000) ** 3).astype(np.int64)
    src = rng.integers(0, N, 6000)
    names = [f"n{i}" for i in range(N)]
    x = rng.standard_normal((N, dim)).astype(np.float32)
    return Graph.from_edges([[names[i] for i in src], [names[i] for i in dst]], x, ids=names, **table)


#: name -> (module, options of `package`)
_PLANS = {
    "sage": (Sage, {"task": "multiclass", "fanouts": [-1, 6]}),
    "fragile": (lambda: Sage(fragile=True), {"task": "multiclass", "fanouts": [6, 6]}),
    "gat": (Gat, {"task": "multiclass", "fanouts": [6, 6]}),
    "states": (Encoder, {"task": "embedding", "fanouts": [6, 6]}),
}


class Cases:
    """Models by name, each packaged when first asked for."""

    def __init__(self, graph: Graph, repository: Path):
        self.graph = graph
        self._repository = repository
        self._made = {}

    def __getitem__(self, name: str) -> Case:
        if name == "link" and name not in self._made:
            self._made[name] = self._linked(self["states"])
        if name not in self._made:
            torch.manual_seed(5)
            torch.set_num_threads(1)
            make, options = _PLANS[name]
            report = package(
                make().eval(), self.graph, self._repository, name=name, check_nodes=40, **options
            )
            self._made[name] = Case(report.path, self.graph)
        return self._made[name]

    def _linked(self, states: Case) -> Case:
        """The same layers with scores of pairs: quicker than to package them again."""
        folder = shutil.copytree(states.folder, self._repository / "link" / "1")
        spec = read_spec(folder)
        head = Head("node", 1, "link", "node")
        write_spec(folder, msgspec.structs.replace(spec, name="link", task="binary", head=head))
        return Case(folder, self.graph)


@pytest.fixture(scope="session")
def blocks(tmp_path_factory):
    """A model that reads rows of edges."""
    torch.manual_seed(5)
    torch.set_num_threads(1)
    graph = hubs(edge_attr=np.random.default_rng(2).standard_normal((6000, 2)).astype(np.float32))
    report = package(
        Gine().eval(), graph, tmp_path_factory.mktemp("blocks"), name="gine", task="multiclass",
        fanouts=[6], check_nodes=40,
    )  # fmt: skip
    return Case(report.path, graph)


@pytest.fixture(scope="session")
def cases(tmp_path_factory):
    graph = hubs().save(tmp_path_factory.mktemp("quantize-graph") / "graph")
    return Cases(graph, tmp_path_factory.mktemp("quantize-models"))


def logits(folder: Path, graph: Graph, nodes=None) -> np.ndarray:
    """What a server answers about nodes (all of them) in one request."""
    spec = read_spec(folder)
    nodes = [f"n{i}" for i in range(N)] if nodes is None else nodes
    outputs = ("embedding" if spec.task == "embedding" else "logits",)
    request = ScoreRequest(spec.name, nodes=nodes, outputs=outputs)
    (result,) = Answerer(Model(folder, spec, graph), outputs, 0).answer([request])
    if isinstance(result, Exception):
        raise result
    return result.outputs[outputs[0]]
