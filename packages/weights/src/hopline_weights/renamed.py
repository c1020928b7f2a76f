"""Weights of layers as earlier releases of PyG named and shaped them, converted to the present names.

Only names that moved are converted. Where a layer also computed otherwise, the names do not tell which
release computed what, or a matrix has to be cut, the weights are refused with the release and what to save.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_State = Mapping[str, Tensor]


class _Form(NamedTuple):
    """An earlier form of a layer.

    Attributes:
        names: beginnings of names that this form has. release: of PyG, that changed it.
        moves: as of `_moved`. why: the reason for a refusal, of the layer and its weights; "" for none.
    """

    names: tuple[str, ...]
    release: str
    moves: str = ""
    why: str | Callable[[nn.Module, _State], str] = ""


def converted(module: nn.Module, state: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[str]]:
    """Convert the weights of earlier PyG.

    Returns: the state dict with present names; notes on what was converted; reasons for what was not.
    """
    state, notes, reasons = dict(state), [], []
    for new in _edge_type_keys(module):
        old = "__".join(new[1:-1].split("___"))
        names = {name: ".".join(new if p == old else p for p in name.split(".")) for name in state}
        if any(name != renamed for name, renamed in names.items()):
            state = {names[name]: value for name, value in state.items()}
            notes.append(f"{old} is {new} since PyG 2.4")
    for path, layer in module.named_modules():
        begin = f"{path}." if path else ""
        own = {name[len(begin) :]: value for name, value in state.items() if name.startswith(begin)}
        if own.keys() >= layer.state_dict().keys():
            continue
        classes = [cls for cls in type(layer).__mro__ if cls.__module__.startswith("torch_geometric.")]
        for form in (form for cls in classes for form in _FORMS.get(cls.__name__, ())):
            if not all(any(f"{name}.".startswith(f"{start}.") for name in own) for start in form.names):
                continue
            shown = f"{path or 'the model'} ({type(layer).__name__}): {', '.join(form.names)}"
            if why := form.why if isinstance(form.why, str) else form.why(layer, own):
                reasons.append(f"{shown} are of before PyG {form.release}: {why}")
                continue
            kept = {name: value for name, value in state.items() if not name.startswith(begin)}
            state = kept | {begin + name: value for name, value in _moved(own, form.moves).items()}
            notes.append(f"{shown} converted to the names since PyG {form.release}")
            break
    return state, notes, reasons


def _edge_type_keys(module: nn.Module) -> list[str]:
    """Parts of names that PyG makes of tuples: <user___buys___item>."""
    parts = {part for name in module.state_dict() for part in name.split(".")}
    return sorted(part for part in parts if re.fullmatch(r"<.+___.+___.+>", part))


def _moved(own: _State, moves: str) -> dict[str, Tensor]:
    """Weights under other names: "old new, …", "old new.T" for a transposed matrix, "old -" for none."""
    names = dict(each.split() for each in moves.split(", "))
    found = {names.get(name, name): value for name, value in own.items()}
    found.pop("-", None)
    turned = [name for name in found if name.endswith(".T")]
    return found | {name[:-2]: found.pop(name).t().contiguous() for name in turned}


def _of_two_maps(layer: nn.Module, own: _State) -> str:
    src = own["lin_src.weight"]
    if torch.equal(own.get("lin_dst.weight", src), src):
        return ""
    return "lin_src and lin_dst differ, and this layer has one lin for both: give it in_channels=(…, …)"


_FORMS: dict[str, tuple[_Form, ...]] = {
    "GCNConv": (_Form(("weight",), "2.0", "weight lin.weight.T"),),
    "FeaStConv": (_Form(("weight", "u"), "2.0", "weight lin.weight.T, u u.weight.T"),),
    "NNConv": (_Form(("root",), "2.0", "root lin.weight.T"),),
    "HypergraphConv": (_Form(("weight",), "2.0", "weight lin.weight.T"),),
    "GATConv": (
        _Form(("lin_src.weight",), "2.5", "lin_src.weight lin.weight, lin_dst.weight -", _of_two_maps),
        _Form(("lin_l.weight", "att_l", "att_r"), "2.0", why=(
            "some of these releases scored both ends of an edge by att_l and ignored att_r; rename lin_l "
            "to lin (of a pair lin_src, and lin_r lin_dst), and att_l and att_r to att_src and att_dst "
            "(att_l to both, if att_r was not trained)"
        )),
        _Form(("weight", "att"), "1.6", why=(
            "save weight.t() as lin.weight, and the halves of att, att.chunk(2, -1), as att_dst and att_src"
        )),
    ),
    "SAGEConv": (
        _Form(("lin_rel.weight", "lin_root.weight"), "1.6",
            "lin_rel.weight lin_l.weight, lin_rel.bias lin_l.bias, lin_root.weight lin_r.weight",
        ),
        _Form(("weight",), "1.5", why="one matrix was for a node and its neighbours"),
    ),
    "GraphConv": (
        _Form(("lin_l.weight", "lin_r.weight"), "1.7",
            "lin_l.weight lin_rel.weight, lin_l.bias lin_rel.bias, lin_r.weight lin_root.weight",
        ),
        _Form(("weight", "lin.weight"), "1.6", why=(
            "it multiplied before it took the maximum; of a sum or mean, save weight.t() as "
            "lin_rel.weight, lin.bias as lin_rel.bias and lin.weight as lin_root.weight"
        )),
    ),
    "ChebConv": (_Form(("weight",), "2.0", why="save weight[k].t() as lins.<k>.weight"),),
    "TAGConv": (_Form(("lin.weight",), "2.0", why=(
        "save lin.weight.chunk(K + 1, 1)[k] as lins.<k>.weight, and lin.bias as bias"
    )),),
    "RGCNConv": (_Form(("basis", "att"), "1.6", why=(
        "it added messages: give it aggr='add', and save basis as weight and att as comp"
    )),),
    "HGTConv": (
        _Form(("k_lin", "a_rel", "m_rel"), "2.3", why=(
            "it took the softmax of attention for each edge type, and takes one over all now"
        )),
    ),
}  # fmt: skip
