"""Changes of a graph: edges and nodes are added and removed, feature rows are set.

A batch of events is stored as columns, one group for each edge type and node type. `order` restores the
order in which the events arrived over all groups: a row may refer to nodes that the graph has, or that an
earlier row of the batch adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.graph.schema import NodeTypeSchema
from hopline.types import AnyArray, FloatArray, IdArray

#: The caller's ids: int64 [n], or n strings.
Ids: TypeAlias = IdArray | Sequence[str]


@dataclass(frozen=True, slots=True, eq=False)
class EdgeChanges:
    """Edges of one type that were added or removed, n rows.

    Attributes:
        src, dst: the caller's ids.
        remove: bool [n]; a removal removes all edges from src to dst, or only those of `time` if `has_time`
            is set.
        time: int64 [n] or None. Added edges of a type with times need one.
        has_time: bool [n] or None (all rows, if `time` is given): which removals name a time.
        weight: float32 [n] or None, attr: float32 [n, d_e] or None; rows of removals are not read.
        order: int64 [n], ascending positions in the batch.
        cells, texts: as in `NodeChanges`; rows of removals are not read.
    """

    src: Ids
    dst: Ids
    remove: NDArray[np.bool_]
    order: IdArray
    time: IdArray | None = None
    has_time: NDArray[np.bool_] | None = None
    weight: FloatArray | None = None
    attr: FloatArray | None = None
    cells: NDArray[np.float64] | None = None
    texts: AnyArray | None = None

    def __len__(self) -> int:
        return len(self.remove)


@dataclass(frozen=True, slots=True, eq=False)
class NodeChanges:
    """Nodes of one type that were added or removed, or whose features were set, n rows.

    Attributes:
        ids: the caller's ids.
        add: bool [n]; False sets the features of an existing node, or removes it.
        features: float32 [n, d].
        order: int64 [n], ascending positions in the batch.
        cells, texts: float64 [n, columns] and objects [n, columns of texts] as `values_of` takes them; None
            where the type has no columns.
        remove: bool [n], which nodes are removed with all their edges; None for none. Their rows and times
            are not read.
        time: int64 [n], from when on the rows hold; None where the type has no history.
    """

    ids: Ids
    add: NDArray[np.bool_]
    features: FloatArray
    order: IdArray
    cells: NDArray[np.float64] | None = None
    texts: AnyArray | None = None
    remove: NDArray[np.bool_] | None = None
    time: IdArray | None = None

    def __len__(self) -> int:
        return len(self.add)

    @classmethod
    def removals(cls, ids: Ids, order: IdArray, schema: NodeTypeSchema) -> NodeChanges:
        """Removals of all these nodes of one type."""
        count, no = len(order), np.zeros(len(order), np.bool_)
        features, time = np.zeros((count, schema.feature_dim), np.float32), None
        if schema.history is not None:
            time = np.zeros(count, np.int64)
        if not schema.columns:
            return cls(ids, no, features, order, remove=~no, time=time)
        num_texts = sum(column.type == "text" for column in schema.columns)
        rows = np.zeros((count, len(schema.columns))), np.full((count, num_texts), None, object)
        return cls(ids, no, features, order, *rows, ~no, time)


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """A batch of events, applied as one version of the graph.

    Attributes:
        edges: edge type key -> changes. nodes: node type -> changes.
        num_events: positions in `order` are below this.
        event_ids: one for each event, "" for none; or empty if no event has one. An id that was seen
            before is a duplicate and changes nothing.
        event_time_ms: int64 [num_events] or None, when each happened, ms since 1970.
        positions: source such as "kafka/edges/0" -> the offset that follows its last event in this batch.
            Stored with the batch, so that a consumer continues where the graph is.
        is_whole: True if nothing is applied where one event is rejected.
    """

    edges: Mapping[str, EdgeChanges] = field(default_factory=dict)
    nodes: Mapping[str, NodeChanges] = field(default_factory=dict)
    num_events: int = 0
    event_ids: Sequence[str] = ()
    event_time_ms: IdArray | None = None
    positions: Mapping[str, Any] = field(default_factory=dict)
    is_whole: bool = False


class Rejected(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event that was not applied.

    Attributes:
        order: its position in the batch.
        code: "unknown_node" (also one that has no row yet), "node_exists", "unknown_type", "bad_shape",
            "bad_value" (of a column), "not_finite", "not_exact", "no_time", "no_weight",
            "negative_weight", "no_attr", "no_edge" (a removal of a missing edge), "edge_exists" (with the
            same id), "bad_id" or "full".
        reason: what is wrong and how to correct it.
    """

    order: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Applied:
    """The outcome of a batch.

    Attributes:
        sequence: the version that contains it; the previous version if nothing was applied.
        num_applied: events that changed the graph.
        duplicates: positions of events whose id was seen before.
        rejected: events that were not applied for another reason.
    """

    sequence: int
    num_applied: int
    duplicates: Sequence[int] = ()
    rejected: Sequence[Rejected] = ()
