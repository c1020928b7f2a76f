"""The gate: the artifact's files, run by the oracle, must give the PyG module's answers.

Agreement means |a - b| <= 1e-4 + 1e-4 |b| in every element, on all nodes of the check graph at full
neighbourhoods. Each stage is compared with the module's own intermediate values, so that the first
wrong one is named.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import fx

from hopline.artifact import ModelSpec
from hopline.errors import ParityError
from hopline.packaging import oracle
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.split import StagePlan
from hopline.packaging.trace import Traced
from hopline.types import FloatArray

#: Absolute tolerance, and relative for values above 1.
TOLERANCE = 1e-4


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
