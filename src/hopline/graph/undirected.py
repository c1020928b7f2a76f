"""Checks whether edges already contain both directions, so that adding reverses would double them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopline.errors import GraphError
from hopline.types import AnyArray


def both_directions(
    src: NDArray[np.int32], dst: NDArray[np.int32], columns: Sequence[AnyArray | None], what: str
) -> bool:
    """True if every edge has its reverse, with the same columns.

    Args:
        src, dst: rows of the ends [E]; loops are ignored.
        columns: of the edges, [E] or [E, d]; None for missing ones.
        what: for error messages.
    Returns: False if no edge has its reverse.
    Raises: GraphError: some edges have their reverse, or all do but with other columns: it is unclear
        whether the missing reverses are intended.
    """
    keep = np.flatnonzero(src != dst)
    src, dst = src[keep].astype(np.int64), dst[keep].astype(np.int64)
    size = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    there, back = src * size + dst, dst * size + src
    found = np.isin(there, back)
    count = int(np.count_nonzero(found))
    if not count:
        return False
    flat = [part for each in columns if each is not None for part in np.atleast_2d(each[keep].T)]
    if count == len(keep) and _same_rows([there, *flat], [back, *flat]):
        return True
    shown = int(keep[np.flatnonzero(found)[0]])
    if count < len(keep):
        why = f"{count} of {len(keep)} edges already have their reverse (the first is edge {shown})"
    elif _same_rows([there], [back]):
        why = "every edge already has its reverse, but with another time, weight or attribute"
    else:
        why = "every edge already has its reverse, but not the same number of times"
    raise GraphError(
        f"{what}: {why}, so undirected would double them. Omit undirected if the edges contain both "
        "directions, or list each pair once. To keep these edges and add the reverse of each, add the same "
        "edges again as a separate edge type, with source and destination exchanged"
    )


def _same_rows(first: Sequence[AnyArray], second: Sequence[AnyArray]) -> bool:
    """True if two tables, passed as columns, hold the same rows in any order."""
    one, other = np.lexsort(first[::-1]), np.lexsort(second[::-1])
    return all(np.array_equal(a[one], b[other]) for a, b in zip(first, second, strict=True))
