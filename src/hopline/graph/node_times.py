"""Times of nodes: int64, in three columns of the feature matrix, 21 bits in each, which float32 holds.

So whatever holds features holds times. A node exists from its time on: an edge from it has its time, unless
the edge has a later one. In-neighbours are cut by the times of edges.
"""

from __future__ import annotations

import numpy as np

from hopline.errors import GraphError
from hopline.graph.history import History
from hopline.graph.schema import NUM_DIGITS, ColumnGroup, NodeTypeSchema
from hopline.types import AnyArray, FloatArray, IdArray

BITS = 21
#: Added to a time, so that no digit is negative.
OFFSET = 2**62
#: Name of the tensor, and of its columns.
TIME = "time"
TIME_NAMES = ("time.high", "time.middle", "time.low")


def to_columns(times: IdArray, what: str) -> FloatArray:
    """Times int64 [N] as columns float32 [N, 3]. Raises: GraphError: a time beyond 62 bits."""
    if len(times) and not -OFFSET <= times.min() <= times.max() < OFFSET:
        raise GraphError(f"{what}: times must be in -2^62 to 2^62 - 1")
    shifts = BITS * np.arange(NUM_DIGITS)[::-1]
    columns: FloatArray = ((times[:, None] + OFFSET >> shifts) & (2**BITS - 1)).astype(np.float32)
    return columns


def groups_with_time(groups: tuple[ColumnGroup, ...], width: int) -> tuple[ColumnGroup, ...]:
    """The tensors of a type whose first `width` columns are `groups`, and its times behind them."""
    first = groups or ((ColumnGroup("x", width),) if width else ())
    return (*first, ColumnGroup(TIME, 0, "time"))


def times_of(schema: NodeTypeSchema, features: AnyArray) -> IdArray | None:
    """Times int64 [N] of the nodes of a type, None if it has none; `features` is its matrix."""
    start = 0
    for group in schema.groups:
        if group.dtype == "time":
            digits = np.asarray(features[:, start : start + NUM_DIGITS], np.int64)
            times: IdArray = (digits << BITS * np.arange(NUM_DIGITS)[::-1]).sum(axis=1) - OFFSET
            return times
        start += group.num_columns
    return None


def edge_times(
    own: IdArray | None, sources: AnyArray, times: IdArray | None, what: str, history: History | None = None
) -> IdArray | None:
    """Times of edges int64 [E]: their own, else those of their sources.

    Args:
        sources: rows [E]. times: of the nodes of the source type; history: whose first rows have them.

    Raises: GraphError: an edge that is older than its source.
    """
    if times is None:
        return own
    of_sources: IdArray = times[sources]
    if own is None:
        return of_sources
    early = own < of_sources
    if history is not None and history.since is not None:
        early &= of_sources > history.since
    if early.any():
        raise GraphError(
            f"{what}: {early.sum()} edges are older than their source, which exists from its time on; the "
            f"first is edge {early.argmax()}. Leave out the times of edges, or those of nodes, or (of a "
            "history) give its first row an earlier time, or set history_since"
        )
    return own
