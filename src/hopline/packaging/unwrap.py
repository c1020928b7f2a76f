"""What people hand in as their model: the module itself, or something around it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import GAE, VGAE

from hopline.errors import PackagingError


class _Mean(nn.Module):
    """The encoder of a variational autoencoder: of (mean, log deviation) the mean is the embedding."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The means, float32 [N, d]."""
        mean: Tensor = self.encoder(x, edge_index)[0]
        return mean


def unwrap(module: Any, what: str) -> tuple[nn.Module, tuple[str, ...]]:
    """The user's own module inside of wrappers that only change how it is run or trained.

    Args:
        what: "the model" or "the head", for messages.

    Returns: the module, and notes that say what was taken.

    Raises:
        PackagingError: it is no module, or a compiled one that cannot be looked into.
    """
    notes: list[str] = []
    while True:
        inner = _inside(module)
        if inner is None:
            break
        module = inner
    if isinstance(module, VGAE):
        notes.append("of a VGAE the encoder's means are served")
        module = _Mean(module.encoder)
    elif isinstance(module, GAE):
        notes.append("of a GAE the encoder is served; head='dot' scores pairs as its decoder does")
        module = module.encoder
    if not isinstance(module, nn.Module):
        raise PackagingError(_not_a_module(module, what))
    scripted = [name for name, part in module.named_modules() if isinstance(part, torch.jit.ScriptModule)]
    if scripted:
        where = "it" if scripted[0] == "" else f"its {scripted[0]}"
        raise PackagingError(
            f"{what} cannot be packaged: {where} is a TorchScript module, which cannot be looked into; give the "
            "nn.Module that it was made of, with its weights: model.load_state_dict(scripted.state_dict())"
        )
    return module, tuple(notes)


def _inside(module: Any) -> Any:
    """What a wrapper of torch or PyG holds; None where it is none."""
    if type(module).__name__ == "OptimizedModule" and hasattr(module, "_orig_mod"):  # torch.compile
        return module._orig_mod
    wrappers = (nn.DataParallel, nn.parallel.DistributedDataParallel, torch.optim.swa_utils.AveragedModel)
    return module.module if isinstance(module, wrappers) else None


def _not_a_module(given: Any, what: str) -> str:
    if isinstance(given, dict) and given and all(isinstance(value, Tensor) for value in given.values()):
        return (
            f"{what} is a state dict: weights without the code that reads them. Make the module first: "
            "model = Net(...); model.load_state_dict(weights)"
        )
    if isinstance(given, dict):
        return f"{what} is a dict with {', '.join(map(str, list(given)[:5]))}: a checkpoint holds weights, not code"
    if isinstance(given, type):
        return f"{what} is the class {given.__name__}: give an instance with its trained weights"
    return f"{what} must be a torch.nn.Module; got {type(given).__name__}"
