"""GATConv (Veličković et al., arXiv 1710.10903) over a padded block.

The attention score of a pair is a_src(j) + a_dst(i), both linear in the node's row: they are folded into
the weights, so that one Gemm makes [W x | a_src] of a source row and another a_dst of a destination.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hopline.packaging.dense import attend as attending
from hopline.packaging.dense.base import ConvCall, ConvInput, DenseConv, block_inputs, linear
from hopline.packaging.dense.block import attend, gather, loop_attributes


class DenseGAT(DenseConv):
    """Inputs: sources, positions, mask, own row, [own row as a source, is_self], [edge_attr]."""

    bias: Tensor | None

    def __init__(self, call: ConvCall) -> None:
        super().__init__()
        conv = call.conv
        check_attention(call)
        self.heads, self.channels, self.concat = conv.heads, conv.out_channels, conv.concat
        self.slope = float(conv.negative_slope)
        self.fill = conv.fill_value
        weight_src = (conv.lin if conv.lin is not None else conv.lin_src).weight.detach()
        weight_dst = (conv.lin if conv.lin is not None else conv.lin_dst).weight.detach()
        self.prepare_source = linear(torch.cat([weight_src, _fold(weight_src, conv.att_src)]))
        self.prepare_destination = linear(_fold(weight_dst, conv.att_dst)) if call.has_destination else None
        self.use_edges = call.has_edge_attr and conv.lin_edge is not None
        self.edge = linear(_fold(conv.lin_edge.weight.detach(), conv.att_edge)) if self.use_edges else None
        self.residual = linear(conv.res.weight) if conv.res is not None and call.has_destination else None
        if self.residual is not None:
            # The residual reads the destination's raw row, so preparing it below would save nothing.
            destination = self.prepare_destination
            self.prepare_destination, self.own_score = None, destination
        else:
            self.own_score = None
        self.register_buffer("bias", None if conv.bias is None else conv.bias.detach())
        self.loops = bool(conv.add_self_loops)
        self.needs = block_needs(call, loops=self.loops, edges=self.use_edges)

    def forward(self, sources: Tensor, positions: Tensor, mask: Tensor, *rest: Tensor) -> Tensor:
        """float32 [n, H C] or [n, C]."""
        extra = iter(rest)
        own = next(extra) if self.needs[3:4] and self.needs[3].value == "destination" else None
        own_source = next(extra) if self.loops else None
        is_self = next(extra) if self.loops else None
        edge_attr = next(extra) if self.use_edges else None
        if is_self is not None:
            mask = mask & ~is_self
        width = self.heads * self.channels
        sources = self._source(sources)
        rows = gather(sources, positions, mask)
        values = rows[..., :width].unflatten(-1, (self.heads, self.channels))
        scores = rows[..., width:]
        score_own = self._score(own)
        if score_own is not None:
            scores = scores + score_own.unsqueeze(1)
        loop_scores = loop_values = None
        if own_source is not None:
            loop = self._source(own_source)
            loop_values = loop[:, :width].unflatten(-1, (self.heads, self.channels))
            loop_scores = loop[:, width:]
            if score_own is not None:
                loop_scores = loop_scores + score_own
        if edge_attr is not None and self.edge is not None:
            scores = scores + self.edge(edge_attr)
            if loop_scores is not None:
                loop_scores = loop_scores + self.edge(loop_attributes(self.fill, edge_attr, mask))
        out = attend(
            F.leaky_relu(scores, self.slope),
            values,
            mask,
            None if loop_scores is None else F.leaky_relu(loop_scores, self.slope),
            loop_values,
        )
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        if self.residual is not None and own is not None:
            out = out + self.residual(own)
        return out if self.bias is None else out + self.bias

    def _source(self, rows: Tensor) -> Tensor:
        if self.lifted_source or self.prepare_source is None:
            return rows
        return self.prepare_source(rows)

    def _score(self, own: Tensor | None) -> Tensor | None:
        if own is None:
            return None
        if self.own_score is not None:
            return self.own_score(own)
        if self.lifted_destination or self.prepare_destination is None:
            return own
        return self.prepare_destination(own)


def _fold(weight: Tensor, attention: Tensor) -> Tensor:
    """[H, d] such that x @ result.T = ((x @ weight.T) as [H, C] * attention).sum(-1)."""
    _, heads, channels = attention.shape
    return (weight.view(heads, channels, -1) * attention.detach().view(heads, channels, 1)).sum(dim=1)


def check_attention(call: ConvCall) -> None:
    """Refuse options of attention convs that cannot be a padded block.

    Raises:
        NotSplittable: self-loops over two node types, another aggregation, another filling.
    """
    conv = call.conv
    if type(conv.aggr_module).__name__ != "SumAggregation":
        raise call.refusal(f"its aggregation is {type(conv.aggr_module).__name__}, attention needs a sum")
    if getattr(conv, "add_self_loops", False):
        if not call.same_type:
            raise call.refusal("it adds self-loops between two node types; set add_self_loops=False")
        if not call.has_destination:
            raise call.refusal("it adds self-loops but gets no rows of the destination nodes")
        fill = conv.fill_value
        if isinstance(fill, str) and fill not in ("mean", "add", "sum"):
            raise call.refusal(f"fill_value={fill!r} for the attributes of self-loops; use 'mean' or 'add'")


def block_needs(call: ConvCall, *, loops: bool, edges: bool) -> tuple[ConvInput, ...]:
    """The inputs that the attention convs share, in their common order."""
    key = call.edge_type
    needs = [*block_inputs(key)]
    if call.has_destination:
        needs.append(ConvInput("self", value="destination"))
    if loops:
        needs += [ConvInput("self", value="source"), ConvInput("is_self", key)]
    if edges:
        needs.append(ConvInput("edge_attr", key))
    return tuple(needs)


def build(call: ConvCall) -> DenseConv:
    """The dense form of a GATConv call."""
    dense = DenseGAT(call)
    return dense if call.in_blocks else attending.gat(call)
