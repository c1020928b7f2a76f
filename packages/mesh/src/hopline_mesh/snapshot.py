"""The mesh during one interval: its services, call paths and measurements.

Knows arrays, but no Prometheus, files or models.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.roster import Roster, SlotArray
from hopline_mesh.schema import Schema

FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Gap:
    """A missing measurement of this interval, and its reason.

    Attributes:
        what: the missing column, source or query, such as "node.cpu_cores" or "prometheus".
        reason: for people.
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
        nodes: int32 [n], slots of the services that exist in this interval, without duplicates.
        node_features: float32 [n, len(schema.node_features)]; NaN = not measured.
        edge_src: int32 [e], slots of the callers.
        edge_dst: int32 [e], slots of the callees; each pair of caller and callee is unique.
        edge_features: float32 [e, len(schema.edge_features)]; NaN = not measured.
        gaps: missing measurements. Missing data is reported, and is never an anomaly of a service.
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

    @property
    def is_measured(self) -> bool:
        """True if it has any measurement."""
        return bool(np.isfinite(self.node_features).any() or np.isfinite(self.edge_features).any())

    def unmeasured(self, time_s: float, gap: Gap) -> Snapshot:
        """Return the same services and call paths in a later interval without measurements."""
        return replace(
            self,
            time_s=time_s,
            node_features=np.full_like(self.node_features, np.nan),
            edge_features=np.full_like(self.edge_features, np.nan),
            gaps=(gap,),
        )

    def with_columns(self, schema: Schema) -> Snapshot:
        """Return the same interval with the columns in another order; all of them must be measured here."""
        ours = self.schema
        nodes = [ours.node_features.index(name) for name in schema.node_features]
        edges = [ours.edge_features.index(name) for name in schema.edge_features]
        return replace(
            self,
            schema=schema,
            node_features=np.ascontiguousarray(self.node_features[:, nodes]),
            edge_features=np.ascontiguousarray(self.edge_features[:, edges]),
        )

    def with_slots(self, roster: Roster, slots: SlotArray) -> Snapshot:
        """Return the same interval with another roster; `slots` has the new slot for each old one."""
        return replace(
            self,
            roster=roster,
            nodes=slots[self.nodes],
            edge_src=slots[self.edge_src],
            edge_dst=slots[self.edge_dst],
        )

    def check(self) -> None:
        """Check the arrays against the description of the attributes.

        For input from outside; a step of the watch does not call it, to save time.

        Raises:
            SnapshotInvalid: a wrong shape, a slot out of range, a duplicate service or call path, an edge
                to a service that is not among `nodes`, an infinite value.
        """
        problem = next(self._problems(), None)
        if problem is not None:
            raise SnapshotInvalid(f"snapshot at {self.time_s:.0f} s: {problem}")

    def _problems(self) -> Iterator[str]:
        """Yield what is wrong; later ones are only valid if there are no earlier ones."""
        n, e, size = len(self.nodes), len(self.edge_src), len(self.roster)
        for what, array, shape in (
            ("node_features", self.node_features, (n, len(self.schema.node_features))),
            ("edge_dst", self.edge_dst, (e,)),
            ("edge_features", self.edge_features, (e, len(self.schema.edge_features))),
        ):
            if array.shape != shape:
                yield f"{what} is {array.shape}, not {shape}"
            if np.isinf(array).any():
                yield f"{what} has infinite values"
        for what, slots in (
            ("nodes", self.nodes),
            ("edge_src", self.edge_src),
            ("edge_dst", self.edge_dst),
        ):
            if slots.size and (slots.min() < 0 or slots.max() >= size):
                yield f"{what} has slots outside 0 to {size - 1}"
        if len(np.unique(self.nodes)) != n:
            yield "a service is repeated"
        for slot in np.setdiff1d(np.concatenate([self.edge_src, self.edge_dst]), self.nodes).tolist():
            yield f"edge of {self.roster.name(slot)}, which is not among the nodes"
        if len(np.unique(self.edge_src.astype(np.int64) * size + self.edge_dst)) != e:
            yield "a call path is repeated"
