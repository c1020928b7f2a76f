"""Masked operations over padded blocks [n, K].

n and K differ from call to call, and a row must depend on neither. ONNX Runtime picks a reduction's
algorithm, and with it the order of additions, by the shape: [1, K, d] is summed in another order than
[2, K, d]. A matrix product with a row of ones is the same for each n, and zeros at its end change nothing.
Padding selects row 0 of `sources`; its value (even NaN) is replaced before it is used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_LOWEST = -3.0e38


def gather(sources: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Neighbour rows float32 [n, K, d], 0 where masked; one ONNX Gather and one Where."""
    rows = F.embedding(positions, sources)
    return torch.where(mask.unsqueeze(-1), rows, torch.zeros((), dtype=rows.dtype))


def total(rows: Tensor, mask: Tensor) -> Tensor:
    """Sum over the neighbours: float32 [n, d] from rows [n, K, d] that are 0 where masked."""
    return torch.matmul(mask.to(rows.dtype).unsqueeze(1), rows).squeeze(1)


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

    Returns: float32 [n, H, C]; 0 for a node without neighbours.
    """
    keep = mask.unsqueeze(-1)
    logits = torch.where(keep, logits, torch.full((), _LOWEST))
    highest = logits.amax(dim=1)
    if loop_logits is not None:
        highest = torch.maximum(highest, loop_logits)
    weights = torch.where(keep, (logits - highest.unsqueeze(1)).exp(), torch.zeros(()))
    norm = total(weights, mask)
    out = total((weights.unsqueeze(-1) * values).flatten(2), mask).unflatten(1, values.shape[2:])
    if loop_logits is not None and loop_values is not None:
        loop = (loop_logits - highest).exp()
        norm = norm + loop
        out = out + loop.unsqueeze(-1) * loop_values
    # The highest score has weight 1, so that only a node without neighbours has a smaller sum.
    return out / norm.clamp(min=1.0).unsqueeze(-1)


def loop_attributes(fill: object, edge_attr: Tensor, mask: Tensor) -> Tensor:
    """Attributes float32 [n, d_e] of added self-loops, as torch_geometric.utils.add_self_loops fills them.

    Args:
        fill: "mean" or "add" over the node's other in-edges, a number, or a row of numbers.
        edge_attr: float32 [n, K, d_e].
        mask: bool [n, K], without existing self-loops.

    Raises:
        ValueError: another reduction.
    """
    if isinstance(fill, str):
        keep = mask.unsqueeze(-1)
        summed = total(torch.where(keep, edge_attr, torch.zeros(())), mask)
        if fill in ("add", "sum"):
            return summed
        if fill == "mean":
            return summed / total(keep.to(edge_attr.dtype), mask).clamp(min=1.0)
        raise ValueError(fill)
    value = fill if isinstance(fill, Tensor) else torch.full((1,), float(fill))  # type: ignore[arg-type]
    return torch.zeros_like(edge_attr[:, 0]) + value.reshape(1, -1)
