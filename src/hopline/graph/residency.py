"""Maps a graph's pages before the first request needs them.

A mapped array faults on the first touch of every page: half a microsecond each, which is more than
reading the row, for as many requests as the graph has pages.
"""

from __future__ import annotations

import ctypes
import dataclasses
import mmap
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np

from hopline.graph.codec import PACKED
from hopline.graph.narrow import Features, NarrowMatrix, stored
from hopline.graph.parts import Adjacency
from hopline.graph.snapshot import Graph
from hopline.graph.store_columns import StoreColumn, StoreFeatures
from hopline.process.cgroup import available_bytes, usable_cpus
from hopline.types import AnyArray

#: Linux 5.14; Python 3.11 has no name for it.
_MADV_POPULATE_READ = 22
_HUGE_PAGE = 2 << 20


def prefault(graph: Graph, max_share: float = 0.5, *, features: bool = True) -> int:
    """Map all pages of features and adjacency, unless they would take too much of the memory there is.

    Args:
        max_share: of the available memory; a larger graph is left to be read on demand.
        features: True if requests read the graph's own features.

    Returns: bytes mapped; 0 where the graph is too large or the kernel too old.
    """
    arrays = _hot(graph, features)
    total = sum(array.nbytes for array in arrays)
    if total > max_share * available_bytes():
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    done = 0
    for array in arrays:
        first = array.ctypes.data & -mmap.PAGESIZE
        length = array.ctypes.data + array.nbytes - first
        if array.nbytes and libc.madvise(
            ctypes.c_void_p(first), ctypes.c_size_t(length), ctypes.c_int(_MADV_POPULATE_READ)
        ):
            break
        done += array.nbytes
    return done


def in_huge_pages(graph: Graph, max_share: float = 0.25, *, features: bool = True) -> Graph:
    """The same graph with features and adjacency copied into huge pages of this process.

    Random rows over 4 KiB pages are bound by address translation: reading 512-byte rows went 1.5 times
    as fast from 2 MiB pages (log/). Files and shared memory rarely get them, so the copy is
    private, which suits a server of one worker.

    Args:
        max_share: of the available memory; a larger graph is returned unchanged.
        features: True if requests read the graph's own features.
    """
    if sum(array.nbytes for array in _hot(graph, features)) > max_share * available_bytes():
        return graph
    nodes = dict(graph.nodes)
    if features:
        nodes = {
            name: dataclasses.replace(part, features=_copied(part.features)) for name, part in nodes.items()
        }
    edges = {key: _with_copied_lists(part) for key, part in graph.edges.items()}
    copy = Graph(graph.schema, nodes, edges, path=graph.path)
    copy.__dict__["version"] = graph.version  # the content is the same; hashing it again takes seconds
    return copy


def _hot(graph: Graph, features: bool) -> list[AnyArray]:
    """Arrays that every request reads."""
    arrays: list[AnyArray] = []
    for nodes in graph.nodes.values() if features else ():
        if not isinstance(nodes.features, StoreFeatures):
            arrays += stored(nodes.features).values()
    for adjacency in graph.edges.values():
        for lists in (adjacency.indptr, adjacency.indices):
            if not isinstance(lists, StoreColumn):
                arrays += lists.arrays if isinstance(lists, PACKED) else (lists,)
    return arrays


def _with_copied_lists(part: Adjacency) -> Adjacency:
    lists: Any = {"indptr": part.indptr, "indices": part.indices}
    copies: dict[str, Any] = {
        name: numbers.mapped(_copy) if isinstance(numbers, PACKED) else _copy(numbers)
        for name, numbers in lists.items()
    }
    return dataclasses.replace(part, **copies)


def _copied(features: Features) -> Features:
    if isinstance(features, NarrowMatrix):
        return features.with_codes(_copy(features.codes))
    return _copy(features)


def _copy(array: AnyArray) -> AnyArray:
    if array.nbytes < _HUGE_PAGE:
        return array
    size = -(-array.nbytes // _HUGE_PAGE) * _HUGE_PAGE
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region.madvise(mmap.MADV_HUGEPAGE)
    copied = np.frombuffer(region, array.dtype, array.size).reshape(array.shape)
    # Most of the time goes into zeroing pages, which threads share.
    parts = min(8, usable_cpus())
    ends = np.linspace(0, array.shape[0], parts + 1).astype(int)
    slices = [slice(first, last) for first, last in pairwise(ends)]
    with ThreadPoolExecutor(parts) as pool:
        list(pool.map(lambda rows: np.copyto(copied[rows], array[rows]), slices))
    copied.flags.writeable = False
    return copied
