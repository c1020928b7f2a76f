"""Computes the columns of the table from final states."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hopline.artifact import ModelSpec
from hopline.engine import outputs as out_of
from hopline.errors import BadRequest
from hopline.jobs.batch.sink import Column
from hopline.runtimes.onnx import CHUNK_ROWS, RowStage
from hopline.types import AnyArray, FloatArray

#: The final level's row itself, as in the engine's state cache.
STATE = "state"


def available_outputs(spec: ModelSpec) -> tuple[str, ...]:
    """Outputs that a run can write for a model; for single nodes, a link model has only its embedding."""
    if spec.head.kind == "link":
        return ("embedding", STATE)
    names = out_of.output_names(spec.task)
    if spec.runtime == "torch":  # served whole: no state precedes the logits
        return names if spec.task == "embedding" else tuple(n for n in names if n != "embedding")
    return (*names, STATE)


def chosen_outputs(spec: ModelSpec, names: tuple[str, ...]) -> tuple[str, ...]:
    """The outputs of a run, each once; an empty tuple means what the server answers.

    Raises:
        BadRequest: the model has no such output; the message lists its outputs.
    """
    known = available_outputs(spec)
    if not names:
        return ("embedding",) if spec.head.kind == "link" else out_of.default_outputs(spec.task)
    unknown = [name for name in names if name not in known]
    if unknown:
        pairs = "; scores of pairs are not rows of nodes" if spec.head.kind == "link" else ""
        raise BadRequest(
            f"model {spec.name}/{spec.version} has no output {', '.join(map(repr, unknown))}; a batch run "
            f"can write {', '.join(known)}{pairs}"
        )
    return tuple(dict.fromkeys(names))


def columns_of(spec: ModelSpec, names: tuple[str, ...], state_dim: int) -> tuple[Column, ...]:
    """The columns of the table, from a row of zeros."""
    a, b = spec.head.embedding or (0, state_dim)
    widths = {STATE: state_dim, "embedding": b - a, "logits": spec.head.output_dim}
    found = []
    for name in names:
        if name in widths:
            found.append(Column(name, "float32", widths[name]))
            continue
        logits = np.zeros((1, spec.head.output_dim), np.float32)
        of = out_of.probabilities if name == "probabilities" else out_of.labels
        values = of(spec.task, logits)
        width = values.shape[1] if values.ndim == 2 else 0
        found.append(Column(name, values.dtype.name, width))
    return tuple(found)


class Head:
    """The head of a model over many rows; for one thread.

    Args:
        folder, spec: the model.
        state_dim: columns of a final state.
        names: from `chosen_outputs`.
    """

    def __init__(self, folder: Path, spec: ModelSpec, state_dim: int, names: tuple[str, ...]) -> None:
        self._spec = spec
        self._names = names
        self._stage: RowStage | None = None
        if spec.head.file is not None and spec.head.kind == "node" and spec.runtime == "onnx":
            self._stage = RowStage(
                folder / spec.head.file, ["h"], [state_dim], "logits", spec.head.output_dim, 1
            )

    def run(self, states: FloatArray) -> dict[str, AnyArray]:
        """Columns of float32 [n, state_dim] states; new arrays, or views of the states."""
        a, b = self._spec.head.embedding or (0, states.shape[1])
        known = {STATE: states, "embedding": states[:, a:b]}
        named = [name for name in self._names if name not in known]
        found = out_of.named_outputs(named, self._spec.task, states, lambda: self._logits(states))
        found.update(known)
        return {name: found[name] for name in self._names}

    def _logits(self, states: FloatArray) -> FloatArray:
        if self._stage is None:
            return states
        n = states.shape[0]
        logits = np.empty((n, self._spec.head.output_dim), np.float32)
        for a in range(0, n, CHUNK_ROWS):
            b = min(a + CHUNK_ROWS, n)
            self._stage.inputs[0][: b - a] = states[a:b]
            logits[a:b] = self._stage.run(b - a)
        return logits
