"""What of a request and its answer is watched, whatever the model: outputs, columns, rungs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hopline.records.drift.observed import LABEL, SCORE, VALUE, Observed, Quantity
from hopline.types import AnyArray, IdArray, ScoreRequest, ScoreResult

#: Of the rows of one request, at most so many are looked at: a large request must not speak for all.
MAX_ROWS = 64

_RUNGS = Quantity("graph", "degraded")


def chosen_rows(count: int, random: np.random.Generator) -> IdArray:
    """Which of a request's rows are looked at, int64 [n] ascending."""
    if count <= MAX_ROWS:
        return np.arange(count)
    chosen: IdArray = np.sort(random.choice(count, MAX_ROWS, replace=False))
    return chosen


def read_columns(request: ScoreRequest, names: Sequence[str], rows: IdArray, into: Observed) -> None:
    """Take the columns of a request for a table model."""
    for name in names:
        values = (request.columns or {})[name]
        values = values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
        into.column(Quantity("input", name), values)


def read_result(result: ScoreResult, rows: IdArray, into: Observed) -> None:
    """Take what a request was answered; rows that have no answer are left out."""
    if result.missing is not None:
        rows = rows[~result.missing[rows]]
    into.categories(_RUNGS, ["+".join(result.degraded) or "full"] * max(1, rows.shape[0]))
    _read_outputs(result.outputs, rows, into)


def _read_outputs(outputs: Mapping[str, AnyArray], rows: IdArray, into: Observed) -> None:
    for name, array in outputs.items():
        values = np.asarray(array)[rows]
        if name == "probabilities":
            into.numbers(SCORE, values if values.ndim == 1 else values.max(axis=1))
        elif name == "label":
            # Of several labels each one that applies.
            into.categories(LABEL, values if values.ndim == 1 else values.nonzero()[1])
        elif name == "logits":
            if values.ndim == 2 and values.shape[1] == 1 and "probabilities" not in outputs:
                into.numbers(VALUE, values[:, 0])
        elif name == "embedding":
            into.numbers(Quantity("output", "embedding norm"), np.linalg.norm(values, axis=1))
        elif values.ndim == 1:
            into.column(Quantity("output", name), values)


def num_rows(outputs: Mapping[str, Any]) -> int:
    """Rows of an answer."""
    return next((len(array) for array in outputs.values()), 0)
