"""An entry of the zoo: a module of two layers, and what it is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

#: Columns of `x`, of every layer, of the answer and of edge attributes.
X_DIM, WIDTH, CLASSES, ATTR_DIM = 8, 16, 3, 4

#: Which of the graphs an entry is served on (`graphs`).
GraphName = Literal[
    "plain",
    "both",
    "both_weight",
    "sorted",
    "attr",
    "weight",
    "hetero",
    "hetero_attr",
    "relations",
    "relations_attr",
    "signed",
]


@dataclass(frozen=True, slots=True)
class Entry:
    """One module of a class.

    Attributes:
        make: builds it; seeded by the caller.
        graph: what it is served on; `both`, `sorted`, `attr` and `weight` are of one node type, as `plain`
            is, and `both` and `both_weight` have the reverse of their edges too.
        variant: tells the entries of a class apart.
        layers: fanouts of the first try, one a layer.
        target: node type that is asked about.
        options: of `hopline.package`, as its message asks for them; `{}` where it asks nothing.
    """

    make: Callable[[], nn.Module]
    graph: GraphName = "plain"
    variant: str = ""
    layers: int = 2
    target: str = "node"
    options: Mapping[str, Any] = field(default_factory=dict)


class Layers(nn.Module):
    """Linear, convolutions with ReLU between them, Linear; `forward` of the subclasses names the data."""

    def __init__(self, convs: Sequence[nn.Module], width: int = WIDTH) -> None:
        super().__init__()
        self.first = nn.Linear(X_DIM, WIDTH)
        self.convs = nn.ModuleList(convs)
        self.last = nn.Linear(width, CLASSES)

    def run(self, x: Tensor, *edges: Tensor) -> Tensor:
        h = self.first(x).relu()
        for conv in self.convs:
            h = conv(h, *edges).relu()
        return self.last(h)


class Plain(Layers):
    """Over the edges alone."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.run(x, edge_index)


class Attr(Layers):
    """With edge attributes."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.run(x, edge_index, edge_attr)


class Weight(Layers):
    """With edge weights."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        return self.run(x, edge_index, edge_weight)


class Relations(Layers):
    """With the relation of each edge."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        return self.run(x, edge_index, edge_type)


class RelationsAttr(Layers):
    """With the relation and the attributes of each edge."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor, edge_attr: Tensor) -> Tensor:
        return self.run(x, edge_index, edge_type, edge_attr)


class Initial(Layers):
    """Convolutions that also read the rows before the first of them."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = start = self.first(x).relu()
        for conv in self.convs:
            h = conv(h, start, edge_index).relu()
        return self.last(h)


class Called(nn.Module):
    """A module that is called by an expression, for forwards that are not `(x, edge_index)`.

    Args:
        call: of the module, `x` and `edge_index`; answers the rows.
    """

    def __init__(self, model: nn.Module, call: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._call_model = call

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self._call_model(self.model, x, edge_index)


def mlp(width_in: int, width_out: int) -> nn.Sequential:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(width_in, WIDTH), nn.ReLU(), nn.Linear(WIDTH, width_out))


def draw_weights(module: nn.Module, seed: int) -> nn.Module:
    """Draw biases, scales and statistics of norms too, which start as zeros and ones; eval mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() <= 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3)
                if "weight" in name or name.endswith((".t", ".p")):
                    parameter.add_(1.0)
        for name, value in module.named_buffers():
            if name.endswith("running_mean"):
                value.copy_(torch.randn(value.shape, generator=generator) * 0.3)
            elif name.endswith("running_var"):
                value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
    return module.eval()


def describe(class_name: str, entry: Entry) -> str:
    """The entry's name in tables."""
    parts = [class_name, entry.variant, entry.graph if entry.graph != "plain" else ""]
    parts += ["frozen"] if "freeze" in entry.options else []
    return " ".join(part for part in dict.fromkeys(parts) if part)


Table = dict[str, list[Entry]]
Excluded = dict[str, str]
Metadata = tuple[list[str], list[tuple[str, str, str]]]
Dicts = dict[Any, Tensor]
