"""Outputs of models by task. Plain NumPy, also for callers that must not wait for compiled kernels."""

from __future__ import annotations

import numpy as np

from hopline.types import AnyArray, FloatArray


def labels(task: str, logits: FloatArray) -> AnyArray:
    """Labels of a task: int64 [n] class for multiclass and binary, int64 [n, c] for multilabel.

    A row of which a logit is NaN has no label: -1 (of multilabel, that column). Of multiclass, a row whose
    largest logit is infinite has none either: its softmax is NaN.
    """
    if task == "multiclass":
        winners: AnyArray = logits.argmax(axis=1)
        winners[~np.isfinite(logits.max(axis=1))] = -1
        return winners
    unknown = np.isnan(logits)
    chosen = (logits >= 0).astype(np.int64)
    chosen[unknown] = -1
    return chosen[:, 0] if task == "binary" else chosen


def output_names(task: str) -> tuple[str, ...]:
    """Outputs that a model of this task offers."""
    if task in ("multiclass", "binary", "multilabel"):
        return ("embedding", "logits", "probabilities", "label")
    return ("embedding", "logits") if task == "regression" else ("embedding",)


def default_outputs(task: str) -> tuple[str, ...]:
    """Outputs of a model of this task when a request names none."""
    if task in ("multiclass", "binary", "multilabel"):
        return ("probabilities", "label")
    return ("logits",) if task == "regression" else ("embedding",)
