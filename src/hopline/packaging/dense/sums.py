"""Convolutions that are one linear map of reduced neighbours and one of the node itself.

GCNConv (Kipf & Welling, arXiv 1609.02907), SAGEConv (Hamilton et al., arXiv 1706.02216), GraphConv (Morris
et al., arXiv 1810.02244), RGCNConv and FastRGCNConv (Schlichtkrull et al., arXiv 1703.06103).

Some of them multiply by W first and then reduce. A sum is linear, so that the order is free: reducing first
lets the engine's gather read the narrower side where the input is narrow, and `lower.py` lifts W one level
down where the output is much narrower. W max(h) is not max(W h).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hopline.artifact import Reduce
from hopline.packaging.dense.base import ConvCall, ConvInput, DenseConv, as_linear, linear, reduction


class DenseSum(DenseConv):
    """`neighbour(reduce) + own(self)`.

    Args:
        own: None where the conv does not read the node itself.
        keys: edge types; the reductions of several are side by side.
        weighted: neighbours are multiplied by the weights of edges.
    """

    def __init__(
        self, call: ConvCall, kind: Reduce, neighbour: nn.Linear, own: nn.Linear | None,
        keys: Sequence[str], weighted: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if kind == "max" and weighted:
            raise call.refusal("the maximum over weighted neighbours is not a reduction of the engine")
        self.neighbour, self.own, self.num_keys = neighbour, own, len(keys)
        self.projects = self.normalize = False
        needs = [ConvInput("reduce", key, "source", reduce=kind, weighted=weighted) for key in keys]
        self.needs = (*needs, ConvInput("self", value="destination")) if own is not None else tuple(needs)
        if kind != "max" and len(keys) == 1:
            self.prepare_source, self.prepare_destination = linear(neighbour.weight), own

    def forward(self, *inputs: Tensor) -> Tensor:
        """float32 [n, out] from a reduction [n, d1] for each edge type and the own rows [n, d2]."""
        out = inputs[0] if self.num_keys == 1 else torch.cat(inputs[: self.num_keys], dim=-1)
        if not self.lifted_source or self.projects:
            out = self.neighbour(out)
        elif self.neighbour.bias is not None:
            out = out + self.neighbour.bias
        if self.own is not None:
            out = out + (inputs[-1] if self.lifted_destination else self.own(inputs[-1]))
        return F.normalize(out, p=2.0, dim=-1) if self.normalize else out


def sage(call: ConvCall) -> DenseConv:
    """A SAGEConv call."""
    conv = call.conv
    own = as_linear(conv.lin_r) if conv.root_weight and call.has_destination else None
    dense = DenseSum(call, reduction(call), as_linear(conv.lin_l), own, [call.edge_type])
    dense.normalize = bool(conv.normalize)
    if conv.project:
        dense.prepare_source = nn.Sequential(as_linear(conv.lin), nn.ReLU())
        dense.projects = dense.must_lift = True
    return dense


def graph(call: ConvCall) -> DenseConv:
    """A GraphConv call."""
    neighbour, own = as_linear(call.conv.lin_rel), as_linear(call.conv.lin_root)
    return DenseSum(
        call, reduction(call), neighbour, own if call.has_destination else None, [call.edge_type],
        call.has_edge_weight,
    )  # fmt: skip


def gcn(call: ConvCall) -> DenseConv:
    """A GCNConv call."""
    conv, kind = call.conv, reduction(call)
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
    neighbour = linear(conv.lin.weight, conv.bias)
    dense = DenseSum(call, kind, neighbour, None, [call.edge_type], call.has_edge_weight)
    if kind == "max":
        dense.prepare_source = linear(conv.lin.weight)
        dense.must_lift = True
    return dense


def rgcn(call: ConvCall) -> DenseConv:
    """An RGCNConv call: all relations go through one Gemm, [n, R d] times stacked weights [R d, out]."""
    conv, keys = call.conv, call.edge_types
    numbered = [key.split("__")[1] for key in keys] == [f"r{number}" for number in range(len(keys))]
    if len(keys) > conv.num_relations or (len(keys) < conv.num_relations and not numbered):
        raise call.refusal(
            f"it has {conv.num_relations} relations and the graph has {len(keys)} edge types for them "
            f"({', '.join(keys)})"
        )
    # relations that the graph does not have (an `edge_type` of the data names fewer) have no edges
    weights = relation_weights(conv)[: len(keys)]
    neighbour = linear(weights.reshape(-1, conv.out_channels).T, conv.bias)
    own = linear(conv.root.T) if conv.root is not None and call.has_destination else None
    return DenseSum(call, reduction(call), neighbour, own, keys)


def relation_weights(conv: Any) -> Tensor:
    """float32 [R, in, out], multiplied out of the decomposition that the conv uses."""
    weight: Tensor = conv.weight.detach()
    if conv.num_bases is not None:
        return torch.einsum("rb,bio->rio", conv.comp.detach(), weight)
    if conv.num_blocks is not None:
        return torch.stack([torch.block_diag(*blocks) for blocks in weight])
    return weight
