"""RGCNConv and FastRGCNConv (Schlichtkrull et al., arXiv 1703.06103): one reduction for each relation.

The weights of a basis or block-diagonal decomposition are multiplied out when packaging, and all
relations go through one Gemm: concatenated reductions [n, R d] times stacked weights [R d, out].
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hopline.packaging.dense.base import ConvCall, ConvInput, DenseConv, linear, reduction


class DenseRGCN(DenseConv):
    """`sum_r W_r reduce_r + W_root self + b`."""

    def __init__(self, call: ConvCall) -> None:
        super().__init__()
        conv = call.conv
        numbered = [key.split("__")[1] for key in call.edge_types] == [
            f"r{number}" for number in range(len(call.edge_types))
        ]
        if len(call.edge_types) > conv.num_relations or (
            len(call.edge_types) < conv.num_relations and not numbered
        ):
            raise call.refusal(
                f"it has {conv.num_relations} relations and the graph has {len(call.edge_types)} edge "
                f"types for them ({', '.join(call.edge_types)})"
            )
        kind = reduction(call)
        # relations that the graph does not have (an `edge_type` of the data names fewer) have no edges
        relations = relation_weights(conv)[: len(call.edge_types)]
        self.neighbour = linear(relations.reshape(-1, conv.out_channels).T, conv.bias)
        has_root = conv.root is not None and call.has_destination
        self.own = linear(conv.root.T) if has_root else None
        needs = [ConvInput("reduce", key, "source", reduce=kind) for key in call.edge_types]
        if has_root:
            needs.append(ConvInput("self", value="destination"))
        self.needs = tuple(needs)

    def forward(self, *inputs: Tensor) -> Tensor:
        """float32 [n, out] from one reduction [n, d] for each relation and the own rows."""
        if self.own is None:
            return self.neighbour(torch.cat(inputs, dim=-1))
        return self.neighbour(torch.cat(inputs[:-1], dim=-1)) + self.own(inputs[-1])


def relation_weights(conv: Any) -> Tensor:
    """float32 [R, in, out], computed from the decomposition that the conv uses."""
    weight: Tensor = conv.weight.detach()
    if conv.num_bases is not None:
        return torch.einsum("rb,bio->rio", conv.comp.detach(), weight)
    if conv.num_blocks is not None:
        return torch.stack([torch.block_diag(*blocks) for blocks in weight])
    return weight


def build(call: ConvCall) -> DenseConv:
    """The dense form of an RGCNConv call."""
    return DenseRGCN(call)
