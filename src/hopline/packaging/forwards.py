"""Forwards of PyG's modules, equal to theirs, that keep one row for each node and each edge.

PyG's own list nodes of all types in one tensor, sort rows, put nodes second, or choose a grouped kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch_geometric import nn as pyg
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import add_self_loops, degree, remove_self_loops, scatter

from hopline.errors import NotSplittable
from hopline.packaging.relations import numbered


def chosen(rows: Any, numbers: Any) -> Any:
    """Of several rows for each node [n, k, d], the one whose number [n] is given."""
    mine = numbers.unsqueeze(1) == torch.arange(rows.size(1))
    return torch.where(mine.unsqueeze(2), rows, 0.0).sum(1)


def by_type(lin: Any, x: Any, type_vec: Any) -> Any:
    """The forward of a `HeteroLinear`, without an order of types."""
    bias = None if lin.bias is None else lin.bias.flatten()
    rows = nn.functional.linear(x, lin.weight.mT.flatten(0, 1), bias)
    return chosen(rows.view(-1, lin.num_types, lin.out_channels), type_vec)


def by_relation(conv: Any, x: Any, edge_index: Any, edge_type: Any = None) -> Any:
    """The forward of an `RGCNConv` or `FastRGCNConv`: all relations in one product of matrices.

    Relations that the graph does not have (an `edge_type` of the data names fewer) have no edges.
    """
    rows = x if isinstance(x, tuple | list) else (x, x)
    names = ("mean", "add", "sum") if isinstance(conv, pyg.FastRGCNConv) else ("mean", "add", "sum", "max")
    is_usual = all(isinstance(each, fx.Proxy) and each.is_floating_point() for each in rows)
    if edge_type is None or not is_usual or conv.aggr not in names:
        return type(conv).forward(conv, x, edge_index, edge_type)
    keys = edge_type.tracer.root.binding.relations
    if len(keys) > conv.num_relations or (len(keys) < conv.num_relations and not numbered(keys)):
        raise NotSplittable(
            f"{type(conv).__name__} cannot be a stage: it has {conv.num_relations} relations and the graph "
            f"has {len(keys)} edge types for them ({', '.join(keys)})"
        )
    weight = conv.weight
    if conv.num_bases is not None:
        weight = torch.einsum("rb,bio->rio", conv.comp, weight)
    elif conv.num_blocks is not None:
        weight = torch.stack([torch.block_diag(*weight[i]) for i in range(len(keys))])
    edges = [edge_index[:, edge_type == i] for i in range(len(keys))]
    parts = [scatter(rows[0][e[0]], e[1], 0, rows[1].size(0), reduce=conv.aggr) for e in edges]
    out = nn.functional.linear(torch.cat(parts, dim=1), weight[: len(keys)].flatten(0, 1).t(), conv.bias)
    return out if conv.root is None else out + nn.functional.linear(rows[1], conv.root.t())


def by_degree(conv: Any, x: Any, edge_index: Any, size: Any = None) -> Any:
    """The forward of an `MFConv`: the layers of all degrees, and of these one for each node."""
    given = x if isinstance(x, tuple | list) else (x, x)
    number = given[0].size(0) if given[1] is None else given[1].size(0)
    h = conv.propagate(edge_index, x=given, size=size)
    rows = torch.stack([lin(h) for lin in conv.lins_l], dim=1)
    if given[1] is not None:
        rows = rows + torch.stack([lin(given[1]) for lin in conv.lins_r], dim=1)
    found = degree(edge_index[1], number, dtype=torch.long)
    return chosen(rows, found.clamp(max=conv.max_degree))


def with_diagonal(conv: Any, x: Any, edge_index: Any) -> Any:
    """The forward of a `ClusterGCNConv`, whose self-loops come with their factor."""
    if not conv.add_self_loops:
        return type(conv).forward(conv, x, edge_index)
    edges, _ = remove_self_loops(edge_index)
    edges, factor = add_self_loops(edges, torch.ones(edges.size(1)), 1 + conv.diag_lambda, x.size(0))
    scale = 1.0 / degree(edges[1], x.size(0))
    out = conv.propagate(edges, x=x, edge_weight=factor * scale[edges[1]])
    return conv.lin_out(out) + conv.lin_root(x)


def by_stacks(conv: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> Any:
    """The forward of an `ARMAConv`, whose stacks are side by side."""
    edges, weight = gcn_norm(edge_index, edge_weight, x.size(0), False, False, conv.flow, x.dtype)
    parts = [x] * conv.num_stacks
    for t in range(conv.num_layers):
        at = 0 if conv.shared_weights else t
        weights = conv.weight[max(at - 1, 0)] if t else conv.init_weight
        rows = torch.cat([part @ each for part, each in zip(parts, weights, strict=True)], dim=1)
        roots = torch.cat([x @ each for each in conv.root_weight[at]], dim=1)
        rows = conv.propagate(edges, x=rows, edge_weight=weight) + roots
        rows = rows if conv.bias is None else rows + conv.bias[at].flatten()
        parts = [part if conv.act is None else conv.act(part) for part in rows.chunk(conv.num_stacks, 1)]
    return sum(parts) / conv.num_stacks


def inverse_degree(index: Any, number: Any, power: float = 1.0, weight: Any = None) -> Any:
    """One over a power of the number of edges of each node, or of their weight; 0 where that is 0."""
    found = degree(index, number) if weight is None else scatter(weight, index, 0, number, reduce="sum")
    found = found.pow(-power)
    return torch.where(found == torch.inf, 0.0, found)


def by_terms(
    conv: Any, x: Any, edge_index: Any, edge_weight: Any = None, batch: Any = None, lambda_max: Any = None
) -> Any:
    """The forward of a `ChebConv` over a normalised Laplacian.

    Unless weights are negative, its largest entries are 1, of the self-loops: PyG subtracts these.
    """
    if conv.normalization is None or lambda_max is not None:
        return type(conv).forward(conv, x, edge_index, edge_weight, batch, lambda_max)
    edges, weight = remove_self_loops(edge_index, edge_weight)
    is_symmetric = conv.normalization == "sym"
    scale = inverse_degree(edges[0], x.size(0), 0.5 if is_symmetric else 1.0, weight)
    norm = -scale[edges[0]] * (scale[edges[1]] if is_symmetric else 1.0)
    norm = norm if weight is None else norm * weight
    terms = [x]
    for k in range(1, len(conv.lins)):
        term = conv.propagate(edges, x=terms[-1], norm=norm)
        terms.append(term if k == 1 else 2.0 * term - terms[-2])
    out = sum(lin(term) for lin, term in zip(conv.lins, terms, strict=True))
    return out if conv.bias is None else out + conv.bias


def by_hyperedges(conv: Any, x: Any, hyperedge_index: Any, *others: Any, **named: Any) -> Any:
    """The forward of a `HypergraphConv` without attention and weights, whose hyperedges are nodes."""
    if conv.use_attention or any(each is not None for each in (*others, *named.values())):
        return type(conv).forward(conv, x, hyperedge_index, *others, **named)
    out, size = conv.lin(x), (x.size(0), x.size(0))
    for edges in (hyperedge_index, hyperedge_index.flip(0)):
        out = conv.propagate(edges, x=out, norm=inverse_degree(edges[1], size[0]), alpha=None, size=size)
        out = out.view(-1, conv.out_channels)
    return out if conv.bias is None else out + conv.bias


def by_destination(conv: Any, x_dict: dict[str, Any], edge_index_dict: dict[Any, Any]) -> dict[str, Any]:
    """The forward of an `HGTConv`, with one list of edges for each destination type."""
    shape = conv.heads, conv.out_channels // conv.heads

    def mapped(name: str, part: int, after: Any = None) -> Any:
        """Keys, queries or values [n, heads dim], times a matrix for each head: one product."""
        lin = conv.kqv_lin.lins[name]
        both = [each.view(3, *shape, -1)[part] for each in (lin.weight, lin.bias)]
        weight, bias = both if after is None else [after.mT @ each for each in both]
        return nn.functional.linear(x_dict[name], weight.flatten(0, 1), bias.flatten())

    def sent(key: tuple[str, ...], part: int) -> Any:
        """Keys or values of the sources [E, heads dim]; keys are times the prior of their type."""
        weight = (conv.v_rel if part else conv.k_rel).weight
        after = weight[conv.edge_types_map[key] :: len(conv.edge_types)]
        after = after if part else after * conv.p_rel["__".join(key)].view(-1, 1, 1)
        return mapped(key[0], part, after).index_select(0, edge_index_dict[key][0])

    found = {}
    for name in (name for name in x_dict if name in conv.dst_node_types):
        keys = [key for key in edge_index_dict if key[-1] == name]
        x, q = x_dict[name], mapped(name, 1)
        out = torch.zeros_like(q)
        if keys:
            edges = torch.cat([edge_index_dict[key] for key in keys], dim=1)
            k_j, v_j = (torch.cat([sent(key, part) for key in keys]).view(-1, *shape) for part in (0, 2))
            q_i, ends = q.index_select(0, edges[1]).view(-1, *shape), (edges[1], None, x.size(0))
            out = conv.aggregate(conv.message(k_j, q_i, v_j, 1.0, *ends), *ends)
        out = conv.out_lin.lins[name](nn.functional.gelu(out))
        if out.size(-1) == x.size(-1):
            alpha = conv.skip[name].sigmoid()
            out = alpha * out + (1 - alpha) * x
        found[name] = out
    return found


def by_semantics(conv: Any, x_dict: dict[str, Any], edge_index_dict: dict[Any, Any]) -> dict[str, Any]:
    """The forward of a `HANConv`, with a node's rows by all edge types side by side."""
    rows = {name: conv.proj[name](x).view(x.size(0), conv.heads, -1) for name, x in x_dict.items()}
    found: dict[str, Any] = {name: [] for name in rows}
    for key, edges in edge_index_dict.items():
        name, src, dst = "__".join(key), rows[key[0]], rows[key[-1]]
        alpha_j = (src * conv.lin_src[name]).sum(-1).index_select(0, edges[0])
        alpha_i = (dst * conv.lin_dst[name]).sum(-1).index_select(0, edges[1])
        ends = edges[1], None, dst.size(0)
        sent = conv.message(src.index_select(0, edges[0]), alpha_i, alpha_j, *ends)
        found[key[-1]].append(conv.aggregate(sent, *ends).relu())
    for name, each in found.items():
        found[name] = out = torch.stack(each, dim=1) if each else None
        if each:
            score = (conv.q * torch.tanh(conv.k_lin(out)).mean(0)).sum(-1)
            found[name] = (score.softmax(0).view(1, -1, 1) * out).sum(1)
    return found


#: Class -> its forward here; exact classes only.
FORWARDS: dict[type, Callable[..., Any]] = {
    pyg.ARMAConv: by_stacks, pyg.ChebConv: by_terms, pyg.ClusterGCNConv: with_diagonal,
    pyg.FastRGCNConv: by_relation, pyg.HANConv: by_semantics, pyg.HGTConv: by_destination,
    pyg.HypergraphConv: by_hyperedges, pyg.MFConv: by_degree, pyg.RGCNConv: by_relation,
    pyg.HeteroDictLinear: lambda m, x_dict: {k: lin(x_dict[k]) for k, lin in m.lins.items() if k in x_dict},
    pyg.HeteroLinear: by_type,
    pyg.MultiAggregation: lambda m, *args, **named: m.combine([each(*args, **named) for each in m.aggrs]),
}  # fmt: skip
