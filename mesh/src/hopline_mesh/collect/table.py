"""Columns over ids: combines the values of several series per id. Arrays only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.collect.places import IdArray
from hopline_mesh.collect.query import Combine

Column = NDArray[np.float64]


def fill(rows: IdArray, ids: IdArray, values: Column, combine: Combine) -> Column:
    """Return one value for each row.

    Args:
        rows: int64 [n], ascending, without duplicates.
        ids: int64 [m], any order, with repetitions and ids that are not among the rows.
        values: float64 [m]; NaN is ignored.
        combine: for several values of one id.

    Returns: float64 [n]; NaN for rows without a value.
    """
    column = np.full(len(rows), np.nan)
    if not len(rows) or not len(ids):
        return column
    position = np.searchsorted(rows, ids)
    position[position == len(rows)] = 0
    counts = (rows[position] == ids) & ~np.isnan(values)
    position, values = position[counts], values[counts]
    has_value = np.bincount(position, minlength=len(rows)) > 0
    if combine == "sum":
        total = np.bincount(position, weights=values, minlength=len(rows))
    else:
        total = np.full(len(rows), -np.inf)
        np.maximum.at(total, position, values)
    column[has_value] = total[has_value]
    return column


def share(part: Column, whole: Column) -> Column:
    """Return part / whole, within 0 to 1.

    Returns: NaN if the whole is 0 or unknown; 0 if only the part is unknown.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        result = np.nan_to_num(part, nan=0.0) / np.where(whole > 0, whole, np.nan)
    clipped: Column = np.clip(result, 0.0, 1.0)
    return clipped
