"""Locates a destination's in-neighbours: in a snapshot's lists, or in those of a live graph.

A snapshot has `indptr`. A live graph has *records*. Each is a list that is valid from one version on,
chained from the newest to the oldest that a reader may still need; `indptr[v]` is then the number of v's
newest record. Kernels accept both forms: `records` is empty for a snapshot. A compressed snapshot's
`indptr` is packed: (address of groups, address of long ones), see `codec_kernels.read_bounds`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from hopline.graph.codec_kernels import prefetch_packed_bounds, read_bounds
from hopline.kernels.intrinsics import prefetch
from hopline.kernels.jit import njit
from hopline.types import IdArray

#: Columns of a record: begin of the list, its length, the first version it is valid for, previous record.
START, DEGREE, SINCE, PREVIOUS = 0, 1, 2, 3
NUM_COLUMNS = 4


class Clock:
    """The version that a reader has pinned, or had pinned last.

    Attributes:
        version: an integer; later versions are not visible.
        ring_row: the row of the live graph's ring for this version; see `live/memory.py`.
    """

    __slots__ = ("ring_row", "version")

    def __init__(self) -> None:
        self.version = 0
        self.ring_row: list[int] = []


#: For a snapshot, which has one version.
STILL = Clock()
NO_RECORDS: IdArray = np.empty((0, NUM_COLUMNS), np.int64)
NO_RECORDS.flags.writeable = False


_INLINE = {"forceinline": True}


def bounds(indptr: Any, v: Any) -> Any:
    """indptr[v] and indptr[v + 1], int64."""
    return int(indptr[v]), int(indptr[v + 1])


def newest(indptr: Any, v: Any) -> Any:
    """indptr[v] of a live graph: the number of v's newest record."""
    return indptr[v]


def prefetch_bounds(indptr: Any, v: Any) -> None:
    """Prefetch what locates the list of `v`."""


@overload(bounds, jit_options=_INLINE)
def _bounds(indptr, v):  # type: ignore[no-untyped-def]
    if isinstance(indptr, types.BaseTuple):
        return lambda indptr, v: read_bounds(indptr[0], indptr[1], v)
    return lambda indptr, v: (np.int64(indptr[v]), np.int64(indptr[v + 1]))


@overload(newest, jit_options=_INLINE)
def _newest(indptr, v):  # type: ignore[no-untyped-def]
    if isinstance(indptr, types.BaseTuple):
        return lambda indptr, v: np.int64(-1)
    return lambda indptr, v: indptr[v]


@overload(prefetch_bounds, jit_options=_INLINE)
def _prefetch_bounds(indptr, v):  # type: ignore[no-untyped-def]
    if isinstance(indptr, types.BaseTuple):
        return lambda indptr, v: prefetch_packed_bounds(indptr[0], v)
    return lambda indptr, v: prefetch(indptr, v)


@njit(inline="always")
def extent(indptr, records, version, v):  # type: ignore[no-untyped-def]
    """Begin and end of the list of `v`, positions in the edge arrays.

    Args:
        indptr: int64 [N + 1], or packed; or newest records int64 [N].
        records: int64 [R, NUM_COLUMNS], or [0, NUM_COLUMNS].
        version: of the live graph.
    """
    if records.shape[0] == 0:
        return bounds(indptr, v)
    at = newest(indptr, v)
    while at >= 0 and records[at, SINCE] > version:
        at = records[at, PREVIOUS]
    if at < 0:
        return np.int64(0), np.int64(0)
    return records[at, START], records[at, START] + records[at, DEGREE]


@njit(nogil=True, cache=True)
def degrees(indptr, records, version, nodes, out):  # type: ignore[no-untyped-def]
    """out[i] = in-degree of nodes[i]: int64 [n]."""
    for i in range(nodes.shape[0]):
        start, end = extent(indptr, records, version, nodes[i])
        out[i] = end - start


@njit(nogil=True, cache=True)
def starts(indptr, records, version, nodes, out):  # type: ignore[no-untyped-def]
    """out[i] = first position of the list of nodes[i]: int64 [n]."""
    for i in range(nodes.shape[0]):
        out[i] = extent(indptr, records, version, nodes[i])[0]
