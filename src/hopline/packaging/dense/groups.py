"""Operations over the edges of each node, in rows of edges [e, …].

`owner` int64 [e] has the number of the node that an edge belongs to, and `nodes` int64 [n] one entry for
each node. Edges are added up one by one, in the order of the rows: a node's result depends on its
own edges alone, however many others there are. The last node is none. Edges that fill up a call belong to
it, and self-loops that the model removed.
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor


def total(rows: Tensor, owner: Tensor, nodes: Tensor) -> Tensor:
    """Sum over the edges of each node: [n, d] from rows [e, d]."""
    return rows.new_zeros(nodes.shape[0], rows.shape[1]).index_add(0, owner, rows)


def highest(rows: Tensor, owner: Tensor, nodes: Tensor, none: float = -torch.inf) -> Tensor:
    """Maximum over the edges of each node: [n, d] from rows [e, d]; `none` for none, open with a NaN."""
    start = rows.new_full((nodes.shape[0], rows.shape[1]), none)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"index_reduce\(\) is in beta", category=UserWarning)
        return start.index_reduce(0, owner, rows, "amax")


def flat(rows: Tensor) -> Tensor:
    """Rows [e, …] as [e, d]."""
    return rows.unsqueeze(1) if rows.dim() == 1 else rows if rows.dim() == 2 else rows.flatten(1)


def shaped(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Rows [n, d] as [n, *shape]."""
    return rows if len(shape) == 1 else rows.reshape(-1, *shape)


def side_by_side(parts: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Aggregations [n, P, d] of rows of a shape, side by side in its last dimension; [n, d] of one."""
    if parts.dim() == 2:
        return shaped(parts, shape)
    last = len(shape) + 1
    return parts.reshape(-1, parts.shape[1], *shape).permute(0, *range(2, last), 1, last).flatten(-2)


def count(owner: Tensor, nodes: Tensor, dtype: torch.dtype) -> Tensor:
    """The number of edges of each node [n]."""
    ones = torch.ones_like(owner, dtype=torch.float32).unsqueeze(1)
    return total(ones, owner, nodes).squeeze(1).to(dtype)


def softmax_of_edges(logits: Tensor, owner: Tensor, nodes: Tensor) -> Tensor:
    """PyG's softmax over the edges of each node, of rows [e, …]."""
    rows = flat(logits)
    weights = (rows - highest(rows, owner, nodes)[owner]).exp()
    return shaped(weights / (total(weights, owner, nodes)[owner] + 1e-16), logits.shape[1:])


def without(owner: Tensor, is_self: Tensor, nodes: Tensor) -> Tensor:
    """The owners of edges, with self-loops as those of no node."""
    return torch.where(is_self, torch.ones_like(nodes).sum() - 1, owner)


def with_own(owner: Tensor, nodes: Tensor) -> Tensor:
    """The owners of edges [e + n], the last of which are a self-loop of each node."""
    return torch.cat([owner, torch.arange(nodes.shape[0])])


def filled(rows: Tensor, owner: Tensor, nodes: Tensor, row: Tensor) -> Tensor:
    """Attributes [e, d] or weights [e] of edges, and `row` for edges of no node."""
    is_none = owner == torch.ones_like(nodes).sum() - 1
    return torch.where(is_none if rows.dim() == 1 else is_none.unsqueeze(1), row, rows)


def loop_attributes(fill: object, rows: Tensor, owner: Tensor, nodes: Tensor) -> Tensor:
    """Attributes [n, d] of added self-loops, from rows [e, d]; `fill` is that of `add_self_loops`."""
    if isinstance(fill, str):
        summed = total(rows, owner, nodes)
        number = count(owner, nodes, rows.dtype).clamp(min=1.0).unsqueeze(1)
        return summed / number if fill == "mean" else summed
    value = fill if isinstance(fill, Tensor) else torch.full((1,), float(fill))  # type: ignore[arg-type]
    return rows.new_zeros(nodes.shape[0], rows.shape[1]) + value.reshape(1, -1)


def with_loops(rows: Tensor, owner: Tensor, nodes: Tensor, fill: object, is_self: Tensor | None) -> Tensor:
    """Attributes of edges and of one added self-loop for each node: [e + n, …] from rows [e, …].

    With `is_self`, a node's last self-loop gives its attributes to the one that replaces it.
    """
    attributes = flat(rows)
    added = loop_attributes(fill, attributes, owner, nodes)
    if is_self is not None:
        places = torch.where(is_self, torch.arange(owner.shape[0]), -1).unsqueeze(1)
        last = highest(places, owner, nodes, -1)
        added = torch.where(last >= 0, attributes[last.clamp(min=0).squeeze(1)], added)
    return shaped(torch.cat([attributes, added]), rows.shape[1:])
