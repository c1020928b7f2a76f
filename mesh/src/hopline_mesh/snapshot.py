"""The mesh during one interval: its services, its call paths and what was measured of them.

Knows arrays; nothing of Prometheus, files or models.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.roster import Roster, SlotArray
from hopline_mesh.schema import Schema

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Gap:
    """Something that could not be measured in this interval, and why.

    Attributes:
        what: the column, source or query that is missing, such as "node.cpu_cores" or "prometheus".
        reason: what went wrong, for people.
    """

    what: str
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One interval of a mesh.

    Attributes:
        time_s: end of the interval, Unix seconds.
        schema: the columns.
        roster: names of the slots.
        nodes: int32 [n], slots of the services that exist in this interval, each once.
        node_features: float32 [n, len(schema.node_features)]; NaN = not measured.
        edge_src: int32 [e], slots of the callers.
        edge_dst: int32 [e], slots of the callees; a pair of caller and callee comes once.
        edge_features: float32 [e, len(schema.edge_features)]; NaN = not measured.
        gaps: what could not be measured at all. Missing data is reported, and is no anomaly of a service.
    """

    time_s: float
    schema: Schema
    roster: Roster
    nodes: SlotArray
    node_features: FloatArray
    edge_src: SlotArray
    edge_dst: SlotArray
    edge_features: FloatArray
    gaps: tuple[Gap, ...] = field(default=())

    def unmeasured(self, time_s: float, gap: Gap) -> Snapshot:
        """The same services and call paths in a later interval of which nothing is known."""
        return replace(
            self,
            time_s=time_s,
            node_features=np.full_like(self.node_features, np.nan),
            edge_features=np.full_like(self.edge_features, np.nan),
            gaps=(gap,),
        )

    def check(self) -> None:
        """Compare the arrays with what the attributes promise.

        For what comes from outside; it takes time that a step of the watch need not spend.

        Raises:
            SnapshotInvalid: a wrong shape, a slot out of range, a service or call path twice, an edge to a
                service that is not among `nodes`, an infinite value.
        """
        n, e = len(self.nodes), len(self.edge_src)
        for what, array, shape in (
            ("node_features", self.node_features, (n, len(self.schema.node_features))),
            ("edge_dst", self.edge_dst, (e,)),
            ("edge_features", self.edge_features, (e, len(self.schema.edge_features))),
        ):
            if array.shape != shape:
                raise SnapshotInvalid(
                    f"snapshot at {self.time_s:.0f} s: {what} is {array.shape}, not {shape}"
                )
            if np.isinf(array).any():
                raise SnapshotInvalid(f"snapshot at {self.time_s:.0f} s: {what} has infinite values")
        present = np.zeros(len(self.roster), dtype=bool)
        for what, slots in (
            ("nodes", self.nodes),
            ("edge_src", self.edge_src),
            ("edge_dst", self.edge_dst),
        ):
            if slots.size and (slots.min() < 0 or slots.max() >= len(self.roster)):
                raise SnapshotInvalid(
                    f"snapshot at {self.time_s:.0f} s: {what} has slots outside 0 to {len(self.roster) - 1}"
                )
            if what == "nodes":
                present[slots] = True
                if np.count_nonzero(present) != n:
                    raise SnapshotInvalid(f"snapshot at {self.time_s:.0f} s: a service comes twice")
            elif not present[slots].all():
                name = self.roster.name(int(slots[~present[slots]][0]))
                raise SnapshotInvalid(f"snapshot at {self.time_s:.0f} s: edge of {name}, which is no node")
        pairs = self.edge_src.astype(np.int64) * max(1, len(self.roster)) + self.edge_dst
        if len(np.unique(pairs)) != e:
            raise SnapshotInvalid(f"snapshot at {self.time_s:.0f} s: a call path comes twice")
