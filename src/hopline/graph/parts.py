"""The parts of a snapshot: the nodes of one type, the edges of one type. All arrays are read-only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopline.graph import csc
from hopline.graph.edge_ids import EdgeIds, no_edge_ids
from hopline.graph.extent import NO_RECORDS, STILL, Clock
from hopline.graph.history import History
from hopline.graph.ids import IdIndex
from hopline.graph.narrow import Features
from hopline.graph.schema import edge_key
from hopline.graph.stored_columns import StoredColumns
from hopline.types import AnyArray, ContextId, FloatArray, IdArray


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """The nodes of one type.

    Attributes:
        features: [N, d], C-contiguous; d is 0 where the type has no features. float32 or float16, or a
            `NarrowMatrix`, which reads like float32.
        ids: the caller's ids.
        columns: of its table, before any preprocessing; None where the type has no such columns.
        labels: columns of its table for training; not a part of the graph's version.
        history: rows of the past, and those of now once more; None where each node has one row.
    """

    features: Features
    ids: IdIndex
    columns: StoredColumns | None = None
    labels: StoredColumns | None = None
    history: History | None = None

    @property
    def num_nodes(self) -> int:
        """N, rows; some may be of removed nodes, see `ids.removed`."""
        return len(self.features)

    @property
    def capacity(self) -> int:
        """Ids are below this: N, since no nodes are added."""
        return len(self.features)


@dataclass(frozen=True, slots=True, eq=False)
class Adjacency:
    """The edges of one type, as CSC: the in-neighbours of destination v are
    `indices[indptr[v]:indptr[v + 1]]`, sorted by (time where there are times, source row), ties in
    input order. The edges up to a time are therefore a prefix of the list, the latest ones its tail.

    Attributes:
        src, relation, dst: the edge type.
        indptr: int64 [N_dst + 1].
        indices: int32 [E], rows of the source type. If the edges are compressed (`codec.py`), `indices`,
            `indptr` and the weights are unpacked on access.
        time: int64 [E] or None.
        attr: float32 [E, d_e] or None.
        weight: float32 [E] or None.
        cumweight: float64 [E], inclusive running sum of `weight` within each destination's list; None
            without weights.
        has_self_loops: a node is its own in-neighbour; always False where the node types differ.
        has_repeated_edges: a pair of nodes has more than one edge, at whatever times; None where it is
            not known, for a graph that was saved before this was stored.
        max_degree: the largest in-degree.
        stored_time_range: the result of `time_range`, if it is known without reading `time`.
        signed_weight: weights may be negative, so `cumweight` does not ascend: it holds the sums of
            lists, and cannot be used for sampling.
        columns: of its table, in the order of the lists; None where the type has none, or is derived.
        ids: of edges; None where they have none.
    """

    src: str
    relation: str
    dst: str
    indptr: IdArray
    indices: NDArray[np.int32]
    time: IdArray | None
    attr: FloatArray | None
    weight: FloatArray | None
    cumweight: NDArray[np.float64] | None
    has_self_loops: bool
    max_degree: int
    has_repeated_edges: bool | None = None
    stored_time_range: tuple[int, int] | None = None
    signed_weight: bool = False
    columns: StoredColumns | None = None
    ids: EdgeIds | None = None

    @property
    def key(self) -> str:
        """ "src__relation__dst"."""
        return edge_key(self.src, self.relation, self.dst)

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.indices)

    @property
    def time_range(self) -> tuple[int, int] | None:
        """The smallest and the largest time; None where there are no times or no edges.

        Reads all times of a graph that was saved before ranges were stored; otherwise it costs nothing.
        """
        if self.stored_time_range is not None or self.time is None or not len(self.time):
            return self.stored_time_range
        return int(self.time.min()), int(self.time.max())

    def degree(self, global_ids: IdArray) -> IdArray:
        """In-degrees of destinations, int64 [n]."""
        ids = np.asarray(global_ids, np.int64)
        return np.subtract(self.indptr[ids + 1], self.indptr[ids], dtype=np.int64)

    def starts(self, global_ids: IdArray) -> IdArray:
        """Begin of the lists of destinations in the edge arrays, int64 [n]."""
        return self.indptr[np.asarray(global_ids, np.int64)].astype(np.int64, copy=False)

    @property
    def records(self) -> IdArray:
        """Empty: `indptr` locates the lists; see `extent.py`."""
        return NO_RECORDS

    @property
    def clock(self) -> Clock:
        """A clock with one version."""
        return STILL

    def reverse_order(self) -> IdArray:
        """The edges in the order of the lists against their direction, int [E]."""
        into = np.repeat(np.arange(len(self.indptr) - 1, dtype=np.int32), np.diff(self.indptr))
        order: IdArray = csc.canonical_order(into, np.asarray(self.indices), self.time)
        return order

    def located(self, ids: Sequence[ContextId]) -> tuple[IdArray, IdArray]:
        """Positions and destinations of edges by their ids, int64 [n] each; -1 for unknown ids.

        Raises: BadRequest: the edges have no ids.
        """
        if self.ids is None:
            raise no_edge_ids(self.key)
        positions = self.ids.lookup(ids)
        owners = [bisect_right(self.indptr, at) - 1 for at in positions.tolist()]
        return positions, np.array(owners, np.int64)

    def neighbors(self, global_id: int) -> NDArray[np.int32]:
        """In-neighbours of one destination in canonical order, a view."""
        return self.indices[self.indptr[global_id] : self.indptr[global_id + 1]]

    def arrays(self) -> dict[str, AnyArray]:
        """The stored arrays, by name; `cumweight` is derived from the other arrays."""
        named: dict[str, AnyArray | None] = {
            "indptr": self.indptr,
            "indices": self.indices,
            "time": self.time,
            "attr": self.attr,
            "weight": self.weight,
            "cumweight": self.cumweight,
            "columns": None if self.columns is None else self.columns.stored,
            "id_slots": None if self.ids is None else self.ids.slots,
        }
        return {name: array for name, array in named.items() if array is not None}
