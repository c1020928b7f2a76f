"""The gate: the artifact's files, run by the oracle, must give the PyG module's answers.

Stages whose rows depend on each other are refused. Shapes alone do not distinguish `x - x.mean(0)` from
`x - 1`; values do: a stage runs on some rows and on all.

Agreement means |a - b| <= 1e-4 + 1e-4 |b| in every element, on all nodes of the check graph at full
neighbourhoods. Each stage is compared with the module's own intermediate values, so that the first
wrong one is named.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from hopline.artifact import ModelSpec, StageInput
from hopline.errors import NotSplittable, ParityError
from hopline.packaging import oracle
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.split import StagePlan
from hopline.packaging.trace import Traced, describe
from hopline.types import AnyArray, FloatArray

#: Absolute tolerance, and relative for values above 1.
TOLERANCE = 1e-4
#: Kinds whose rows are not those of destinations.
_SHARED = frozenset({"sources"})
#: Far above float32 rounding of another Gemm blocking, far below what a mixed row would show.
_MIXED = 1e-3


def reference_state(traced: Traced, values: list[fx.Node]) -> FloatArray:
    """The module's own intermediate values as the columns of a state, float32 [N, state_dim]."""
    rows = [traced.values[node] for node in values]
    return torch.cat([row.reshape(len(row), -1) for row in rows], dim=1).numpy()


def compare(what: str, actual: FloatArray, expected: FloatArray) -> float:
    """Largest absolute difference of two arrays.

    Raises:
        ParityError: beyond the tolerance, or another shape; `what` names the array.
    """
    if actual.shape != expected.shape:
        raise ParityError(f"{what} has shape {actual.shape}, the PyG module gives {expected.shape}")
    with np.errstate(invalid="ignore"):
        difference = np.abs(actual.astype(np.float64) - expected)
    difference[(actual == expected) | (np.isnan(actual) & np.isnan(expected))] = 0.0
    excess = difference - TOLERANCE * np.abs(expected)
    if (difference.size and not np.nanmax(excess, initial=0.0) <= TOLERANCE) or np.isnan(difference).any():
        row, column = np.unravel_index(
            int(np.argmax(np.nan_to_num(difference, nan=np.inf))), difference.shape
        )
        raise ParityError(
            f"{what} differs from the PyG module: {actual[row, column]:.6g} instead of "
            f"{expected[row, column]:.6g} in row {row}, column {column} (difference "
            f"{difference[row, column]:.3g}, allowed {TOLERANCE:g} and {TOLERANCE:g} of it)"
        )
    return float(difference.max(initial=0.0))


def check_stages(
    folder: Path, spec: ModelSpec, plans: list[StagePlan], traced: Traced, graph: CheckGraph
) -> tuple[list[oracle.States], dict[str, float]]:
    """Run every stage on the states of the stages below and compare with the module.

    Returns: the states of all levels, and for each stage "<level>.<node type>" the largest absolute
        difference.

    Raises:
        ParityError: names the first stage that differs.
    """
    references = {(plan.level, plan.node_type): reference_state(traced, plan.values) for plan in plans}
    levels: list[oracle.States] = []
    figures: dict[str, float] = {}
    for level, stages in enumerate(spec.levels):
        previous = levels[-1] if levels else {}
        states: oracle.States = {}
        for node_type, stage in stages.items():
            states[node_type] = oracle.run_stage(folder, stage, node_type, graph, previous)
            what = f"stage {level} of node type {node_type!r} ({stage.file or 'raw features'})"
            expected = references[level, node_type]
            figures[f"{level}.{node_type}"] = compare(what, states[node_type], expected)
        levels.append(states)
    return levels, figures


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
    full, part = (_recorded(module, rows, where) for rows in (tensors, some))
    for node, value in full.items():
        if not _agree(value, part[node], picks, num_rows):
            raise NotSplittable(
                f"{where}: {describe(module, node)} mixes rows: a node's value depends on which other "
                "nodes are computed with it"
            )


def _recorded(module: fx.GraphModule, rows: list[Tensor], where: str) -> dict[fx.Node, Any]:
    """The values of a stage. Raises: NotSplittable: it fails, as for a size of one graph that it holds."""
    recorder = _Recorder(module)
    try:
        return recorder.record(rows)
    except Exception as error:  # code of the model
        failed = describe(module, recorder.current) if recorder.current is not None else "it"
        raise NotSplittable(f"{where}: {failed} works only on all nodes together: {error}") from error


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
        part, expected, rtol=_MIXED, atol=_MIXED * (1.0 + size), equal_nan=True
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
