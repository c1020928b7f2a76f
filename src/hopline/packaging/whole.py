"""Models that cannot be split: the whole module as a torch.export program, without pickles.

The program reads the slots of one sampled ego-graph (see `arguments`) and the seed's row, and answers
one row of logits.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from hopline.artifact import ModelSpec
from hopline.errors import PackagingError
from hopline.packaging.advice import CONSTANTS, instead_of
from hopline.packaging.arguments import Binding, mentions
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.export import quiet
from hopline.packaging.head import as_columns
from hopline.packaging.reference import of_target
from hopline.packaging.user_source import user_line
from hopline.runtimes.torch import SLOTS_FILE

FILE = "whole.pt2"
#: A program with a smaller row limit than this depends on a number in the model's code.
_MOST_ROWS = 1 << 20
#: The lower limit of every dynamic size: torch.export compiles 0 and 1 only as constants.
_FEWEST_ROWS = 2


class Program(nn.Module):
    """The model over a list of slots and a seed.

    Args:
        inverse: from the module's probabilities back to logits.
    """

    def __init__(
        self, model: nn.Module, binding: Binding, target: str, head: nn.Module | None,
        inverse: nn.Module | None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.model = model
        self.inverse = inverse
        self.binding = binding
        self.slots: list[str] = []
        self.target = target
        self.head = head

    def forward(self, seed: Tensor, *tensors: Tensor) -> Tensor:
        """float32 [1, c]."""
        return self.answer(dict(zip(self.slots, tensors, strict=True))).index_select(0, seed)

    def answer(self, slots: Mapping[str, Tensor]) -> Tensor:
        """Logits of all rows, float32 [n, c]."""
        slots = slots if isinstance(slots, _Slots) else _Slots(slots)
        out = of_target(self.binding.call(self.model, slots), self.target)
        if self.head is not None:
            out = self.head(out)
        out = as_columns(out)
        return out if self.inverse is None else self.inverse(out)


class _Slots(dict[str, Tensor]):
    """Slots that record which of them were read; an `adj_t` is the list of its edges."""

    def __init__(self, slots: Mapping[str, Tensor]) -> None:
        super().__init__(slots)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Tensor:
        key = key.replace("adj_t:", "edge_index:")
        self.read.add(key)
        return super().__getitem__(key)


def _refusal(error: Exception, model: nn.Module) -> str:
    """The reason of a torch.export error, without its own hints and symbols."""
    text = str(error)
    causes = [
        why for word, why in CONSTANTS.items() if any(mentions(part, word) for part in model.modules())
    ]
    where = user_line(error)
    where = f" (at {where})" if where else ""
    if "DataDependent" in type(error).__name__ or "data-dependent" in text:
        return (
            "torch.export cannot follow a condition, a size or a Python number that depends on a tensor's "
            f"numbers{where}: .item(), int(...), if (...).any(), loops over nodes, or an operator that "
            f"does so inside, for example coalesce. Instead, {instead_of(where)}"
        )
    if "Constraints violated" in text or "user-specified ranges" in text:
        usual = "; or: ".join(causes or CONSTANTS.values())
        return f"torch.export treats the number of nodes or edges as a constant{where}: {usual}"
    if ".numpy()" in text or "numpy" in where:
        return f"torch.export cannot follow NumPy{where}: use torch in place of NumPy"
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    remedy = f". {CONSTANTS['sparse']}" if CONSTANTS["sparse"] in causes else ""
    return f"torch.export refuses it: {type(error).__name__}: {first}{where}{remedy}"


def _message_hooks(model: nn.Module) -> str:
    """The first convolution with hooks that only PyG calls, in words; "" if there is none."""
    of_torch = vars(nn.Module())
    for name, part in model.named_modules():
        for kind, hooks in vars(part).items() if isinstance(part, MessagePassing) else ():
            if kind.endswith("_hooks") and kind not in of_torch and hooks:
                return f"{name or type(part).__name__} has {kind.strip('_').replace('_', ' ')}"
    return ""


def _check_sizes(program: Any) -> None:
    """Check the limits of a program's dynamic sizes.

    Raises: PackagingError: the program is limited to some number of nodes or edges.
    """
    for bounds in program.range_constraints.values():
        # For a number that the program reads from a tensor, the bound may be infinite and not an integer.
        if bounds.upper.is_Integer and int(bounds.upper) < _MOST_ROWS:
            limit = f"at most {int(bounds.upper)}"
        elif bounds.lower.is_Integer and int(bounds.lower) > _FEWEST_ROWS:
            limit = f"at least {int(bounds.lower)}"
        else:
            continue
        why = "a slice, split or branch by a fixed number of rows. Remove it"
        if any("cdist" in str(node.target) for node in program.graph.nodes):
            why = (
                "torch.cdist has two algorithms, for few rows and for many. Pass "
                "compute_mode='donot_use_mm_for_euclid_dist', or write (a[:, None] - b).norm(dim=-1)"
            )
        raise PackagingError(
            f"the model works for {limit} nodes or edges at a time, according to torch.export: {why}"
        )


def write_whole(
    folder: Path, spec: ModelSpec, whole: Program, check: CheckGraph, reason: PackagingError
) -> ModelSpec:
    """Export the whole model.

    Args:
        reason: why it was not split.

    Raises: PackagingError: torch.export refuses it; the message also says why it was not split.
    """
    hooked = _message_hooks(whole.model)
    if hooked:
        raise PackagingError(
            f"the model can be packaged neither split nor whole. Split: {reason}. Whole: {hooked}, which "
            "PyG leaves out when torch.export follows a convolution: override message(), aggregate() or "
            "propagate() in a subclass instead"
        )
    binding, target = whole.eval().binding, whole.target
    slots = binding.slots(check)
    try:
        given = _Slots({name: rows.clone() for name, rows in slots.items()})
        answered = whole.answer(given)
    except Exception as error:  # user code
        raise PackagingError(
            f"the model fails on the check graph: {type(error).__name__}: {error}{binding.matrix_hint}"
        ) from error
    whole.slots = names = [name for name in slots if name in given.read]
    seed = torch.tensor([check.num_nodes(target) - 1])
    tensors = [slots[name] for name in names]
    shapes = (
        {0: torch.export.Dim.STATIC},
        tuple({1 if name.startswith("edge_index") else 0: torch.export.Dim.DYNAMIC} for name in names),
    )
    try:
        # torch prints the graph of a program that it refuses
        with quiet(), redirect_stdout(StringIO()), redirect_stderr(StringIO()), warnings.catch_warnings():
            # PyG's warnings to users of its loaders, and torch's about unused inputs.
            warnings.simplefilter("ignore", UserWarning)
            program = torch.export.export(whole, (seed, *tensors), dynamic_shapes=shapes, strict=False)
            torch.export.save(program, folder / FILE)
    except Exception as error:  # torch.export has no common base of its errors
        raise PackagingError(
            f"the model can be packaged neither split nor whole. Split: {reason}. Whole: "
            f"{_refusal(error, whole.model)}"
        ) from error
    _check_sizes(program)
    relations = list(binding.relations) if binding.relational else []
    described = {"slots": names, "relations": relations}
    (folder / SLOTS_FILE).write_bytes(msgspec.json.encode(described))
    return msgspec.structs.replace(
        spec, runtime="torch", whole_file=FILE, why_whole=str(reason), num_layers=0,
        head=msgspec.structs.replace(spec.head, output_dim=int(answered.shape[1])),
    )  # fmt: skip
