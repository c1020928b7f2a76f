"""Unwraps what users pass as their model: the module itself, or a wrapper of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GAE, VGAE

from hopline.errors import PackagingError


def unwrap(module: Any, what: str) -> nn.Module:
    """The user's own module inside of wrappers that only change how it is run or trained.

    Args:
        what: "the model" or "the head", for messages.

    Raises:
        PackagingError: not a module, a module for training, or a compiled one that cannot be inspected;
            the message says what to pass instead.
    """
    while True:
        inner = _inside(module)
        if inner is None:
            break
        module = inner
    if not isinstance(module, nn.Module):
        raise PackagingError(_not_a_module(module, what))
    scripted = [name for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if scripted:
        where = "it" if scripted[0] == "" else f"its {scripted[0]}"
        raise PackagingError(
            f"{what} cannot be packaged: {where} is a TorchScript module, which cannot be inspected; "
            "pass the nn.Module that it was made from, with its weights: "
            "model.load_state_dict(scripted.state_dict())"
        )
    quantised = [
        f"{name or 'it'} ({type(part).__name__})"
        for name, part in module.named_modules()
        if ".quantized" in type(part).__module__
    ]
    if quantised:
        raise PackagingError(
            f"{what} is quantised by torch: {quantised[0]} scales by all rows of a call, so "
            "that answers change with the batch. Package the float module, then run hopline quantize"
        )
    if isinstance(module, GAE):
        encoder = "a module whose forward returns model.encode(x, edge_index)"
        raise PackagingError(
            f"{what} is a {type(module).__name__}, which is for training: pass "
            f"{encoder if isinstance(module, VGAE) else 'model.encoder'}, with task='embedding', or with "
            "head='dot' to score pairs as its decoder does"
        )
    return module


def _inside(module: Any) -> Any:
    """The module inside a wrapper of torch or PyG; None if it is not a wrapper."""
    if type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod"):  # torch.compile
        return module._orig_mod
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel, torch.optim.swa_utils.AveragedModel)
    return module.module if isinstance(module, wrappers) else None


def _not_a_module(given: Any, what: str) -> str:
    if isinstance(given, dict) and given and all(isinstance(value, Tensor) for value in given.values()):
        return (
            f"{what} is a state dict: weights without the code that reads them. Create the module first: "
            "model = Net(...); model.load_state_dict(weights)"
        )
    if isinstance(given, dict):
        return (
            f"{what} is a dict with {', '.join(map(str, list(given)[:5]))}: a checkpoint holds weights, "
            "not code"
        )
    if isinstance(given, type):
        return f"{what} is the class {given.__name__}: pass an instance with its trained weights"
    return f"{what} must be a torch.nn.Module; got {type(given).__name__}"
