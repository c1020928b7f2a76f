"""PNAConv (Corso et al., arXiv 2004.05718): several aggregations of one message, scaled by degrees."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hopline.packaging.dense.aggregate import BlockAggregation
from hopline.packaging.dense.base import ConvCall, ConvInput, DenseConv, as_linear, block_inputs, linear
from hopline.packaging.dense.block import gather


class DensePNA(DenseConv):
    """`lin([post_t([x_i, scaled aggregations of pre_t([x_i, x_j, e])]) for each tower t])`.

    The first layer of each `pre_t` is a sum of three products, so that of `x_j` is computed once for each
    source, and that of `x_i` once for each destination.
    """

    def __init__(self, call: ConvCall) -> None:
        super().__init__()
        conv = call.conv
        if not call.has_destination or call.paired:
            raise call.refusal("sources and destinations have to be one node type")
        if call.has_edge_attr != (conv.edge_dim is not None):
            raise call.refusal("it gets edge attributes and has no edge_dim, or the reverse")
        self.width, self.divided = conv.F_in, conv.divide_input
        first = [as_linear(pre[0]) for pre in conv.pre_nns]
        parts = [each.weight.split(self.width, dim=1) for each in first]
        self.own = linear(
            self._over_towers([part[0] for part in parts]), torch.cat([each.bias for each in first])
        )
        self.prepare_source = linear(self._over_towers([part[1] for part in parts]))
        self.edge = None
        if call.has_edge_attr:
            of_edges = linear(torch.cat([part[2] for part in parts]))
            self.edge = nn.Sequential(as_linear(conv.edge_encoder), of_edges)
        self.pre = nn.ModuleList(pre[1:] for pre in conv.pre_nns)
        self.aggregation = BlockAggregation(conv.aggr_module, call.refusal)
        self.post, self.lin = conv.post_nns, as_linear(conv.lin)
        needs = [*block_inputs(call.edge_type), ConvInput("self", value="destination")]
        if self.edge is not None:
            needs.append(ConvInput("edge_attr", call.edge_type))
        self.needs = tuple(needs)

    def forward(
        self, sources: Tensor, positions: Tensor, mask: Tensor, own: Tensor, edge_attr: Tensor | None = None
    ) -> Tensor:
        """float32 [n, out]."""
        if not self.lifted_source and self.prepare_source is not None:
            sources = self.prepare_source(sources)
        message = gather(sources, positions, mask) + self.own(own).unsqueeze(1)
        if edge_attr is not None and self.edge is not None:
            message = message + self.edge(edge_attr)
        messages = [
            pre(part) for pre, part in zip(self.pre, message.split(self.width, dim=-1), strict=True)
        ]
        towers = self.aggregation(torch.cat(messages, dim=-1), mask).split(self.width, dim=-1)
        mine = own.split(self.width, dim=-1) if self.divided else [own] * len(towers)
        outs = [
            post(torch.cat([rows, parts.flatten(1)], dim=-1))
            for post, rows, parts in zip(self.post, mine, towers, strict=True)
        ]
        out: Tensor = self.lin(torch.cat(outs, dim=1))
        return out

    def _over_towers(self, weights: Sequence[Tensor]) -> Tensor:
        """One weight [towers x width, in] for all towers, whose inputs are parts of a row if divided."""
        return torch.block_diag(*weights) if self.divided else torch.cat(list(weights))


def build(call: ConvCall) -> DenseConv:
    """The dense form of a PNAConv call."""
    return DensePNA(call)
