"""A graph and two teachers of it: "close" has three classes, "yes" answers yes or no."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from torch import nn

from hopline.artifact import read_spec, write_spec
from hopline.graph import Graph
from hopline.packaging import package
from hopline_compress.distill.export import write_layers
from tests.engine import zoo
from tests.graphs import power_law_graph

N, DIM, CLASSES = 300, 6, 3


class Teacher(nn.Module):
    """One mean layer that looks little at neighbours, and a linear one."""

    def __init__(self):
        super().__init__()
        self.conv = zoo.SAGEConv(DIM, 16)
        self.out = nn.Linear(16, CLASSES)
        with zoo.torch.no_grad():
            self.conv.lin_l.weight.mul_(0.05)
            self.conv.lin_r.weight.mul_(3.0)
            self.out.weight.mul_(4.0)

    def forward(self, x, edge_index):
        return self.out(self.conv(x, edge_index).relu())


@dataclass
class Places:
    """Attributes: root: of all. graph: saved. repository: with both teachers."""

    root: Path
    graph: Graph
    repository: Path

    @property
    def labels(self) -> np.ndarray:
        """Classes of all nodes, int64 [N]: what the teacher chooses, with a tenth of them wrong."""
        return np.load(self.root / "labels.npy")

    def folder(self, name: str = "close") -> Path:
        """Of a teacher."""
        return self.repository / name / "1"


def build(root: Path) -> Places:
    graph = power_law_graph(N, 8 * N, DIM, ids="string").save(root / "graph")
    zoo.torch.set_num_threads(1)
    zoo.torch.manual_seed(3)
    module = Teacher().eval()
    names = ("low", "mid", "high")
    package(
        module, graph, root / "models", name="close", fanouts=[4], task="multiclass", classes=names,
    )  # fmt: skip
    _yes(root / "models", module)
    x = zoo.torch.from_numpy(np.array(graph.nodes["node"].features))
    with zoo.torch.no_grad():
        chosen = module.out(module.conv.lin_r(x).relu()).argmax(1).numpy()
    rng = np.random.default_rng(5)
    wrong = rng.random(N) < 0.1
    np.save(root / "labels.npy", np.where(wrong, rng.integers(0, CLASSES, N), chosen).astype(np.int64))
    return Places(root, graph, root / "models")


def _yes(repository: Path, module: Teacher) -> None:
    """The same model with one logit: its first."""
    folder = repository / "yes" / "1"
    shutil.copytree(repository / "close" / "1", folder)
    head = module.out.weight.detach().numpy()[:1], module.out.bias.detach().numpy()[:1]
    write_layers(folder / "head.onnx", [head], ("h", "logits"), last_relu=False, width=16)
    spec = read_spec(folder, verify=False)
    head = msgspec.structs.replace(spec.head, output_dim=1)
    write_spec(folder, msgspec.structs.replace(spec, name="yes", task="binary", classes=(), head=head))
