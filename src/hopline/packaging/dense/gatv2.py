"""GATv2Conv (Brody et al., arXiv 2105.14491) over a padded block."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from hopline.packaging.dense import attend as attending
from hopline.packaging.dense.base import ConvCall, DenseConv, as_linear, linear
from hopline.packaging.dense.block import attend, gather, loop_attributes
from hopline.packaging.dense.gat import block_needs, check_attention


class DenseGATv2(DenseConv):
    """Inputs: sources, positions, mask, own row, [own row as a source, is_self], [edge_attr]."""

    attention: Tensor
    bias: Tensor | None

    def __init__(self, call: ConvCall) -> None:
        super().__init__()
        conv = call.conv
        check_attention(call)
        if not call.has_destination:
            raise call.refusal("it gets no rows of the destination nodes")
        if call.has_edge_attr and conv.lin_edge is None:
            raise call.refusal("it gets edge attributes but was built without edge_dim")
        self.heads, self.channels, self.concat = conv.heads, conv.out_channels, conv.concat
        self.slope = float(conv.negative_slope)
        self.fill = conv.fill_value
        self.prepare_source = as_linear(conv.lin_l)
        self.residual = linear(conv.res.weight) if conv.res is not None else None
        self.query = as_linear(conv.lin_r)
        if self.residual is None:
            self.prepare_destination = self.query
        self.register_buffer("attention", conv.att.detach().squeeze(0))
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach())
        self.edge = as_linear(conv.lin_edge) if call.has_edge_attr else None
        self.loops = bool(conv.add_self_loops)
        self.needs = block_needs(call, loops=self.loops, edges=self.edge is not None)

    def forward(
        self, sources: Tensor, positions: Tensor, mask: Tensor, own: Tensor, *rest: Tensor
    ) -> Tensor:
        """float32 [n, H C] or [n, C]."""
        extra = iter(rest)
        own_source = next(extra) if self.loops else None
        if self.loops:
            mask = mask & ~next(extra)
        edge_attr = next(extra) if self.edge is not None else None
        values = self._heads(gather(self._source(sources), positions, mask))
        query = self._heads(own if self.lifted_destination else self.query(own))
        keys = values + query.unsqueeze(1)
        if edge_attr is not None and self.edge is not None:
            keys = keys + self._heads(self.edge(edge_attr))
        loop_scores = loop_values = None
        if own_source is not None:
            loop_values = self._heads(self._source(own_source))
            loop_keys = loop_values + query
            if edge_attr is not None and self.edge is not None:
                loop_keys = loop_keys + self._heads(self.edge(loop_attributes(self.fill, edge_attr, mask)))
            loop_scores = self._score(loop_keys)
        out = attend(self._score(keys), values, mask, loop_scores, loop_values)
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        if self.residual is not None:
            out = out + self.residual(own)
        return out if self.bias is None else out + self.bias

    def _source(self, rows: Tensor) -> Tensor:
        if self.lifted_source or self.prepare_source is None:
            return rows
        return self.prepare_source(rows)

    def _heads(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (self.heads, self.channels))

    def _score(self, keys: Tensor) -> Tensor:
        return (F.leaky_relu(keys, self.slope) * self.attention).sum(dim=-1)


def build(call: ConvCall) -> DenseConv:
    """The dense form of a GATv2Conv call."""
    dense = DenseGATv2(call)
    return dense if call.in_blocks else attending.gatv2(call)
