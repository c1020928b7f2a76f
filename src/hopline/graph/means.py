"""The mean feature row of a node type, which replaces a row that cannot be read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hopline.graph.store_columns import StoreFeatures
from hopline.types import FloatArray

#: Rows that the mean is taken of, evenly spread.
_MEAN_ROWS = 2_000


def mean_row(features: Any) -> FloatArray:
    """float32 [d] of features [N, d]; of evenly spread rows where there are many."""
    if isinstance(features, StoreFeatures):
        return features.mean
    count = features.shape[0]
    rows = np.arange(0, count, max(1, math.ceil(count / _MEAN_ROWS)))  # a live graph's rows have no slices
    mean: FloatArray = np.asarray(features[rows], np.float32).mean(axis=0)
    return mean
