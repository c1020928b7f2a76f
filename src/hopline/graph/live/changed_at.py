"""Tracks which states may have changed: changes follow edges forwards, one level per message-passing layer.

`changed_at[l][v]` is the last version at which the state of v at level l may have changed. Level 0 is v's
own features. The state at level l reads v's neighbour list, and level l - 1 of v and of its in-neighbours,
so a change propagates from a node to the nodes whose lists contain it. For that the writer keeps lists of
out-neighbours. These lists are never too small: a removed edge stays in them until they are rebuilt. Until
then it may set changed_at of a node that did not change.
"""

from __future__ import annotations

import numpy as np

from hopline.graph.extent import DEGREE, START
from hopline.graph.live.memory import EdgeMemory
from hopline.kernels.jit import njit
from hopline.types import AnyArray, IdArray

#: Added edges after which out-neighbours are listed again: a minimum, and a share of all edges.
_MIN_ADDED, _ADDED_SHARE = 1 << 17, 0.5


@njit(nogil=True, cache=True)
def _count_out(heads, records, indices, counts):  # type: ignore[no-untyped-def]
    for v in range(heads.shape[0]):
        at = heads[v]
        if at >= 0:
            for p in range(records[at, START], records[at, START] + records[at, DEGREE]):
                counts[indices[p] + 1] += 1


@njit(nogil=True, cache=True)
def _fill_out(heads, records, indices, cursor, out):  # type: ignore[no-untyped-def]
    for v in range(heads.shape[0]):
        at = heads[v]
        if at >= 0:
            for p in range(records[at, START], records[at, START] + records[at, DEGREE]):
                u = indices[p]
                out[cursor[u]] = v
                cursor[u] += 1


@njit(nogil=True, cache=True)
def _add(first, targets, following, used, src, dst):  # type: ignore[no-untyped-def]
    for i in range(src.shape[0]):
        targets[used] = dst[i]
        following[used] = first[src[i]]
        first[src[i]] = used
        used += 1
    return used


@njit(nogil=True, cache=True)
def mark_changed(ids, changed_at, version, frontier, count):  # type: ignore[no-untyped-def]
    """Set changed_at of ids, and append those not set yet to the frontier; returns its length."""
    for i in range(ids.shape[0]):
        v = ids[i]
        if changed_at[v] != version:
            changed_at[v] = version
            frontier[count] = v
            count += 1
    return count


@njit(nogil=True, cache=True)
def _mark_out(sources, indptr, out, first, targets, following, changed_at, version, frontier, count):  # type: ignore[no-untyped-def]
    base = indptr.shape[0] - 1
    for i in range(sources.shape[0]):
        u = sources[i]
        if u < base:
            for p in range(indptr[u], indptr[u + 1]):
                v = out[p]
                if changed_at[v] != version:
                    changed_at[v] = version
                    frontier[count] = v
                    count += 1
        link = first[u]
        while link >= 0:
            v = targets[link]
            if changed_at[v] != version:
                changed_at[v] = version
                frontier[count] = v
                count += 1
            link = following[link]
    return count


@njit(nogil=True, cache=True)
def _list_out(sources, indptr, out, first, targets, following, src, dst):  # type: ignore[no-untyped-def]
    """Fill src and dst, as far as they go, with the edges from sources; returns their number."""
    base, count, room = indptr.shape[0] - 1, 0, src.shape[0]
    for i in range(sources.shape[0]):
        u = sources[i]
        p, end = (indptr[u], indptr[u + 1]) if u < base else (np.int64(0), np.int64(0))
        link = np.int64(first[u])
        while p < end or link >= 0:
            v = np.int64(out[p]) if p < end else np.int64(targets[link])
            if p < end:
                p += 1
            else:
                link = np.int64(following[link])
            if count < room:
                src[count], dst[count] = u, v
            count += 1
    return count


class OutNeighbors:
    """For each source node, the destinations whose lists contain it, for one edge type."""

    def __init__(self, memory: EdgeMemory, num_sources: int) -> None:
        self._memory = memory
        self._num_sources = num_sources
        self._targets: AnyArray = np.empty(0, np.int32)
        self._following: AnyArray = np.empty(0, np.int32)
        self._used = 0
        self.build()

    def build(self) -> None:
        """List all out-neighbours again from the newest lists."""
        memory = self._memory
        indptr = np.zeros(self._num_sources + 1, np.int64)
        _count_out(memory.heads, memory.records, memory.indices, indptr)
        np.cumsum(indptr, out=indptr)
        self._indptr = indptr
        self._out = np.empty(max(1, int(indptr[-1])), np.int32)
        _fill_out(memory.heads, memory.records, memory.indices, indptr[:-1].copy(), self._out)
        self._first = np.full(self._num_sources, -1, np.int32)
        self._room = max(_MIN_ADDED, int(_ADDED_SHARE * indptr[-1]))
        self._used = 0

    def add(self, src: IdArray, dst: IdArray) -> None:
        """Add edges, int64 [n] each, that the newest lists contain already."""
        if self._used + len(src) > self._room:
            self.build()
            return
        if self._used + len(src) > len(self._targets):
            size = max(4096, 2 * (self._used + len(src)))
            self._targets = _grown(self._targets, size)
            self._following = _grown(self._following, size)
        self._used = int(_add(self._first, self._targets, self._following, self._used, src, dst))

    def edges_of(self, sources: IdArray) -> tuple[IdArray, IdArray]:
        """The edges from sources, int64 [n], and perhaps removed ones: their ends, int64 each."""
        found = (self._indptr, self._out, self._first, self._targets, self._following)
        src = dst = np.empty(0, np.int64)
        if count := _list_out(sources, *found, src, dst):
            src, dst = np.empty(count, np.int64), np.empty(count, np.int64)
            _list_out(sources, *found, src, dst)
        return src, dst

    def mark(
        self, sources: IdArray, changed_at: IdArray, version: int, frontier: IdArray, count: int
    ) -> int:
        """Set changed_at of the out-neighbours of int64 [n] sources; see `mark_changed`."""
        found = (self._indptr, self._out, self._first, self._targets, self._following)
        return int(_mark_out(sources, *found, changed_at, version, frontier, count))


def _grown(array: AnyArray, size: int) -> AnyArray:
    larger = np.empty(size, array.dtype)
    larger[: len(array)] = array
    return larger
