"""The edges of a set of destinations along one edge type, ready to be reduced or listed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline.engine.narrow_kernels import Matrix
from hopline.types import FloatArray, IdArray

NO_FLOATS: FloatArray = np.empty(0, np.float32)


class EdgeView:
    """Sampled edges of n destinations; edge e of destination i has offsets[i] <= e < offsets[i+1].

    A plain class: one is created for every batch, stage and edge type, and creating a dataclass with these
    defaults takes three times as long.

    Attributes:
        base: [m, d], states of the previous level; raw features may be narrow.
        rows: int64 [E], row of `base` of each edge's source.
        offsets: int64 [n+1].
        weight: float32 [E], or [0] where the edge type has no weights or the stage needs none.
        attr: float32 [E, d_e], or None. time: int64 [E], or None where the stage does not need it.
        is_self: bool [E], or None where the stage does not need it.
        num_eligible: int64 [n] in-edges before sampling, or None.
        coefficients, self_coefficients: float32 [E] and [n] of `gcn` reductions, or [0].
    """

    __slots__ = (
        "attr",
        "base",
        "coefficients",
        "is_self",
        "num_eligible",
        "offsets",
        "rows",
        "self_coefficients",
        "time",
        "weight",
    )

    def __init__(
        self, base: Matrix, rows: IdArray, offsets: IdArray, weight: FloatArray = NO_FLOATS
    ) -> None:
        self.base = base
        self.rows = rows
        self.offsets = offsets
        self.weight = weight
        self.attr: FloatArray | None = None
        self.time: IdArray | None = None
        self.is_self: NDArray[np.bool_] | None = None
        self.num_eligible: IdArray | None = None
        self.coefficients = NO_FLOATS
        self.self_coefficients = NO_FLOATS
