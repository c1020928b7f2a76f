"""Compares two answers to one request: equal bit for bit, or how far apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.types import AnyArray

_HALF = 0.5


class Difference(NamedTuple):
    """The difference between a logged answer and a new one.

    Attributes:
        identical: every output has the same names, dtypes, shapes and bits, and the same rows are missing.
        largest: output name -> largest absolute difference; inf if they cannot be subtracted.
        flips: rows whose label differs: that of output "label", else the most probable class.
        missing: rows that are missing in one answer only.
    """

    identical: bool
    largest: dict[str, float]
    flips: int
    missing: int


def compare(
    before: Mapping[str, AnyArray],
    after: Mapping[str, AnyArray],
    gone_before: NDArray[np.bool_] | None,
    gone_after: NDArray[np.bool_] | None,
) -> Difference:
    """Compare outputs row by row; rows that are missing in either answer are not compared.

    Args:
        before, after: output name -> array with one row for each item.
        gone_before, gone_after: bool [n], missing rows; None for none.
    """
    changed = 0
    kept: NDArray[np.bool_] | None = None
    if gone_before is not None or gone_after is not None:
        num_rows = len(next(iter(before.values()), ()))
        none = np.zeros(num_rows, np.bool_)
        gone = [none if each is None else each for each in (gone_before, gone_after)]
        if gone[0].shape == gone[1].shape:
            changed = int((gone[0] != gone[1]).sum())
            kept = ~(gone[0] | gone[1])
        else:
            changed = num_rows
    largest = {}
    identical = before.keys() == after.keys() and not changed
    for name in before.keys() & after.keys():
        mine, other = before[name], after[name]
        if kept is not None and len(mine) == len(other) == len(kept):
            mine, other = mine[kept], other[kept]
        if _same(mine, other):
            largest[name] = 0.0
        else:
            identical = False
            largest[name] = _distance(mine, other)
    return Difference(identical, largest, _flips(before, after, kept), changed)


def _same(mine: AnyArray, other: AnyArray) -> bool:
    if mine.shape != other.shape:
        return False
    if mine.dtype.kind in "OU":
        return other.dtype.kind in "OU" and bool(mine.tolist() == other.tolist())
    return mine.dtype == other.dtype and mine.tobytes() == other.tobytes()


def _distance(mine: AnyArray, other: AnyArray) -> float:
    if mine.shape != other.shape or mine.dtype.kind not in "fiub" or other.dtype.kind not in "fiub":
        return math.inf
    with np.errstate(invalid="ignore"):
        apart = np.abs(mine.astype(np.float64) - other.astype(np.float64))
    apart[(mine != mine) & (other != other)] = 0.0
    return float(np.nan_to_num(apart, nan=math.inf, posinf=math.inf).max(initial=0.0))


def _flips(
    before: Mapping[str, AnyArray], after: Mapping[str, AnyArray], kept: NDArray[np.bool_] | None
) -> int:
    labels = []
    for answer in (before, after):
        found = answer.get("label")
        if found is None:
            scores = answer.get("probabilities")
            if scores is None:
                return 0
            found = scores.argmax(axis=1) if scores.ndim == 2 else scores >= _HALF
        labels.append(found)
    if labels[0].shape != labels[1].shape:
        return len(labels[0])
    differ = labels[0] != labels[1]
    if differ.ndim > 1:
        differ = differ.any(axis=1)
    return int((differ if kept is None else differ[kept]).sum())
