"""Rows of a table to outputs: what `engine/outputs.py` does with kernels, in NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline.engine.tasks import labels
from hopline.types import AnyArray, FloatArray


def outputs_of(
    names: Sequence[str], task: str, embedding: FloatArray, logits: FloatArray
) -> dict[str, AnyArray]:
    """The asked outputs of some rows.

    Args:
        embedding: float32 [n, d]. logits: float32 [n, c]; read only where an output needs them.
    """
    found: dict[str, AnyArray] = {}
    for name in names:
        if name == "embedding":
            found[name] = embedding
        elif name == "logits":
            found[name] = logits
        elif name == "probabilities":
            found[name] = probabilities(task, logits)
        else:
            found[name] = labels(task, logits)
    return found


def probabilities(task: str, logits: FloatArray) -> FloatArray:
    """As `engine.outputs.probabilities`, with the same bits: sums run from left to right, in float32."""
    if task == "multiclass":
        powers = _exp(logits - logits.max(axis=1, keepdims=True))
        totals: FloatArray = np.add.accumulate(powers, axis=1)[:, -1:]
        return powers / totals
    power = _exp(-np.abs(logits))  # exp of a non-positive number cannot overflow
    one = np.float32(1.0)
    tops: FloatArray = np.where(logits >= 0, one, power)
    sigmoid = tops / (one + power)
    return sigmoid[:, 0] if task == "binary" else sigmoid


def _exp(x: FloatArray) -> FloatArray:
    """The nearest float32, as the C library's expf gives it; NumPy's own is up to two units off."""
    return np.exp(x.astype(np.float64)).astype(np.float32)
