"""Models that cannot be split: the whole module as a torch.export program, nothing of it pickled.

The program takes the slots of one sampled ego-graph (see `arguments`) and the seed's row, and answers
one row of logits; models that pool the graph ignore the seed.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from hopline.artifact import Head, ModelSpec
from hopline.errors import NotSplittable, PackagingError
from hopline.packaging import parity
from hopline.packaging.arguments import Binding
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.export import quiet

FILE = "whole.pt2"
SLOTS_FILE = "whole.json"


class _Whole(nn.Module):
    """The model over a list of slots and a seed."""

    def __init__(
        self,
        model: nn.Module,
        binding: Binding,
        slots: list[str],
        target: str,
        head: nn.Module | None,
        pooled: bool,
    ) -> None:
        super().__init__()
        self.model = model
        self.binding = binding
        self.slots = slots
        self.target = target
        self.head = head
        self.pooled = pooled

    def forward(self, seed: Tensor, *tensors: Tensor) -> Tensor:
        """float32 [1, c]."""
        out = self.model(**self.binding.arguments(dict(zip(self.slots, tensors, strict=True))))
        if isinstance(out, dict):
            out = out[self.target]
        if self.head is not None:
            out = self.head(out)
        if out.dim() == 1:
            out = out.unsqueeze(1)
        return out if self.pooled else out.index_select(0, seed)


class _Used(dict[str, Tensor]):
    """Slots that remember which of them were read."""

    def __init__(self, slots: dict[str, Tensor]) -> None:
        super().__init__(slots)
        self.read: list[str] = []

    def __getitem__(self, key: str) -> Tensor:
        if key not in self.read:
            self.read.append(key)
        return super().__getitem__(key)


def write_whole(
    folder: Path,
    spec: ModelSpec,
    model: nn.Module,
    binding: Binding,
    check: CheckGraph,
    target: str,
    head: nn.Module | None,
    reason: NotSplittable,
) -> ModelSpec:
    """Export the whole model and check it on the check graph.

    Raises:
        PackagingError: torch.export refuses it; says why it was not split, too.
        ParityError: the program's answers differ from the module's.
    """
    slots = _Used(binding.slots(check))
    arguments = binding.arguments(slots)
    try:
        out = model(**arguments)
    except Exception as error:  # user code
        raise PackagingError(
            f"the model fails on the check graph: {type(error).__name__}: {error}"
        ) from error
    out = out[target] if isinstance(out, dict) else out
    if head is not None:
        out = head(out)
    if not isinstance(out, Tensor) or out.dim() not in (1, 2):
        raise PackagingError(f"the model must answer one tensor of rows; it gave {type(out).__name__}")
    rows = out.reshape(len(out), -1)
    pooled = len(rows) == 1 and check.num_nodes(target) > 1
    if not pooled and len(rows) != check.num_nodes(target):
        raise PackagingError(
            f"the model answers {len(rows)} rows for {check.num_nodes(target)} nodes of type {target!r}"
        )
    names = list(slots.read)
    whole = _Whole(model, binding, names, target, head, pooled).eval()
    seed = torch.tensor([check.num_nodes(target) - 1])
    tensors = [dict.__getitem__(slots, name) for name in names]
    shapes = (
        {0: torch.export.Dim.STATIC},
        tuple({1 if name.startswith("edge_index") else 0: torch.export.Dim.DYNAMIC} for name in names),
    )
    try:
        with quiet(), warnings.catch_warnings():
            # PyG's notes to users of its loaders and torch's on inputs that were not used.
            warnings.simplefilter("ignore", UserWarning)
            program = torch.export.export(whole, (seed, *tensors), dynamic_shapes=shapes, strict=False)
            torch.export.save(program, folder / FILE)
    except Exception as error:  # torch.export has no common base of its errors
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        raise PackagingError(
            f"the model can be packaged neither split nor whole. Split: {reason}. "
            f"Whole: torch.export refuses it: {type(error).__name__}: {first}"
        ) from error
    (folder / SLOTS_FILE).write_bytes(
        msgspec.json.encode(
            {
                "slots": names,
                "pooled": pooled,
                "relations": list(binding.relations) if binding.relational else [],
            }
        )
    )
    expected = rows.numpy() if pooled else rows[seed].numpy()
    with quiet():
        answer = torch.export.load(folder / FILE).module()(seed, *tensors).numpy()
    difference = parity.compare(f"the whole model ({FILE})", np.asarray(answer), expected)
    logging.getLogger("hopline.packaging").debug("whole model differs by %g", difference)
    return msgspec.structs.replace(
        spec,
        runtime="torch",
        whole_file=FILE,
        why_whole=str(reason),
        num_layers=0,
        head=Head(target, int(rows.shape[1])),
        parity={"max_abs_diff": difference, "tolerance": parity.TOLERANCE},
    )
