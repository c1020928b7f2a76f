"""GraphConv (Morris et al., arXiv 1810.02244): (weighted) reduction, one Gemm each for it and self."""

from __future__ import annotations

from torch import Tensor

from hopline.artifact import Reduce
from hopline.packaging.dense.base import ConvCall, ConvInput, DenseConv, as_linear, linear, reduction


class DenseGraphConv(DenseConv):
    """`lin_rel(reduce) + lin_root(self)`."""

    def __init__(self, call: ConvCall, kind: Reduce) -> None:
        super().__init__()
        if kind == "max" and call.has_edge_weight:
            raise call.refusal("the maximum over weighted neighbours is not a reduction of the engine")
        self.neighbour = as_linear(call.conv.lin_rel)
        self.own = as_linear(call.conv.lin_root) if call.has_destination else None
        needs = [ConvInput("reduce", call.edge_type, "source", reduce=kind, weighted=call.has_edge_weight)]
        if self.own is not None:
            needs.append(ConvInput("self", value="destination"))
        self.needs = tuple(needs)
        if kind != "max":
            self.prepare_source = linear(self.neighbour.weight)
            self.prepare_destination = self.own

    def forward(self, neighbours: Tensor, own: Tensor | None = None) -> Tensor:
        """float32 [n, out] from the reduced neighbours [n, d1] and the own rows [n, d2]."""
        if self.lifted_source:
            out = neighbours if self.neighbour.bias is None else neighbours + self.neighbour.bias
        else:
            out = self.neighbour(neighbours)
        if own is not None and self.own is not None:
            out = out + (own if self.lifted_destination else self.own(own))
        return out


def build(call: ConvCall) -> DenseConv:
    """The dense form of a GraphConv call."""
    return DenseGraphConv(call, reduction(call))
