"""GENConv (Li et al., arXiv 2006.07739): softmax or power mean of relu(neighbour + edge), over a block."""

from __future__ import annotations

from torch import Tensor, nn

from hopline.packaging.dense.aggregate import BlockAggregation
from hopline.packaging.dense.base import ConvCall, ConvInput, DenseConv, as_linear, block_inputs
from hopline.packaging.dense.block import gather


class DenseGEN(DenseConv):
    """`mlp(norm(aggregate(relu(lin_src(h_j) + edge) + eps)) + lin_dst(h_i))`."""

    def __init__(self, call: ConvCall) -> None:
        super().__init__()
        conv = call.conv
        if hasattr(conv, "msg_norm") and not call.has_destination:
            raise call.refusal("msg_norm gets no rows of the destination nodes")
        self.eps, self.mlp = conv.eps, conv.mlp
        self.prepare_source = _optional(conv, "lin_src")
        self.own = _optional(conv, "lin_dst")
        self.edge = _optional(conv, "lin_edge")
        self.joined = _optional(conv, "lin_aggr_out")
        self.norm = getattr(conv, "msg_norm", None)
        self.aggregation = BlockAggregation(conv.aggr_module, call)
        needs = [*block_inputs(call.edge_type)]
        self.has_edge_attr = call.has_edge_attr
        if call.has_edge_attr:
            needs.append(ConvInput("edge_attr", call.edge_type))
        if call.has_destination:
            needs.append(ConvInput("self", value="destination"))
        self.needs = tuple(needs)

    def forward(self, sources: Tensor, positions: Tensor, mask: Tensor, *further: Tensor) -> Tensor:
        """float32 [n, out]; `further`: the edges' attributes and the own rows, if the conv gets them."""
        if not self.lifted_source and self.prepare_source is not None:
            sources = self.prepare_source(sources)
        message = gather(sources, positions, mask)
        if self.has_edge_attr:
            message = message + (further[0] if self.edge is None else self.edge(further[0]))
        out = self.aggregation(message.relu() + self.eps, mask).flatten(1)
        if self.joined is not None:
            out = self.joined(out)
        rest = further[1:] if self.has_edge_attr else further
        if rest:
            (own,) = rest
            if self.norm is not None:
                out = self.norm(own, out)
            out = out + (own if self.own is None else self.own(own))
        result: Tensor = self.mlp(out)
        return result


def _optional(conv: nn.Module, name: str) -> nn.Linear | None:
    module = getattr(conv, name, None)
    return None if module is None else as_linear(module)


def build(call: ConvCall) -> DenseConv:
    """The dense form of a GENConv call."""
    return DenseGEN(call)
