"""Weights of layers as earlier releases of PyG named and shaped them, converted to the present names.

Only mappings that compute the same are here. Where a layer also computes otherwise now, or the names do not
tell which release computed what, the weights are refused with the release.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

_State = Mapping[str, Tensor]
#: As for `_moved`; or a function that returns the present weights, or the reason that there are none.
_Convert = str | Callable[[nn.Module, _State], dict[str, Tensor] | str]


class _Form(NamedTuple):
    """An earlier form of a layer.

    Attributes:
        names: beginnings of names that this form has. release: of PyG, that changed it.
    """

    names: tuple[str, ...]
    release: str
    convert: _Convert


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
            how = form.convert
            found = _moved(own, how) if isinstance(how, str) else how(layer, own)
            shown = f"{path or 'the model'} ({type(layer).__name__}): {', '.join(form.names)}"
            if isinstance(found, str):
                reasons.append(f"{shown} are of before PyG {form.release}: {found}")
                continue
            kept = {name: value for name, value in state.items() if not name.startswith(begin)}
            state = kept | {begin + name: value for name, value in found.items()}
            notes.append(f"{shown} converted to the names since PyG {form.release}")
            break
    return state, notes, reasons


def _edge_type_keys(module: nn.Module) -> list[str]:
    """Parts of names that PyG makes of tuples: <user___buys___item>."""
    parts = {part for name in module.state_dict() for part in name.split(".")}
    return sorted(part for part in parts if re.fullmatch(r"<.+___.+___.+>", part))


def _moved(own: _State, moves: str) -> dict[str, Tensor]:
    """Weights under other names, "old new, …"; "old new.T": a matrix [in, out] that is [out, in] now."""
    names = dict(each.split() for each in moves.split(", "))
    found = {}
    for name, value in own.items():
        new = names.get(name, name)
        is_turned = new.endswith(".T")
        found[new.removesuffix(".T")] = value.t().contiguous() if is_turned else value
    return found


def _refused(why: str) -> _Convert:
    return lambda layer, own: why


def _without(own: _State, *names: str) -> dict[str, Tensor]:
    return {name: value for name, value in own.items() if name not in names}


def _gat_of_2(layer: nn.Module, own: _State) -> dict[str, Tensor] | str:
    src = own["lin_src.weight"]
    if not torch.equal(own.get("lin_dst.weight", src), src):
        return "lin_src and lin_dst differ, and this layer has one lin for both: give it in_channels=(…, …)"
    return _moved(_without(own, "lin_dst.weight"), "lin_src.weight lin.weight")


def _gat_of_1_6(layer: nn.Module, own: _State) -> dict[str, Tensor] | str:
    if "lin.weight" in layer.state_dict():
        return (
            "some of these releases scored both ends of an edge by att_l and ignored att_r; rename lin_l "
            "to lin, and att_l and att_r to att_src and att_dst (att_l to both, if att_r was not trained)"
        )
    ends = "lin_l.weight lin_src.weight, lin_r.weight lin_dst.weight, att_l att_src, att_r att_dst"
    return _moved(own, ends)


def _gat_of_1_5(layer: nn.Module, own: _State) -> dict[str, Tensor] | str:
    if "lin.weight" not in layer.state_dict():
        return "this layer has other weights for each end of an edge"
    channels = own["att"].shape[-1] // 2
    ends = {"att_src": own["att"][..., channels:], "att_dst": own["att"][..., :channels]}
    return _moved(_without(own, "att"), "weight lin.weight.T") | ends


def _graph_of_1_5(layer: nn.Module, own: _State) -> dict[str, Tensor] | str:
    if getattr(layer, "aggr", None) not in ("add", "sum", "mean"):
        return "it multiplied before it took the maximum"
    return _moved(own, "lin.weight lin_root.weight, lin.bias lin_rel.bias, weight lin_rel.weight.T")


def _cheb_of_1(layer: nn.Module, own: _State) -> dict[str, Tensor] | str:
    parts = {f"lins.{k}.weight": each.t().contiguous() for k, each in enumerate(own["weight"])}
    return _without(own, "weight") | parts


def _tag_of_1(layer: nn.Module, own: _State) -> dict[str, Tensor] | str:
    count = sum(name.startswith("lins.") for name in layer.state_dict())
    parts = enumerate(own["lin.weight"].chunk(count, dim=1))
    rest = _moved(_without(own, "lin.weight"), "lin.bias bias")
    return rest | {f"lins.{k}.weight": each.contiguous() for k, each in parts}


def _rgcn_of_1_5(layer: nn.Module, own: _State) -> dict[str, Tensor] | str:
    if getattr(layer, "aggr", None) not in ("add", "sum"):
        return "it added messages, and this layer takes their mean: give it aggr='add'"
    return _moved(own, "basis weight, att comp")


_FORMS: dict[str, tuple[_Form, ...]] = {
    "GCNConv": (_Form(("weight",), "2.0", "weight lin.weight.T"),),
    "FeaStConv": (_Form(("weight", "u"), "2.0", "weight lin.weight.T, u u.weight.T"),),
    "NNConv": (_Form(("root",), "2.0", "root lin.weight.T"),),
    "HypergraphConv": (_Form(("weight",), "2.0", "weight lin.weight.T"),),
    "GATConv": (
        _Form(("lin_src.weight",), "2.5", _gat_of_2),
        _Form(("lin_l.weight", "att_l", "att_r"), "2.0", _gat_of_1_6),
        _Form(("weight", "att"), "1.6", _gat_of_1_5),
    ),
    "SAGEConv": (
        _Form(("lin_rel.weight", "lin_root.weight"), "1.6",
            "lin_rel.weight lin_l.weight, lin_rel.bias lin_l.bias, lin_root.weight lin_r.weight",
        ),
        _Form(("weight",), "1.5", _refused("one matrix was for a node and its neighbours")),
    ),
    "GraphConv": (
        _Form(("lin_l.weight", "lin_r.weight"), "1.7",
            "lin_l.weight lin_rel.weight, lin_l.bias lin_rel.bias, lin_r.weight lin_root.weight",
        ),
        _Form(("weight", "lin.weight"), "1.6", _graph_of_1_5),
    ),
    "ChebConv": (_Form(("weight",), "2.0", _cheb_of_1),),
    "TAGConv": (_Form(("lin.weight",), "2.0", _tag_of_1),),
    "RGCNConv": (_Form(("basis", "att"), "1.6", _rgcn_of_1_5),),
    "HGTConv": (
        _Form(("k_lin", "a_rel", "m_rel"), "2.3", _refused(
            "it took the softmax of attention for each edge type, and takes one over all now"
        )),
    ),
}  # fmt: skip
