"""A checked batch: which rows of nodes and edges change, ready to be applied by the writer."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.graph.live.changes import Rejected
from hopline.types import AnyArray, ExternalId, FloatArray, IdArray

NO_INTS: IdArray = np.empty(0, np.int64)
#: Time of the removal of a node: later than all of its rows.
REMOVED = np.iinfo(np.int64).max


@dataclass(slots=True)
class NodeRows:
    """Nodes of one type, ready to be applied.

    Attributes:
        added: the caller's ids of new nodes, in order; they become `first`, `first` + 1, ….
        ids: int64 [n] global ids whose rows are set, in order; values: float32 [n, dim].
        cells, texts: as in `NodeChanges`.
        removed: int64 [r] global ids of nodes that are removed; their rows are set to nothing.
        removed_by: int64 [r], ascending places of those events.
        times, orders: int64 [n], of a type with a history: from when on rows hold, and ascending places.
            The time of a removal is `REMOVED`.
    """

    first: int
    added: list[ExternalId]
    ids: IdArray
    values: FloatArray
    cells: AnyArray
    texts: AnyArray
    removed: IdArray
    removed_by: IdArray
    times: IdArray
    orders: IdArray

    def last_rows(self, places: IdArray) -> IdArray:
        """The rows to be written, by id and time: of equal ones the last, of a removed node the removal.

        Args:
            places: int64 [capacity] of any content, overwritten.
        """
        if not len(self.times):
            every = np.arange(len(self.ids))
            places[self.ids] = every  # of repeated ids, the last place stays
            return np.flatnonzero(places[self.ids] == every)
        by = np.lexsort((self.times, self.ids))
        ids, times = self.ids[by], self.times[by]
        is_wanted = np.append(ids[1:] != ids[:-1], True)
        is_wanted[:-1] |= (times[1:] != times[:-1]) & ~np.isin(ids[:-1], self.removed)
        found: IdArray = by[is_wanted]
        return found


class Edge(NamedTuple):
    """An edge with an id: the place in its batch, -1 for one of the graph; its ends, and its time or 0."""

    order: int
    src: int
    dst: int
    time: int


@dataclass(slots=True)
class EdgeRows:
    """Edges of one type, ready to be applied: additions and removals, each sorted for `merge`.

    Attributes:
        cells, texts: as in `EdgeChanges`, where the type has columns; then add_attr is int32 [n, 1], places
            of the edges among them.
        slots: int32 [len(cells)], to be filled: where these rows were written. Both directions share it.
    """

    add_dst: IdArray
    add_src: IdArray
    add_time: IdArray
    add_weight: FloatArray
    add_attr: AnyArray
    add_order: IdArray
    del_dst: IdArray
    del_src: IdArray
    del_time: IdArray
    del_has_time: NDArray[np.bool_]
    del_order: IdArray
    cells: AnyArray
    texts: AnyArray
    slots: NDArray[np.int32]

    def without(self, src: IdArray, dst: IdArray, order: IdArray) -> EdgeRows:
        """These changes, and removals of the edges between more ends, int64 [n] each, of events `order`."""
        src, dst, order = (
            np.concatenate(pair)
            for pair in ((self.del_src, src), (self.del_dst, dst), (self.del_order, order))
        )
        by, more = np.lexsort((order, src, dst)), len(order) - len(self.del_time)
        time = np.concatenate([self.del_time, np.zeros(more, np.int64)])[by]
        has_time = np.concatenate([self.del_has_time, np.zeros(more, np.bool_)])[by]
        return replace(
            self,
            del_dst=dst[by],
            del_src=src[by],
            del_time=time,
            del_has_time=has_time,
            del_order=order[by],
        )

    def reverse(self) -> EdgeRows:
        """The same changes of the edges against their direction."""
        by = in_order(self.add_src, self.add_time, self.add_dst)
        gone = in_order(self.del_src, NO_INTS, self.del_dst)
        return EdgeRows(
            self.add_src[by], self.add_dst[by], self.add_time[by[: len(self.add_time)]],
            self.add_weight[by[: len(self.add_weight)]], self.add_attr[by[: len(self.add_attr)]],
            self.add_order[by],
            self.del_src[gone], self.del_dst[gone], self.del_time[gone], self.del_has_time[gone],
            self.del_order[gone], self.cells, self.texts, self.slots,
        )  # fmt: skip


@dataclass(slots=True)
class Checked:
    """The result of checking a batch.

    Attributes:
        accepted: bool [num_events].
        rejected: the other events, without duplicates.
        nodes, edges: the accepted changes, by type.
    """

    accepted: NDArray[np.bool_]
    rejected: list[Rejected] = field(default_factory=list)
    nodes: dict[str, NodeRows] = field(default_factory=dict)
    edges: dict[str, EdgeRows] = field(default_factory=dict)


def in_order(dst: IdArray, time: IdArray, src: IdArray) -> IdArray:
    """The stable order by (dst, time, src)."""
    if len(time) == 0:
        # Two ids in one key: one sort instead of two.
        return np.argsort(dst << 32 | src, kind="stable")
    return np.lexsort((src, time, dst))
