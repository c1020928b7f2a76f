"""A student's answer in place of its teacher's: the fallback between fewer neighbours and the mean row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hopline.engine.fallbacks import MEAN_FEATURES, STALE_FEATURES, STUDENT
from hopline.engine.outputs import named_outputs
from hopline.engine.source import FetchedRowsByType, RowSource
from hopline.types import AnyArray, FloatArray, IdArray, ScoreRequest

if TYPE_CHECKING:
    from hopline.engine.ego import EgoModel
    from hopline.engine.model import Model

#: Outputs that a student can answer: its states are not the teacher's embedding.
OUTPUTS = frozenset({"logits", "probabilities", "label"})
#: A student answers if less than this share of the rows that its teacher reads is available. With more
#: rows, the teacher answers without the missing ones.
LEAST_SHARE = 0.5


def stands_in(model: Model | EgoModel, request: ScoreRequest, names: Sequence[str]) -> bool:
    """Whether a model has a student that can answer the request: known nodes, present graph."""
    return (
        getattr(model, "student", None) is not None
        and not request.inline
        and request.as_of is None
        and OUTPUTS.issuperset(names)
    )


def by_student(
    model: Model,
    request: ScoreRequest,
    names: Sequence[str],
    fetched_rows: FetchedRowsByType,
    used: set[str],
) -> tuple[dict[str, AnyArray], NDArray[np.bool_] | None] | None:
    """Outputs of a request's nodes from their own rows.

    Args:
        fetched_rows: rows that were fetched for the request.
        used: the fallbacks that the answer uses are added.

    Returns: outputs by name, and which nodes are unknown (None: none); None if no own row is available.
    """
    assert model.student is not None
    node_type = model.spec.head.node_type
    ids = model.graph.nodes[node_type].ids.lookup(request.nodes)
    known = ids >= 0
    rows, lost, is_stale = own_rows(model.sources[node_type], ids[known], fetched_rows, node_type)
    if lost.shape[0] == rows.shape[0]:
        return None
    used.add(STUDENT)
    if is_stale:
        used.add(STALE_FEATURES)
    if lost.shape[0]:
        used.add(MEAN_FEATURES)
    logits = model.student.logits(rows)
    found = named_outputs(names, model.spec.task, logits, lambda: logits)
    model.watch.computed()
    if known.all():
        return found, None
    return {name: spread(values, known) for name, values in found.items()}, ~known


def own_rows(
    source: RowSource, ids: IdArray, fetched_rows: FetchedRowsByType, node_type: str
) -> tuple[FloatArray, IdArray, bool]:
    """Read the nodes' own rows, as far as they are available without waiting.

    Args:
        ids: int64 [n] global ids.

    Returns: float32 [n, d], with the mean row for missing rows; int64 [m] positions of those; whether
        some row is older than its time to live.
    """
    mean = source.mean()
    rows = np.empty((ids.shape[0], mean.shape[0]), np.float32)
    missing = source.read(ids, rows).copy()
    for fetched_row_set in fetched_rows.get(node_type, ()):
        missing = fetched_row_set.take(ids, missing, rows)
    is_stale = False
    if missing.shape[0]:
        old = np.empty((missing.shape[0], mean.shape[0]), np.float32)
        absent = source.read(ids[missing], old, stale=True)
        found = np.ones(missing.shape[0], np.bool_)
        found[absent] = False
        rows[missing[found]] = old[found]
        is_stale = bool(found.any())
        missing = missing[~found]
        rows[missing] = mean
    return rows, missing, is_stale


def spread(values: AnyArray, present: NDArray[np.bool_]) -> AnyArray:
    """Put rows where `present` is true, zeros elsewhere."""
    out = np.zeros((present.shape[0], *values.shape[1:]), values.dtype)
    out[present] = values
    return out
