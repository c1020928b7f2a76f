"""A student's answer in place of its teacher's: the fallback between fewer neighbours and the mean row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hopline.engine.fallbacks import MEAN_FEATURES, STALE_FEATURES, STUDENT
from hopline.engine.outputs import named_outputs
from hopline.engine.source import FetchedRowsByType, RowRead
from hopline.types import AnyArray, ScoreRequest

if TYPE_CHECKING:
    from hopline.engine.model import Model

#: Outputs that a student can answer: its states are not the teacher's embedding.
OUTPUTS = frozenset({"logits", "probabilities", "label"})
#: A student answers if less than this share of the rows that its teacher reads is available. With more
#: rows, the teacher answers without the missing ones.
LEAST_SHARE = 0.5


def stands_in(model: Model, request: ScoreRequest, names: Sequence[str]) -> bool:
    """True if a model has a student that can answer the request: known nodes, present graph."""
    return model.student is not None and request.reads_present and OUTPUTS.issuperset(names)


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
    source, own = model.sources[node_type], ids[known]
    read = RowRead(source, own, np.empty((own.shape[0], source.mean().shape[0]), np.float32))
    fetched = fetched_rows.get(node_type, ())
    read.take(fetched)
    is_stale = read.take_stale(fetched)
    if read.missing.shape[0] == own.shape[0]:
        return None
    model.ages.add(source, read.stamps)
    used.add(STUDENT)
    if is_stale:
        used.add(STALE_FEATURES)
    if read.missing.shape[0]:
        used.add(MEAN_FEATURES)
    logits = model.student.logits(read.out)
    found = named_outputs(names, model.offers, logits, lambda: logits)
    model.watch.computed()
    if known.all():
        return found, None
    return {name: spread(values, known) for name, values in found.items()}, ~known


def spread(values: AnyArray, present: NDArray[np.bool_]) -> AnyArray:
    """Put rows where `present` is true, zeros elsewhere."""
    out = np.zeros((present.shape[0], *values.shape[1:]), values.dtype)
    out[present] = values
    return out
