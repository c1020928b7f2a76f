"""Rows of L2: copies of the origin's rows, with the time at which the origin had them.

A copy is the row in float32 and two more numbers: `time.time()` in milliseconds, divided by `_STEP`, and
the rest. Both are below 2**24, where float32 is exact. So a host that reads a copy knows how old it is, as
far as the clocks of the hosts agree.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.features.base import FeatureGroup
from hopline.types import FloatArray

_STEP = 1 << 22


def stamped_group(group: FeatureGroup) -> FeatureGroup:
    """The group of the copies in L2; no row without a time is taken for one, since the name differs."""
    names = (*group.feature_names, "time high", "time low") if group.feature_names else ()
    return msgspec.structs.replace(
        group, name=f"{group.name}@time", dim=group.dim + 2, dtype="float32", feature_names=names
    )


def stamped(values: FloatArray, time_s: float) -> FloatArray:
    """Copies of rows float32 [n, dim] that the origin had at `time_s`: float32 [n, dim + 2]."""
    copies = np.empty((values.shape[0], values.shape[1] + 2), np.float32)
    copies[:, :-2] = values
    copies[:, -2:] = divmod(int(time_s * 1e3), _STEP)
    return copies


def times_of(copies: FloatArray) -> NDArray[np.float64]:
    """Times at which the origin had these rows, float64 [n] seconds of `time.time()`."""
    high, low = np.float64(copies[:, -2]), np.float64(copies[:, -1])
    return np.asarray((high * _STEP + low) * 1e-3)
