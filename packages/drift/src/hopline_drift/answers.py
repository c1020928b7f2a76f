"""Reads the watched quantities of requests and answers of all models: outputs, columns, fallbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hopline.types import AnyArray, IdArray, ScoreRequest, ScoreResult
from hopline_drift.observed import LABEL, SCORE, VALUE, Observed, Quantity

#: Most rows that are examined of one request, so that a large request does not dominate.
MAX_ROWS = 64

_FALLBACKS = Quantity("graph", "degraded")


def chosen_rows(count: int, random: np.random.Generator) -> IdArray:
    """The rows of a request that are examined, int64 [n] ascending."""
    if count <= MAX_ROWS:
        return np.arange(count)
    chosen: IdArray = np.sort(random.choice(count, MAX_ROWS, replace=False))
    return chosen


def read_columns(
    requests: Sequence[tuple[ScoreRequest, IdArray]],
    wanted: Sequence[str],
    max_columns: int,
    into: Observed,
    rest: Callable[[], object],
) -> None:
    """Read columns of requests to tabular models: all requests together, at a tenth of the cost.

    Args:
        requests: requests, each with its examined rows.
        wanted: names of the columns to read; empty: the first `max_columns`.
        rest: called between columns.
    """
    tables = [(request.columns, rows) for request, rows in requests if request.columns]
    named = dict.fromkeys(name for columns, _ in tables for name in columns)
    for name in [name for name in named if not wanted or name in wanted][:max_columns]:
        rest()
        found: list[Any] = []
        for columns, rows in tables:
            values = columns.get(name)
            if values is None:
                continue
            if rows.shape[0] < len(values):
                values = [values[row] for row in rows]
            found.extend(values.tolist() if isinstance(values, np.ndarray) else values)
        into.column(Quantity("input", name), found)


def read_result(result: ScoreResult, rows: IdArray, into: Observed) -> None:
    """Read the answer to a request, except rows without an answer."""
    if result.missing is not None:
        rows = rows[~result.missing[rows]]
    into.categories(_FALLBACKS, ["+".join(result.degraded) or "full"] * max(1, rows.shape[0]))
    _read_outputs(result.outputs, rows, into)


def _read_outputs(outputs: Mapping[str, AnyArray], rows: IdArray, into: Observed) -> None:
    for name, array in outputs.items():
        values = np.asarray(array)[rows]
        if name == "probabilities":
            into.numbers(SCORE, values if values.ndim == 1 else values.max(axis=1))
        elif name == "label":
            # Multilabel: each label that applies.
            into.categories(LABEL, values if values.ndim == 1 else values.nonzero()[1])
        elif name == "logits":
            if values.ndim == 2 and values.shape[1] == 1 and "probabilities" not in outputs:
                into.numbers(VALUE, values[:, 0])
        elif name == "embedding":
            into.numbers(Quantity("output", "embedding norm"), np.linalg.norm(values, axis=1))
        elif values.ndim == 1:
            into.column(Quantity("output", name), values)
        elif values.shape[1] == 1 or name.endswith("_probabilities"):  # of one of several outputs
            into.numbers(Quantity("output", name), values.max(axis=1))


def num_rows(outputs: Mapping[str, Any]) -> int:
    """Number of rows of an answer."""
    return next((len(array) for array in outputs.values()), 0)
