"""Finds integers that float32 would change: one check for all numbers from outside.

A number that comes as float32 is never refused, nor is a fraction: 0.1 is rounded as always.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopline.types import AnyArray, FloatArray

#: float32 holds every integer up to this exactly.
EXACT = 2**24
#: From here on no float is a code of 64 bits.
_CODES = 2.0**64


def changed(
    values: AnyArray, stored: FloatArray, rounded: Collection[int] = (), whole: Sequence[int] = ()
) -> NDArray[np.bool_] | None:
    """Integers that float32 would change and fractions among integers, bool [n, d]; None if there are none.

    Args:
        values: [n, d], as they came.
        stored: float32 [n, d], the same numbers.
        rounded: columns that may be rounded.
        whole: columns of whole numbers.
    """
    lost: NDArray[np.bool_] | None = None
    is_float32, at = values.dtype.kind == "f" and values.dtype.itemsize <= 4, list(whole)
    if not is_float32 and stored.size and not (size := np.abs(stored)).max() < EXACT:  # NaN is not below
        if values.dtype.kind in "iu":
            lost = inexact_integers(values)
        else:
            # Codes have at most 64 bits; beyond, every float is an integer, which proves nothing.
            lost = (size >= EXACT) & (size < _CODES) & (values != stored) & (np.floor(values) == values)
        lost[:, list(rounded)] = False
    if at:
        lost = np.zeros(stored.shape, np.bool_) if lost is None else lost
        lost[:, at] |= stored[:, at] != np.rint(stored[:, at])
    return lost if lost is not None and lost.any() else None


def loss(value: Any) -> str:
    """Change of an integer by float32, in words."""
    becomes = int(np.float32(value))
    return f"{int(value)} would become {becomes}: float32 holds all integers up to {EXACT:,} only"


def refusal(value: Any, column: int | None, names: Sequence[str] = ()) -> str:
    """Why `changed` refuses a number, and what to do instead.

    Args:
        value: as it came.
        column: its position; None for the weight of an edge. names: of the columns.
    """
    named = names[column] if column is not None and column < len(names) else None
    where = "" if column is None else f"column {column if named is None else repr(named)}: "
    if float(value) != np.rint(float(value)):
        return f"{where}{value} is a fraction, and the graph has integers there"
    return (
        f"{where}{loss(value)}. Number codes from 0 on or split them into several columns, or subtract a "
        "reference from times; if rounding is harmless, send float32 numbers, or build the graph with "
        f"--round {named or 'COLUMN'} (NodeTable.rounded, EdgeTable.rounded)"
    )


def inexact_integers(chunk: AnyArray) -> NDArray[np.bool_]:
    """Mask of the elements of an integer array that float32 changes."""
    rounded = chunk.astype(np.float32)
    # Beyond the range of the type, casting back is undefined.
    beyond = rounded >= 2.0 ** (8 * chunk.dtype.itemsize - (chunk.dtype.kind == "i"))
    with np.errstate(invalid="ignore"):
        lost: NDArray[np.bool_] = beyond | (np.where(beyond, 0, rounded).astype(chunk.dtype) != chunk)
    return lost
