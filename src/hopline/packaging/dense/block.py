"""Masked operations over padded blocks [n, K].

K differs from call to call, and a row must not depend on how far it is padded: reductions over K run
along a middle axis, where ONNX Runtime adds row after row, so that trailing zeros change nothing.
Padding selects row 0 of `sources`; whatever is there (even NaN) is replaced before it is used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

#: As in torch_geometric.utils.softmax.
_EPSILON = 1e-16
_LOWEST = -3.0e38


def gather(sources: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Neighbour rows float32 [n, K, d], 0 where masked; one ONNX Gather and one Where."""
    rows = F.embedding(positions, sources)
    return torch.where(mask.unsqueeze(-1), rows, torch.zeros((), dtype=rows.dtype))


def attend(
    logits: Tensor,
    values: Tensor,
    mask: Tensor,
    loop_logits: Tensor | None = None,
    loop_values: Tensor | None = None,
) -> Tensor:
    """Softmax-weighted sum over the neighbours.

    Args:
        logits: float32 [n, K, H].
        values: float32 [n, K, H, C].
        mask: bool [n, K].
        loop_logits, loop_values: [n, H] and [n, H, C] of one more neighbour, the node itself.

    Returns: float32 [n, H, C]; 0 where there is no neighbour at all.
    """
    keep = mask.unsqueeze(-1)
    logits = torch.where(keep, logits, torch.full((), _LOWEST))
    highest = logits.amax(dim=1)
    if loop_logits is not None:
        highest = torch.maximum(highest, loop_logits)
    weights = torch.where(keep, (logits - highest.unsqueeze(1)).exp(), torch.zeros(()))
    total = weights.sum(dim=1)
    out = (weights.unsqueeze(-1) * values).sum(dim=1)
    if loop_logits is not None and loop_values is not None:
        loop = (loop_logits - highest).exp()
        total = total + loop
        out = out + loop.unsqueeze(-1) * loop_values
    return out / (total.unsqueeze(-1) + _EPSILON)


def loop_attributes(fill: object, edge_attr: Tensor, mask: Tensor) -> Tensor:
    """Attributes float32 [n, d_e] of added self-loops, as torch_geometric.utils.add_self_loops fills them.

    Args:
        fill: "mean" or "add" over the node's other in-edges, a number, or a row of numbers.
        edge_attr: float32 [n, K, d_e].
        mask: bool [n, K], without existing self-loops.

    Raises:
        ValueError: another reduction.
    """
    keep = mask.unsqueeze(-1).to(edge_attr.dtype)
    if isinstance(fill, str):
        total = (edge_attr * keep).sum(dim=1)
        if fill in ("add", "sum"):
            return total
        if fill == "mean":
            return total / keep.sum(dim=1).clamp(min=1.0)
        raise ValueError(fill)
    value = fill if isinstance(fill, Tensor) else torch.full((1,), float(fill))  # type: ignore[arg-type]
    return torch.zeros_like(edge_attr[:, 0]) + value.reshape(1, -1)
