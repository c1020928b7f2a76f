"""Converts precomputed rows to outputs in NumPy, as `engine/outputs.py` does with kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hopline.engine.tasks import labels
from hopline.types import AnyArray, FloatArray


def outputs_of(
    names: Sequence[str], task: str, embedding: FloatArray, logits: FloatArray
) -> dict[str, AnyArray]:
    """The requested outputs of rows.

    Args:
        embedding: float32 [n, d]. logits: float32 [n, c]; read only if an output needs them.
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
    """As `engine.outputs.probabilities`, with the same bits: sums from left to right, in float32."""
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
    """exp rounded to the nearest float32, like expf in C; NumPy's exp is up to two units off."""
    return np.exp(x.astype(np.float64)).astype(np.float32)
