"""Logits into probabilities and labels, row by row: a row's answer never depends on other rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hopline.engine.tasks import Outputs, labels
from hopline.kernels.jit import njit
from hopline.types import AnyArray, FloatArray


@njit(nogil=True, cache=True)
def softmax(logits, out):  # type: ignore[no-untyped-def]
    """Softmax of each row; logits, out: float32 [n, c]."""
    for i in range(logits.shape[0]):
        top = logits[i, 0]
        for c in range(1, logits.shape[1]):
            top = max(top, logits[i, c])
        total = np.float32(0.0)
        for c in range(logits.shape[1]):
            out[i, c] = np.exp(logits[i, c] - top)
            total += out[i, c]
        for c in range(logits.shape[1]):
            out[i, c] /= total


@njit(nogil=True, cache=True)
def sigmoid(logits, out):  # type: ignore[no-untyped-def]
    """Logistic function of each element; logits, out: float32 [n, c]."""
    for i in range(logits.shape[0]):
        for c in range(logits.shape[1]):
            x = logits[i, c]
            # exp of a non-positive number cannot overflow
            if x >= 0:
                out[i, c] = np.float32(1.0) / (np.float32(1.0) + np.exp(-x))
            else:
                e = np.exp(x)
                out[i, c] = e / (np.float32(1.0) + e)


def probabilities(task: str, logits: FloatArray) -> FloatArray:
    """Probabilities of a task: float32 [n, c] for multiclass and multilabel, [n] for binary."""
    out = np.empty_like(logits)
    (softmax if task == "multiclass" else sigmoid)(logits, out)
    return out[:, 0] if task == "binary" else out


def named_outputs(
    names: Sequence[str], outputs: Outputs, embedding: FloatArray, logits_of: Callable[[], FloatArray]
) -> dict[str, AnyArray]:
    """The requested outputs of some rows, in new arrays.

    Args:
        embedding: float32 [n, d], may be a view of a buffer.
        logits_of: computes float32 [n, c]; called only where an output needs it.
    """
    found: dict[str, AnyArray] = {}
    logits: FloatArray | None = None
    for name in names:
        if name == "embedding":
            found[name] = embedding.copy()
            continue
        if logits is None:
            logits = logits_of()
        task, kind, columns, *_ = outputs[name]
        rows = logits if columns is None else np.ascontiguousarray(logits[:, columns])
        if kind == "probabilities":
            found[name] = probabilities(task, rows)
        else:
            found[name] = labels(task, rows) if kind == "label" else rows.copy()
    return found
