"""The data of a training: inputs and targets of one interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.model.graph import IntArray
from hopline_mesh.model.shape import ModelShape
from hopline_mesh.model.weights import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One interval, as float arrays.

    Attributes:
        x: float32 [n, d_in], finite.
        h: float32 [n, d_temporal], finite.
        sources: int32 [e], callers by position.
        targets: int32 [e], callees.
        e: float32 [e, d_edge], finite.
        g: float32 [e, d_edge_temporal], finite.
        node_targets: float32 [n, n_node_targets]; NaN = not measured, ignored.
        edge_targets: float32 [e, n_edge_targets]; NaN likewise.
    """

    x: FloatArray
    h: FloatArray
    sources: IntArray
    targets: IntArray
    e: FloatArray
    g: FloatArray
    node_targets: FloatArray
    edge_targets: FloatArray

    def check(self, shape: ModelShape) -> None:
        """Compare the arrays with a model's sizes.

        Raises:
            SnapshotInvalid: a wrong shape, an edge to a missing node, an input that is not finite.
        """
        n, e = len(self.x), len(self.sources)
        for name, size in (
            ("x", (n, shape.d_in)),
            ("h", (n, shape.d_temporal)),
            ("targets", (e,)),
            ("e", (e, shape.d_edge)),
            ("g", (e, shape.d_edge_temporal)),
            ("node_targets", (n, shape.n_node_targets)),
            ("edge_targets", (e, shape.n_edge_targets)),
        ):
            if getattr(self, name).shape != size:
                raise SnapshotInvalid(f"a frame's {name} is {getattr(self, name).shape}, not {size}")
        for ends in (self.sources, self.targets):
            if e and (ends.min() < 0 or ends.max() >= n):
                raise SnapshotInvalid(f"a frame has an edge's end that is not among positions 0 to {n - 1}")
        for name in ("x", "h", "e", "g"):
            if not np.isfinite(getattr(self, name)).all():
                raise SnapshotInvalid(f"a frame's {name} has values that are not finite")
