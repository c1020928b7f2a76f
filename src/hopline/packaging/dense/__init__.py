"""Dense forms of convolutions, one file for each family: faster than the code of their messages."""

from __future__ import annotations

from torch import nn
from torch_geometric import nn as pyg

from hopline.errors import HoplineError
from hopline.packaging.dense import attend, pna
from hopline.packaging.dense.base import Builder, ConvCall, ConvInput, DenseConv

__all__ = ["BUILDERS", "NEEDS_EDGE_ATTR", "ConvCall", "ConvInput", "DenseConv", "build"]

#: Exact classes only: a subclass may have another message function.
BUILDERS: dict[type, Builder] = {
    pyg.GATConv: attend.gat,
    pyg.GATv2Conv: attend.gatv2,
    pyg.PNAConv: pna.build,
    pyg.TransformerConv: attend.transformer,
}
#: Convs that must get edge attributes. The others that can read them have an option, `edge_dim`.
NEEDS_EDGE_ATTR: tuple[type, ...] = (pyg.GINEConv,)
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
