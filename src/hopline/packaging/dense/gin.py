"""GINConv (Xu et al., arXiv 1810.00826): a reduction plus (1 + eps) times self, through the MLP."""

from __future__ import annotations

from torch import Tensor

from hopline.artifact import Reduce
from hopline.packaging.dense.base import ConvCall, ConvInput, DenseConv, reduction


class DenseGIN(DenseConv):
    """`nn(reduce + (1 + eps) self)`; the MLP is the conv's own."""

    scale: Tensor

    def __init__(self, call: ConvCall, kind: Reduce) -> None:
        super().__init__()
        self.nn = call.conv.nn
        self.register_buffer("scale", 1 + call.conv.eps.detach().reshape(1))
        needs = [ConvInput("reduce", call.edge_type, "source", reduce=kind)]
        if call.has_destination:
            needs.append(ConvInput("self", value="destination"))
        self.needs = tuple(needs)

    def forward(self, neighbours: Tensor, own: Tensor | None = None) -> Tensor:
        """float32 [n, out] from the reduced neighbours [n, d] and the own rows [n, d]."""
        return self.nn(neighbours if own is None else neighbours + self.scale * own)


def build(call: ConvCall) -> DenseConv:
    """The dense form of a GINConv call."""
    return DenseGIN(call, reduction(call))
