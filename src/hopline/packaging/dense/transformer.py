"""TransformerConv (Shi et al., arXiv 2009.03509) over a padded block."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hopline.packaging.dense import attend as attending
from hopline.packaging.dense.base import ConvCall, DenseConv, as_linear, linear
from hopline.packaging.dense.block import attend, gather
from hopline.packaging.dense.gat import block_needs, check_attention


class DenseTransformer(DenseConv):
    """Inputs: sources, positions, mask, own row, [edge_attr]; keys and values are one Gemm."""

    def __init__(self, call: ConvCall) -> None:
        super().__init__()
        conv = call.conv
        check_attention(call)
        if not call.has_destination:
            raise call.refusal("it gets no rows of the destination nodes")
        if call.has_edge_attr and conv.lin_edge is None:
            raise call.refusal("it gets edge attributes but was built without edge_dim")
        self.heads, self.channels, self.concat = conv.heads, conv.out_channels, conv.concat
        key, value = conv.lin_key, conv.lin_value
        bias = None if key.bias is None else torch.cat([key.bias, value.bias]).detach()
        self.prepare_source = linear(torch.cat([key.weight, value.weight]).detach(), bias)
        self.query = as_linear(conv.lin_query)
        self.edge = as_linear(conv.lin_edge) if call.has_edge_attr else None
        self.skip = as_linear(conv.lin_skip) if conv.root_weight else None
        self.gate = linear(conv.lin_beta.weight) if conv.root_weight and conv.lin_beta is not None else None
        self.needs = block_needs(call, loops=False, edges=self.edge is not None)

    def forward(
        self, sources: Tensor, positions: Tensor, mask: Tensor, own: Tensor, edge_attr: Tensor | None = None
    ) -> Tensor:
        """float32 [n, H C] or [n, C]."""
        if not self.lifted_source and self.prepare_source is not None:
            sources = self.prepare_source(sources)
        rows = gather(sources, positions, mask)
        width = self.heads * self.channels
        keys, values = self._heads(rows[..., :width]), self._heads(rows[..., width:])
        if edge_attr is not None and self.edge is not None:
            edge = self._heads(self.edge(edge_attr))
            keys, values = keys + edge, values + edge
        query = self._heads(self.query(own)).unsqueeze(1)
        scores = (query * keys).sum(dim=-1) / math.sqrt(self.channels)
        out = attend(scores, values, mask)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        if self.skip is None:
            return out
        skip = self.skip(own)
        if self.gate is None:
            return out + skip
        beta = self.gate(torch.cat([out, skip, out - skip], dim=-1)).sigmoid()
        return beta * skip + (1 - beta) * out

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (self.heads, self.channels))


def build(call: ConvCall) -> DenseConv:
    """The dense form of a TransformerConv call."""
    dense = DenseTransformer(call)
    return dense if call.in_blocks else attending.transformer(call)
