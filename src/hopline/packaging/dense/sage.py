"""SAGEConv (Hamilton et al., arXiv 1706.02216): reduce the neighbours, one Gemm each for them and self."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from hopline.artifact import Reduce
from hopline.packaging.dense.base import ConvCall, ConvInput, DenseConv, as_linear, linear, reduction


class DenseSAGE(DenseConv):
    """`lin_l(reduce) + lin_r(self)`, normalised if the conv is."""

    def __init__(self, call: ConvCall, kind: Reduce) -> None:
        super().__init__()
        conv = call.conv
        self.normalize = bool(conv.normalize)
        self.neighbour = as_linear(conv.lin_l)
        self.own = as_linear(conv.lin_r) if conv.root_weight and call.has_destination else None
        needs = [ConvInput("reduce", call.edge_type, "source", reduce=kind)]
        if self.own is not None:
            needs.append(ConvInput("self", value="destination"))
        self.needs = tuple(needs)
        if conv.project:
            self.prepare_source = nn.Sequential(as_linear(conv.lin), nn.ReLU())
            self.must_lift = True
        elif kind != "max":
            self.prepare_source = linear(self.neighbour.weight)
            self.prepare_destination = self.own

    def forward(self, neighbours: Tensor, own: Tensor | None = None) -> Tensor:
        """float32 [n, out] from the reduced neighbours [n, d1] and the own rows [n, d2]."""
        if self.lifted_source and not self.must_lift:
            out = neighbours if self.neighbour.bias is None else neighbours + self.neighbour.bias
        else:
            out = self.neighbour(neighbours)
        if own is not None and self.own is not None:
            out = out + (own if self.lifted_destination else self.own(own))
        return F.normalize(out, p=2.0, dim=-1) if self.normalize else out


def build(call: ConvCall) -> DenseConv:
    """The dense form of a SAGEConv call."""
    return DenseSAGE(call, reduction(call))
