"""GCNConv (Kipf & Welling, arXiv 1609.02907): normalised sum of the neighbours, then the linear map.

PyG multiplies by W first and then sums; both are linear, so that the order is free. Summing first lets
the engine's gather read the narrower side where the input is narrow, and the splitter lifts W one
level down where the output is much narrower.
"""

from __future__ import annotations

from torch import Tensor

from hopline.artifact import Reduce
from hopline.packaging.dense.base import ConvCall, ConvInput, DenseConv, linear, reduction


class DenseGCN(DenseConv):
    """`W reduce + b`."""

    def __init__(self, call: ConvCall) -> None:
        super().__init__()
        conv = call.conv
        kind: Reduce = reduction(call)
        if conv.normalize:
            if conv.improved:
                raise call.refusal(
                    "improved=True weighs self-loops by 2, which no reduction of the engine does"
                )
            if kind != "sum":
                raise call.refusal(f"its normalisation with aggregation {kind!r} is not that of a GCN")
            if not call.same_type:
                raise call.refusal("it normalises over two node types")
            kind = "gcn" if conv.add_self_loops else "gcn_noself"
        elif kind == "max" and call.has_edge_weight:
            raise call.refusal("the maximum over weighted neighbours is not a reduction of the engine")
        self.transform = linear(conv.lin.weight, conv.bias)
        self.needs = (
            ConvInput("reduce", call.edge_type, "source", reduce=kind, weighted=call.has_edge_weight),
        )
        if kind != "max":
            self.prepare_source = linear(conv.lin.weight)
        else:
            # max(W h) is not W max(h).
            self.prepare_source = linear(conv.lin.weight)
            self.must_lift = True

    def forward(self, neighbours: Tensor) -> Tensor:
        """float32 [n, out] from the reduced neighbours [n, d]."""
        if not self.lifted_source:
            return self.transform(neighbours)
        bias = self.transform.bias
        return neighbours if bias is None else neighbours + bias


def build(call: ConvCall) -> DenseConv:
    """The dense form of a GCNConv call."""
    return DenseGCN(call)
