"""Checks that a stage's rows do not depend on each other: runs it on some rows and compares with all.

Shapes alone do not distinguish `x - x.mean(0)` from `x - 1`; values do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from hopline.artifact import StageInput
from hopline.errors import NotSplittable
from hopline.packaging.trace import describe
from hopline.types import AnyArray

#: Kinds whose rows are not those of destinations.
_SHARED = frozenset({"sources"})
#: Far above float32 rounding of another Gemm blocking, far below what a mixed row would show.
_TOLERANCE = 1e-3


def check_rowwise(
    module: fx.GraphModule, inputs: tuple[StageInput, ...], feeds: dict[str, AnyArray], where: str
) -> None:
    """Run a stage on all rows and on a third of them in another order; the rows must agree.

    Args:
        feeds: input name -> array for all nodes, as the oracle builds them.
        where: the stage's name, for messages.

    Raises:
        NotSplittable: naming the first value that mixes rows, and its source line.
    """
    tensors = [torch.from_numpy(np.ascontiguousarray(feeds[item.name])) for item in inputs]
    num_rows = next((len(t) for t, i in zip(tensors, inputs, strict=True) if i.kind not in _SHARED), 0)
    if num_rows < 3:
        return
    picks = torch.from_numpy(np.random.default_rng(0).permutation(num_rows)[: num_rows // 3 + 1])
    some = [t if i.kind in _SHARED else t[picks] for t, i in zip(tensors, inputs, strict=True)]
    full = _Recorder(module).record(tensors)
    recorder = _Recorder(module)
    try:
        part = recorder.record(some)
    except RuntimeError as error:
        failed = describe(module, recorder.current) if recorder.current is not None else "it"
        raise NotSplittable(f"{where}: {failed} works only on all nodes together: {error}") from error
    for node, value in full.items():
        if not _agree(value, part[node], picks, num_rows):
            raise NotSplittable(
                f"{where}: {describe(module, node)} mixes rows: a node's value depends on which other "
                "nodes are computed with it"
            )


def _agree(full: Any, part: Any, picks: Tensor, num_rows: int) -> bool:
    if not isinstance(full, Tensor) or not full.is_floating_point() or full.dim() == 0:
        return True
    if full.shape[0] != num_rows or len(part) == num_rows:
        # Rows of `sources`, of edges (their result is checked below), or parameters.
        return True
    expected = full[picks]
    finite = expected[expected.isfinite()]
    size = float(finite.abs().mean()) if len(finite) else 0.0
    return part.shape == expected.shape and torch.allclose(
        part,
        expected,
        rtol=_TOLERANCE,
        atol=_TOLERANCE * (1.0 + size),
        equal_nan=True,
    )


class _Recorder(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.extra_traceback = False
        self.values: dict[fx.Node, Any] = {}
        self.current: fx.Node | None = None

    def record(self, arguments: list[Tensor]) -> dict[fx.Node, Any]:
        with torch.no_grad():
            self.run(*arguments)
        return self.values

    def run_node(self, n: fx.Node) -> Any:
        self.current = n
        value = super().run_node(n)
        if n.op not in ("placeholder", "output"):
            self.values[n] = value
        return value
