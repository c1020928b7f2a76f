"""What a set of destinations sees through one edge type, ready to be reduced or padded."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hopline.types import FloatArray, IdArray

NO_FLOATS: FloatArray = np.empty(0, np.float32)


@dataclass(slots=True)
class EdgeView:
    """Sampled edges of n destinations; edge e of destination i has offsets[i] <= e < offsets[i+1].

    Attributes:
        base: float32 [m, d], states of the previous level.
        rows: int64 [E], row of `base` of each edge's source.
        offsets: int64 [n+1].
        weight: float32 [E], or [0] where the edge type has no weights or the stage needs none.
        attr: float32 [E, d_e], or None.
        is_self: bool [E], or None where the stage needs it not.
        num_eligible: int64 [n] in-edges before sampling, or None.
        coefficients, self_coefficients: float32 [E] and [n] of `gcn` reductions, or [0].
    """

    base: FloatArray
    rows: IdArray
    offsets: IdArray
    weight: FloatArray = field(default_factory=lambda: NO_FLOATS)
    attr: FloatArray | None = None
    is_self: NDArray[np.bool_] | None = None
    num_eligible: IdArray | None = None
    coefficients: FloatArray = field(default_factory=lambda: NO_FLOATS)
    self_coefficients: FloatArray = field(default_factory=lambda: NO_FLOATS)
