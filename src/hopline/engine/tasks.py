"""Outputs of models by task. Plain NumPy, also for callers that must not wait for compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hopline.artifact import ModelSpec
from hopline.types import AnyArray, FloatArray, TensorInfo


class Output(NamedTuple):
    """One output of a model.

    Attributes:
        task: as of `NamedOutput`; "several" for the logits of all outputs.
        kind: "embedding", "logits", "probabilities" or "label".
        columns: of the logits; None: all of them, or the embedding in the state.
        is_default: answered where a request names no outputs.
    """

    task: str
    kind: str
    columns: slice | None
    tensor: TensorInfo
    is_default: bool


#: By name, in order.
Outputs = Mapping[str, Output]


def outputs_of(spec: ModelSpec) -> Outputs:
    """Outputs that a model offers: `label`, or `fraud_label` if it has several and one is named fraud.

    Of heads of several node types, those of all: `logits` and `embedding` have the width of each type.
    """
    head, found = spec.head, dict[str, Output]()
    if spec.heads:
        for name, output in (item for each in spec.by_type.values() for item in outputs_of(each).items()):
            if (other := found.setdefault(name, output)).tensor != output.tensor:
                found[name] = other._replace(tensor=replace(other.tensor, shape=(-1, -1)))
        return found

    def add(prefix: str, task: str, kind: str, columns: slice | None, width: int) -> None:
        is_scalar = (kind, task) == ("probabilities", "binary") or (
            kind == "label" and task != "multilabel"
        )
        shape, datatype = (-1,) if is_scalar else (-1, width), "INT64" if kind == "label" else "FP32"
        usual = {"regression": "logits", "embedding": "embedding"}.get(task, "probabilities label")
        tensor = TensorInfo(prefix + kind, datatype, shape)
        found[prefix + kind] = Output(task, kind, columns, tensor, kind in usual.split())

    width = spec.levels[-1][head.node_type].state_dim if spec.levels else head.output_dim
    a, b = head.embedding or (0, width)
    add("", spec.task, "embedding", None, b - a)
    if spec.task == "several":
        add("", spec.task, "logits", None, head.output_dim)
    for name, task, (a, b) in ((each.name, each.task, each.columns) for each in spec.named_outputs):
        prefix, columns = (f"{name}_", slice(a, b)) if name else ("", None)
        kinds = {"regression": "logits", "embedding": "embedding" if name else ""}
        for kind in kinds.get(task, "logits probabilities label").split():
            add(prefix, task, kind, columns, b - a)
    return found


def default_outputs(spec: ModelSpec) -> tuple[str, ...]:
    """Outputs of a model when a request names none."""
    return tuple(name for name, output in outputs_of(spec).items() if output.is_default)


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
