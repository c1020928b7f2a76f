"""GINEConv (Hu et al., arXiv 1905.12265): relu(neighbour + edge) needs each edge, so a padded block."""

from __future__ import annotations

from torch import Tensor

from hopline.packaging.dense.aggregate import BlockAggregation
from hopline.packaging.dense.base import ConvCall, ConvInput, DenseConv, as_linear, block_inputs
from hopline.packaging.dense.block import gather


class DenseGINE(DenseConv):
    """`nn(reduce relu(h_j + edge) + (1 + eps) self)`."""

    scale: Tensor

    def __init__(self, call: ConvCall) -> None:
        super().__init__()
        conv = call.conv
        if not call.has_edge_attr:
            raise call.refusal("it gets no edge attributes")
        self.aggregation = BlockAggregation(conv.aggr_module, call)
        self.nn = conv.nn
        self.edge = None if conv.lin is None else as_linear(conv.lin)
        self.register_buffer("scale", 1 + conv.eps.detach().reshape(1))
        needs = [*block_inputs(call.edge_type), ConvInput("edge_attr", call.edge_type)]
        if call.has_destination:
            needs.append(ConvInput("self", value="destination"))
        self.needs = tuple(needs)

    def forward(
        self, sources: Tensor, positions: Tensor, mask: Tensor, edge_attr: Tensor, own: Tensor | None = None
    ) -> Tensor:
        """float32 [n, out]."""
        if self.edge is not None:
            edge_attr = self.edge(edge_attr)
        message = (gather(sources, positions, mask) + edge_attr).relu()
        out = self.aggregation(message, mask).flatten(1)
        return self.nn(out if own is None else out + self.scale * own)


def build(call: ConvCall) -> DenseConv:
    """The dense form of a GINEConv call."""
    return DenseGINE(call)
