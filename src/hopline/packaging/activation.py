"""Detects whether a model answers logits or probabilities, by its answers and not by its name.

A model that ends in a sigmoid or softmax stays between 0 and 1 whatever its weights are; a model that
answers logits does not. So the module's answers are examined with its own and with other weights, and for
much larger features.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from hopline.artifact import NamedOutput, Task
from hopline.errors import PackagingError
from hopline.packaging.check_graph import CheckGraph
from hopline.packaging.locality import extremes
from hopline.packaging.reference import Pairs, Reference, Rows

#: What a module answers: logits, probabilities, or "auto" to find out.
Output = Literal["auto", "logits", "probabilities"]

#: Other weights that are tried, and how much larger they are; an output layer of logits leaves the range
#: of probabilities with half of them at least.
_DRAWS, _FACTOR = 10, 30.0
_SLACK = 1e-4
#: Probabilities at which a float32 logit is clipped: the smallest number, and the largest below 1.
_LEAST, _MOST = 1e-38, 1.0 - 2.0**-24


class ToLogits(nn.Module):
    """The inverse of tasks' activations, so that the server's activations restore the probabilities.

    Args:
        outputs: of the module. are_probabilities: whether each ends in its activation.
    """

    def __init__(self, outputs: Sequence[NamedOutput], are_probabilities: Sequence[bool]) -> None:
        super().__init__()
        self.parts = tuple(zip(outputs, are_probabilities, strict=True))

    def forward(self, rows: Tensor) -> Tensor:
        """Logits float32 [n, c] of answers [n, c]."""
        if len(self.parts) == 1:
            return self._logits(rows, self.parts[0][0].task)
        parts = [(rows[:, slice(*each.columns)], each.task, ends_in_it) for each, ends_in_it in self.parts]
        return torch.cat([self._logits(part, task) if ends else part for part, task, ends in parts], 1)

    def _logits(self, probabilities: Tensor, task: Task) -> Tensor:
        p = probabilities.clamp(_LEAST, _MOST)
        return torch.log(p) if task == "multiclass" else torch.log(p) - torch.log1p(-p)


def answers_probabilities(
    reference: Reference, graph: CheckGraph, pairs: Pairs | None, rows: Rows, task: Task, output: Output
) -> bool:
    """True if the module ends in the activation of its task.

    Args:
        rows: its answers on `graph`, float64 [n, c]. output: the user's argument.

    Raises: PackagingError: it ends in the activation of another task, or the user's `output` is wrong.
    """
    if task in ("regression", "embedding"):
        return False
    kind = _kind(rows)
    if output == "probabilities":
        fitting = ("softmax",) if task == "multiclass" else ("sigmoid", "softmax")
        if kind not in fitting:
            raise PackagingError(
                f"output='probabilities', but the model answers from {np.nanmin(rows):.4g} to "
                f"{np.nanmax(rows):.4g}"
                + (", and rows do not add up to 1" if task == "multiclass" and kind == "sigmoid" else "")
            )
        return True
    if kind == "" or output == "logits":
        return False
    drawn = [with_other_weights(reference, graph, pairs, draw) for draw in range(_DRAWS)]
    others = {_kind(each) for each in drawn} - {"unknown"}
    # A function in place of forward may hold the module that was copied, with its own weights.
    if not others or all(np.array_equal(each, rows, equal_nan=True) for each in drawn):
        raise PackagingError(
            f"the model answers from {np.nanmin(rows):.4g} to {np.nanmax(rows):.4g}, which may be logits "
            "or probabilities, and its weights do not show which: set output='logits' or "
            "output='probabilities'"
        )
    if not others <= ({"softmax", "sigmoid"} if kind in ("softmax", "sigmoid") else {kind}):
        _check_far(reference, graph, pairs, kind, rows)
        return False
    return _fits("sigmoid" if "sigmoid" in others else kind, rows, task)


def _fits(kind: str, rows: Rows, task: Task) -> bool:
    if kind == "log" and task == "multiclass":
        return False  # softmax(log p) = p; and logits may be negative distances
    if kind == "log":
        raise PackagingError(
            f"the model's answers never exceed 0, as log-probabilities do, and task {task!r} applies a "
            "sigmoid to them: return the logits (no logsigmoid or log_softmax), or set output='logits'"
        )
    if task == "multiclass" and kind == "sigmoid":
        if len(rows) > 1 and np.abs(rows.sum(axis=0) - 1.0).max() < 10 * _SLACK:
            raise PackagingError(
                "the model ends in a softmax over the nodes: its columns add up to 1, its rows do not; "
                "apply it over the classes, softmax(dim=1)"
            )
        raise PackagingError(
            "the model answers between 0 and 1 in each column, as a sigmoid does, and task 'multiclass' "
            "would apply a softmax to that: use task='multilabel', or set output='logits' to apply the "
            "softmax"
        )
    if task == "multilabel" and kind == "softmax" and rows.shape[1] > 1:
        raise PackagingError(
            "the model answers probabilities that add up to 1, as a softmax does: use task='multiclass', "
            "or set output='probabilities' to serve them unchanged"
        )
    return True


def _kind(rows: Rows) -> str:
    """The activation of rows: "softmax", "sigmoid", "log" (of probabilities), "" for neither."""
    values = rows[~np.isnan(rows).any(axis=1)]
    if not len(values) or np.isneginf(values).all():
        return "unknown"
    if values.min() >= -_SLACK and values.max() <= 1.0 + _SLACK:
        sums_to_one = values.shape[1] > 1 and np.abs(values.sum(axis=1) - 1.0).max() <= 10 * _SLACK
        return "softmax" if sums_to_one else "sigmoid"
    if values.max() <= _SLACK:
        return "log"
    return ""


def _check_far(reference: Reference, graph: CheckGraph, pairs: Pairs | None, kind: str, rows: Rows) -> None:
    """Check that answers between 0 and 1 leave this range where features are far from those of the graph.

    Logits do. Probabilities do not, although they may with other weights: the share of a learned mixture,
    the thresholds of an ordinal model and the priors of classes must have a sign, an order or a sum.

    Args:
        kind: the activation that the answers look like.

    Raises: PackagingError: they stay in the range, so they may be either.
    """
    if kind == "log":
        return
    far = extremes(graph)
    if pairs is not None:
        sources, destinations = (
            np.arange(far.num_nodes(name)) for name in (reference.targets[0], reference.targets[-1])
        )
        count = min(len(sources), len(destinations))
        rows_of_edges = [each[np.arange(count) % len(each)] for each in pairs[2:]]
        pairs = (sources[:count], destinations[:count][::-1], *rows_of_edges)
    try:
        found = _kind(reference.answers(far, pairs))
    except PackagingError:  # it may refuse such features
        found = "unknown"
    if found == "":
        return
    raise PackagingError(
        f"the model answers from {np.nanmin(rows):.4g} to {np.nanmax(rows):.4g}"
        + (" in rows that add up to 1" if kind == "softmax" else "")
        + ", also for much larger features, but not with other weights. It may answer probabilities that "
        "are a learned mixture or depend on learned thresholds or priors, or small logits: set "
        "output='probabilities' or output='logits'"
    )


def with_other_weights(reference: Reference, graph: CheckGraph, pairs: Pairs | None, draw: int) -> Rows:
    """Answers with other weights, larger ones; one row of NaN if the module fails."""
    generator, other = torch.Generator().manual_seed(draw), copy.copy(reference)
    other.module, other.head = copy.deepcopy((reference.module, reference.head))
    weights = [p.data for module in other.modules for p in module.parameters() if p.is_floating_point()]
    for value in weights:
        scale = _FACTOR * float(value.abs().mean().clamp(min=0.05)) if value.numel() else 0.0
        value.copy_(torch.randn(value.shape, generator=generator) * scale)
    try:
        return other.answers(graph, pairs)
    except PackagingError:
        return np.full((1, 1), np.nan)
