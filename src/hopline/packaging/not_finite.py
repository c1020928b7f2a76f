"""Rows of NaN and of infinity in the answers of a module."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import nn

from hopline.errors import PackagingError
from hopline.packaging.reference import Rows
from hopline.types import IdArray


def check_numbers(rows: Rows, nodes: IdArray, real: NDArray[np.bool_], module: nn.Module) -> list[str]:
    """Notes about rows that have NaN or infinity.

    Args:
        rows: float64 [n, d], the module's answers.
        nodes: int64 [n], the node of each row, for messages.
        real: bool [n], the rows that are not of the probe; of another length if rows are not of nodes.
    Raises: PackagingError: every real row has NaN.
    """
    counted = real if len(real) == len(rows) else np.ones(len(rows), bool)
    notes = []
    for what, found, then in (
        ("infinity", np.isinf(rows), "JSON has null there"),
        ("NaN", np.isnan(rows), "the label of such a row is -1"),
    ):
        wrong = found.any(axis=1) & counted
        if not wrong.any():
            continue
        if what == "NaN" and wrong.sum() == max(1, real.sum()):
            weights = [name for name, values in module.named_parameters() if values.isnan().any()]
            why = f": its weights {weights[0]} hold NaN" if weights else ", whatever the node"
            raise PackagingError(f"the model answers NaN{why}; it cannot be compared or served")
        notes.append(
            f"the model answers {what} for {wrong.sum()} of {real.sum()} rows that were checked, for "
            f"example node {int(nodes[wrong.argmax()])} of the sample; {then}"
        )
    return notes
