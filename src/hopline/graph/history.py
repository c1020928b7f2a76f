"""Rows of nodes over time: each holds from its time on, until that of the next row of its node.

Nodes are numbered by the times of their first rows. So those that exist at a moment are the first ones, and
a graph of the rows that were known then gives them the same numbers, and draws the same samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hopline.errors import BadRequest, GraphError
from hopline.graph import id_values
from hopline.graph.columns import read_only
from hopline.graph.extent import NO_RECORDS, extent, prefetch_bounds
from hopline.graph.ids import IdIndex
from hopline.graph.narrow import Features, stored, taken
from hopline.graph.stored_columns import StoredColumns
from hopline.graph.tables import Encoded
from hopline.kernels.intrinsics import prefetch
from hopline.kernels.jit import njit
from hopline.types import AnyArray, IdArray

#: Look-ups between reading from memory and use.
_AHEAD = 8
#: Times that are compared one by one.
_FEW = 16


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The rows of one node type, by node and then by time; the last one of a node is its row of now.

    Attributes:
        offsets: int64 [N + 1], where the rows of each node begin; each has at least one.
        times: int64 [H], ascending within a node.
        features: [H, d]; columns: H rows; both as those of `Nodes`.
        since: all rows are known from then on; None if there is no time before.
    """

    offsets: IdArray
    times: IdArray
    features: Features
    columns: StoredColumns | None = None
    since: int | None = None

    @property
    def time_range(self) -> tuple[int, int] | None:
        """The smallest and the largest time; None without rows."""
        return (int(self.times.min()), int(self.times.max())) if len(self.times) else None

    def places(self, ids: IdArray, as_of: int) -> IdArray:
        """The rows that held at a time: int64 [n] of nodes int64 [n]; -1 for a node without a row yet."""
        out = np.empty(ids.shape[0], np.int64)
        find_rows(self.offsets, NO_RECORDS, 0, self.times, ids, np.array([as_of]), out)
        return out

    def rows(self, ids: IdArray, as_of: int) -> IdArray:
        """As `places`. Raises: BadRequest: a node has no row yet."""
        return all_there(self.places(ids, as_of), as_of)

    def now(self) -> tuple[Features, StoredColumns | None]:
        """Features and columns of the newest row of each node."""
        rows = self.offsets[1:] - 1
        return taken(self.features, rows), None if self.columns is None else self.columns.taken(rows)

    def arrays(self) -> dict[str, AnyArray]:
        """The stored arrays, by name."""
        found = {
            "offsets": self.offsets,
            "times": self.times,
            "features": stored(self.features)["features"],
        }
        return found if self.columns is None else {**found, "columns": self.columns.stored}


def all_there(places: IdArray, as_of: int) -> IdArray:
    """The places of rows at a time. Raises: BadRequest: one is -1."""
    if places.shape[0] and places.min() < 0:
        raise BadRequest(f"a node that the answer reads has no row yet at {as_of}, as_of")
    return places


def wrong_places(arrays: Mapping[str, AnyArray], num_nodes: int) -> str:
    """The error in stored offsets and times; "" for none."""
    offsets, times = arrays["offsets"], arrays["times"]
    ends = offsets.shape == (num_nodes + 1,) and offsets[0] == 0 and offsets[-1] == len(times)
    if not ends or (np.diff(offsets) < 1).any():
        return f"offsets: they do not divide {len(times)} rows among {num_nodes} nodes"
    falls = np.flatnonzero(times[1:] <= times[:-1]) + 1
    return "" if np.isin(falls, offsets).all() else "times: those of a node do not ascend"


def by_node(ids: Any, times: IdArray, count: int, where: str) -> tuple[IdIndex, IdArray, IdArray]:
    """The nodes of a table that has several rows of each.

    Args:
        ids, times: of the rows. count: of them. where: for messages.

    Returns: the nodes; the rows by node and time, int64 [H]; where those of each node begin, int64 [N + 1].

    Raises: GraphError: there is not one id for each time, or a node has two rows of one time.
    """
    if isinstance(ids, Encoded):
        ids = [ids[row] for row in range(len(ids))]
    try:
        given = [] if ids is None else list(id_values.typed(ids)[1])
    except BadRequest as error:
        raise GraphError(f"ids of {where}: {error}") from None
    if not len(given) == len(times) == count:
        raise GraphError(
            f"{where}: a history of {len(times)} times, {len(given)} ids, {count} rows of values"
        )
    numbers: dict[Any, int] = {}
    codes = np.array([numbers.setdefault(each, len(numbers)) for each in given], np.int64)
    rows = np.lexsort((times, codes))
    again = (codes[rows][1:] == codes[rows][:-1]) & (times[rows][1:] == times[rows][:-1])
    if again.any():
        first, second = rows[again.argmax() :][:2]
        raise GraphError(
            f"{where}: {again.sum()} rows have the id and the time of another row; the first are {first} "
            f"and {second}, of {given[first]!r} at {times[first]}. Keep one row for each id and time"
        )
    first = rows[np.searchsorted(codes[rows], np.arange(len(numbers)))]
    order = np.lexsort((first, times[first]))  # rows that come later change no number
    number_of = np.argsort(order)
    rows = np.lexsort((times, number_of[codes]))
    offsets = np.searchsorted(number_of[codes[rows]], np.arange(len(order) + 1))
    index = IdIndex.build(np.array([*numbers], object)[order].tolist(), f"ids of {where}")
    return index, rows, read_only(offsets)


@njit(nogil=True, cache=True)
def find_rows(offsets, records, version, times, ids, as_of, out):  # type: ignore[no-untyped-def]
    """out[i] = the last place of node ids[i] in a `History` whose time is at most a time; -1 for none.

    Args:
        offsets, records, version: as of `extent`. as_of: int64 [n], or [1] for all.
    """
    n = ids.shape[0]
    for i in range(-2 * _AHEAD, n):
        if i + 2 * _AHEAD < n:
            prefetch_bounds(offsets, ids[i + 2 * _AHEAD])
        if 0 <= i + _AHEAD < n:
            prefetch(times, extent(offsets, records, version, ids[i + _AHEAD])[0])
        if i < 0:
            continue
        first, end = extent(offsets, records, version, ids[i])
        low, at_most = first, as_of[i if as_of.shape[0] > 1 else 0]
        while end - low > _FEW:
            middle = (low + end) >> 1
            if times[middle] <= at_most:
                low = middle + 1
            else:
                end = middle
        for at in range(low, end):  # without a branch that depends on the times
            low += times[at] <= at_most
        out[i] = low - 1 if low > first else -1
