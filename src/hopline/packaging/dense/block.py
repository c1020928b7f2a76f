"""Masked operations over padded blocks [n, K].

n and K differ from call to call, and a row must depend on neither. ONNX Runtime picks a reduction's
algorithm, and with it the order of additions, by the shape: [1, K, d] is summed in another order than
[2, K, d]. A matrix product with a row of ones is the same for each n, and zeros at its end change nothing.
Padding selects row 0 of `sources`; its value (even NaN) is replaced before it is used.
"""

from __future__ import annotations

import torch
from torch import Tensor


def total(rows: Tensor, mask: Tensor) -> Tensor:
    """Sum over the neighbours: float32 [n, d] from rows [n, K, d] that are 0 where masked."""
    return torch.matmul(mask.to(rows.dtype).unsqueeze(1), rows).squeeze(1)


def loop_attributes(fill: object, edge_attr: Tensor, mask: Tensor) -> Tensor:
    """Attributes float32 [n, d_e] of added self-loops, as torch_geometric.utils.add_self_loops fills them.

    Args:
        fill: "mean" or "add" over the node's other in-edges, a number, or a row of numbers.
        edge_attr: float32 [n, K, d_e].
        mask: bool [n, K], without existing self-loops.

    Raises: ValueError: another reduction.
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


def as_edges(rows: Tensor, mask: Tensor) -> Tensor:
    """Rows of nodes [n, …] as rows of the edges of a block [n K, …]."""
    return rows.unsqueeze(1).expand(-1, mask.shape[1], *rows.shape[1:]).flatten(0, 1)


def as_block(rows: Tensor, mask: Tensor) -> Tensor:
    """Rows of edges [n K, …] as a block [n, K, …]."""
    return rows.reshape(*mask.shape, *rows.shape[1:])


def flat(rows: Tensor) -> Tensor:
    """A block [n, K, …] as [n, K, d]."""
    return rows.flatten(2) if rows.dim() > 2 else rows.unsqueeze(2)


def side_by_side(parts: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Several aggregations [n, P, d] of rows of a shape, side by side in its last dimension."""
    if not shape:
        return parts.squeeze(2).squeeze(1)
    last = len(shape) + 1
    return parts.unflatten(2, shape).permute(0, *range(2, last), 1, last).flatten(-2)


def count(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The number of edges of each node [n]."""
    return total(mask.unsqueeze(2).float(), mask).squeeze(1).to(dtype)


def softmax_of_edges(logits: Tensor, mask: Tensor) -> Tensor:
    """PyG's softmax over the edges of each node, of rows [n K, …]."""
    keep = mask.unsqueeze(2)
    block = torch.where(keep, flat(as_block(logits, mask)), torch.full((), -torch.inf))
    weights = torch.where(keep, (block - block.amax(dim=1, keepdim=True)).exp(), torch.zeros(()))
    norm = total(weights, mask).unsqueeze(1)
    return (weights / (norm + 1e-16)).flatten(0, 1).reshape(logits.shape)


def without(mask: Tensor, is_self: Tensor) -> Tensor:
    """The mask of a block [n, K] without self-loops."""
    return mask.logical_and(~is_self)


def with_own(mask: Tensor) -> Tensor:
    """The mask of a block [n, K + 1] in which each node is one more neighbour of itself."""
    return torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)


def with_loops(rows: Tensor, mask: Tensor, fill: object, is_self: Tensor | None) -> Tensor:
    """Attributes of edges and of one added self-loop for each node.

    Args:
        rows: [n K, …]. mask: bool [n, K].
        fill: as in `loop_attributes`.
        is_self: [n, K]; a node's last self-loop gives its attributes to the one that replaces it. None if
            self-loops give nothing.

    Returns: [n (K + 1), …].
    """
    block = as_block(rows, mask)
    attributes = flat(block)
    added = loop_attributes(fill, attributes, mask)
    if is_self is not None:
        found = mask.logical_and(is_self)
        nth = found.int().cumsum(dim=1)
        last = found.logical_and(nth == nth[:, -1:])
        kept = total(torch.where(last.unsqueeze(2), attributes, torch.zeros(())), last)
        added = torch.where(found.any(dim=1, keepdim=True), kept, added)
    return torch.cat([attributes, added.unsqueeze(1)], dim=1).flatten(0, 1).reshape(-1, *rows.shape[1:])
