"""GATConv (Veličković et al., arXiv 1710.10903), GATv2Conv (Brody et al., arXiv 2105.14491) and
TransformerConv (Shi et al., arXiv 2009.03509) as one reduction of the engine (`artifact.Attention`).

The engine's kernel computes scores, softmax and sums, and `forward` gets the attended rows. Keys and values
are projected one level below, once for each node. docs/architecture.md has the linear terms that are moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg

from hopline.artifact import Attention, StageInput
from hopline.errors import HoplineError
from hopline.packaging.dense.base import ConvCall, DenseConv, linear


class Values(nn.Module):
    """The projection of attended rows, head by head: sum a (V x) = V sum a x.

    Args:
        weight: [H C, d]. bias: [H C].
        concat: the heads side by side, not their mean.
    """

    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, heads: int, *, concat: bool) -> None:
        super().__init__()
        parts = weight.detach().view(heads, -1, weight.shape[1])
        self.parts = nn.ModuleList(
            map(linear, parts) if concat else [linear(torch.cat(tuple(parts), dim=1) / heads)]
        )
        if bias is not None and not concat:
            bias = bias.view(heads, -1).mean(dim=0)
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, attended: Tensor, count: Tensor | None = None) -> Tensor:
        """float32 [n, H C] or [n, C] of rows [n, H d] and numbers of neighbours [n]."""
        rows = attended.split(self.parts[0].in_features, dim=1)
        found = [part(values) for part, values in zip(self.parts, rows, strict=True)]
        out = found[0] if len(found) == 1 else torch.cat(found, dim=1)
        if self.bias is None or count is None:
            return out
        return out + count.clamp(max=1).unsqueeze(1) * self.bias


class Attending(DenseConv):
    """Attended rows, a map of the node's own row and a bias, added up.

    Inputs: attended rows, [own row], [number of neighbours].

    Args:
        values: projects the attended rows; None where they are projected below.
        of_edges: projects the attended attributes of edges, the last columns.
        own: the map of the own row; None where the code after the attention does not read it.
        gate: decides, from both, how much of each there is in their sum.
    """

    bias: Tensor | None

    def __init__(
        self, call: ConvCall, attention: Attention, *, values: Values | None = None,
        of_edges: Values | None = None, own: nn.Module | None = None, gate: nn.Module | None = None,
        bias: Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.heads, self.channels = attention.heads, attention.channels
        self.concat = bool(call.conv.concat)
        self.values, self.of_edges, self.own, self.gate = values, of_edges, own, gate
        needs = [StageInput("", "attend", call.edge_type, attention=attention)]
        if own is not None:
            needs.append(StageInput("", "self"))
        if values is not None and values.bias is not None:
            needs.append(StageInput("", "count", call.edge_type))
        self.needs = tuple(needs)
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, attended: Tensor, *rest: Tensor) -> Tensor:
        """float32 [n, H C] or [n, C]."""
        extra = iter(rest)
        own = None if self.own is None else self.own(next(extra))
        count = next(extra, None)
        if self.of_edges is None:
            out = self.joined(attended, count)
        else:
            width = self.heads * self.channels
            out = self.joined(attended[:, :width], count) + self.of_edges(attended[:, width:])
        if own is not None and self.gate is not None:
            beta = self.gate(torch.cat([out, own, out - own], dim=-1)).sigmoid()
            return beta * own + (1 - beta) * out
        out = out if own is None else out + own
        return out if self.bias is None else out + self.bias

    def joined(self, attended: Tensor, count: Tensor | None) -> Tensor:
        """float32 [n, H C] of the heads as [n, H C] or their mean [n, C]."""
        if self.values is not None:
            return self.values(attended, count)
        if self.concat or self.heads == 1:
            return attended
        return attended.unflatten(1, (self.heads, self.channels)).mean(dim=1)


def _check(call: ConvCall) -> None:
    """Refuse what no attention of the engine computes.

    Raises:
        NotSplittable: self-loops over two node types, another aggregation or filling, edge attributes that
            the conv was not built for, and which GAT does not read.
    """
    conv = call.conv
    if type(conv.aggr_module).__name__ != "SumAggregation":
        raise call.refusal(f"its aggregation is {type(conv.aggr_module).__name__}, attention needs a sum")
    if call.has_edge_attr and conv.lin_edge is None and not hasattr(conv, "att_src"):
        raise call.refusal("it gets edge attributes but was built without edge_dim")
    if getattr(conv, "add_self_loops", False):
        if not call.same_type:
            raise call.refusal("it adds self-loops between two node types; set add_self_loops=False")
        if not call.has_destination:
            raise call.refusal("it adds self-loops but gets no rows of the destination nodes")
        fill = conv.fill_value
        if isinstance(fill, str) and fill not in ("mean", "add", "sum"):
            raise call.refusal(f"fill_value={fill!r} for the attributes of self-loops; use 'mean' or 'add'")


def gat(call: ConvCall) -> DenseConv:
    """A GATConv call."""
    conv = call.conv
    _check(call)
    weight_src = (conv.lin if conv.lin is not None else conv.lin_src).weight.detach()
    weight_dst = (conv.lin if conv.lin is not None else conv.lin_dst).weight.detach()
    uses_edges = call.has_edge_attr and conv.lin_edge is not None
    edge = _fold(conv.lin_edge.weight.detach(), conv.att_edge).T if uses_edges else None
    own = linear(conv.res.weight) if call.has_destination and conv.res is not None else None
    of_source = _fold(weight_src, conv.att_src)
    of_own = _fold(weight_dst, conv.att_dst) if call.has_destination else None
    attention = _attention(
        call, "gat", edge=edge, slope=conv.negative_slope, is_query_state=call.has_destination
    )
    if call.source_dim <= len(weight_src) + conv.heads:
        attention = msgspec.structs.replace(
            attention, shared=True, channels=call.source_dim, vector=_bytes(of_source),
            own_vector=b"" if of_own is None else _bytes(of_own),
        )  # fmt: skip
        values = Values(weight_src, None, conv.heads, concat=bool(conv.concat))
        dense = Attending(call, attention, values=values, own=own, bias=conv.bias)
        dense.query = "destination" if call.has_destination else None
        return dense
    dense = Attending(call, attention, own=own, bias=conv.bias)
    dense.prepare_source = linear(torch.cat([weight_src, of_source]))
    dense.query = None if of_own is None else linear(of_own)
    return dense


def gatv2(call: ConvCall) -> DenseConv:
    """A GATv2Conv call."""
    conv = call.conv
    _check(call)
    edge = conv.lin_edge.weight.detach().T if call.has_edge_attr else None
    attention = _attention(call, "gatv2", edge=edge, slope=conv.negative_slope, vector=conv.att)
    own = None if conv.res is None else linear(conv.res.weight)
    dense = Attending(call, attention, own=own, bias=conv.bias)
    dense.prepare_source = linear(conv.lin_l.weight, conv.lin_l.bias)
    dense.query = linear(conv.lin_r.weight, conv.lin_r.bias)
    return dense


def transformer(call: ConvCall) -> DenseConv:
    """A TransformerConv call."""
    conv = call.conv
    _check(call)
    heads, channels, scale = conv.heads, conv.out_channels, 1 / math.sqrt(conv.out_channels)
    edge = conv.lin_edge.weight.detach().view(heads, channels, -1) if call.has_edge_attr else None
    key, value, query = conv.lin_key, conv.lin_value, conv.lin_query
    attention = _attention(call, "transformer", edge=edge)
    weight = query.weight.detach()
    with_bias = [weight] if query.bias is None else [weight, query.bias.detach().unsqueeze(1)]
    rows = scale * torch.cat(with_bias, dim=1)
    # [H, C, d] and [H, C, e] to [H e, d]
    of_edges = [] if edge is None else [_through(rows, edge)]
    after: dict[str, Any] = {
        "of_edges": None if edge is None else Values(edge.flatten(0, 1), None, heads, concat=conv.concat),
        "own": linear(conv.lin_skip.weight, conv.lin_skip.bias) if conv.root_weight else None,
        "gate": linear(conv.lin_beta.weight) if conv.root_weight and conv.lin_beta is not None else None,
    }
    if call.source_dim <= 2 * heads * channels:
        attention = msgspec.structs.replace(attention, shared=True, channels=call.source_dim)
        values = Values(value.weight, value.bias, heads, concat=bool(conv.concat))
        dense = Attending(call, attention, values=values, **after)
        # q b of the keys' bias b is the same for all neighbours: the softmax is as without it.
        rows = _through(rows, key.weight.detach().view(heads, channels, -1))
    else:
        dense = Attending(call, attention, **after)
        bias = None if key.bias is None else torch.cat([key.bias, value.bias]).detach()
        dense.prepare_source = linear(torch.cat([key.weight, value.weight]).detach(), bias)
    rows = torch.cat([rows, *of_edges])
    dense.query = linear(
        rows[:, : weight.shape[1]], None if query.bias is None else rows[:, weight.shape[1]]
    )
    return dense


def _attention(
    call: ConvCall, kind: Literal["gat", "gatv2", "transformer"], *, edge: Tensor | None,
    slope: float = 0.0, vector: Tensor | None = None, is_query_state: bool = False,
) -> Attention:  # fmt: skip
    conv = call.conv
    num_attr = 0 if edge is None else int(edge.shape[-1] if kind == "transformer" else edge.shape[0])
    loops = bool(getattr(conv, "add_self_loops", False))
    fill: Literal["mean", "sum", "row"] = "row"
    fill_row = b""
    if loops and num_attr:
        if isinstance(conv.fill_value, str):
            fill = "mean" if conv.fill_value == "mean" else "sum"
        else:
            given = torch.as_tensor(conv.fill_value, dtype=torch.float32).reshape(-1)
            fill_row = _bytes(given.expand(num_attr))
    return Attention(
        kind=kind, heads=conv.heads, channels=conv.out_channels, is_query_state=is_query_state, loops=loops,
        slope=float(slope), num_attr=num_attr, fill=fill, vector=b"" if vector is None else _bytes(vector),
        edge=b"" if edge is None or kind == "transformer" else _bytes(edge), fill_row=fill_row,
    )  # fmt: skip


def _fold(weight: Tensor, attention: Tensor) -> Tensor:
    """[H, d] such that x @ result.T = ((x @ weight.T) as [H, C] * attention).sum(-1)."""
    _, heads, channels = attention.shape
    return (weight.view(heads, channels, -1) * attention.detach().view(heads, channels, 1)).sum(dim=1)


def _through(rows: Tensor, weight: Tensor) -> Tensor:
    """[H e, d] such that (rows x) . (weight[h] e), head by head, is (result x) . e.

    Args:
        rows: [H C, d]. weight: [H, C, e].
    """
    heads, channels, _ = weight.shape
    return torch.einsum("hcd,hce->hed", rows.view(heads, channels, -1), weight).flatten(0, 1)


def _bytes(values: Tensor) -> bytes:
    return np.ascontiguousarray(values.detach().numpy(), "<f4").tobytes()


#: Exact classes only: a subclass may have another message function.
BUILDERS: dict[type, Callable[[ConvCall], DenseConv]] = {
    pyg.GATConv: gat,
    pyg.GATv2Conv: gatv2,
    pyg.TransformerConv: transformer,
}
#: Hooks that compute a weight from other weights before each call; the weight exists.
_HARMLESS = frozenset({"WeightNorm", "SpectralNorm"})
_METHODS = frozenset(
    {"forward", "message", "aggregate", "update", "propagate", "edge_update", "edge_updater"}
)


def build(call: ConvCall) -> DenseConv:
    """Build the dense form of a conv call.

    Raises: NotSplittable: one of its options or a part that was replaced has no dense form.
    """
    changed = _changed(call.conv)
    if changed:
        raise call.refusal(f"it differs from PyG's class: {changed}")
    try:
        return BUILDERS[type(call.conv)](call)
    except HoplineError:
        raise
    except Exception as error:  # a part that the user replaced may lack anything
        why = f"its parts are not those of PyG's class ({type(error).__name__}: {error})"
        raise call.refusal(why) from error


def _changed(conv: nn.Module) -> str:
    """Parts that a user has added to or replaced in a conv, which a dense form would lose; "" for none."""
    for name, part in conv.named_modules():
        kinds = [
            each for kind, each in vars(part).items() if kind.endswith("_hooks") and isinstance(each, dict)
        ]
        if any(type(hook).__name__ not in _HARMLESS for each in kinds for hook in each.values()):
            return f"{name or 'it'} has hooks"
        if "forward" in vars(part):
            return f"the forward of {name or 'it'} was replaced"
    if getattr(conv, "flow", "source_to_target") != "source_to_target":
        return "its flow is target_to_source"
    for name in _METHODS:
        method = getattr(type(conv), name, None)
        owner = "" if name in vars(conv) else str(getattr(method, "__module__", ""))
        if method is not None and not owner.startswith("torch_geometric"):
            return f"its {name} was replaced"
    for name, part in conv.named_children():
        if name.startswith(("lin", "res")) and type(part) not in (nn.Linear, pyg.Linear):
            return f"its {name} is {type(part).__name__}"
    return ""
