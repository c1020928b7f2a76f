"""Maps a graph's pages before the first request needs them.

A mapped array faults on the first touch of every page: half a microsecond each, which is more than
reading the row, for as many requests as the graph has pages.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from hopline.graph.snapshot import Graph
from hopline.types import AnyArray

#: Linux 5.14; Python 3.11 has no name for it.
_MADV_POPULATE_READ = 22


def prefault(graph: Graph, max_share: float = 0.5) -> int:
    """Map all pages of features and adjacency, unless they would take too much of the memory there is.

    Args:
        max_share: of the available memory; a larger graph is left to be read on demand.

    Returns: bytes mapped; 0 where the graph is too large or the kernel too old.
    """
    arrays: list[AnyArray] = [nodes.features for nodes in graph.nodes.values()]
    for adjacency in graph.edges.values():
        arrays += [adjacency.indptr, adjacency.indices]
    total = sum(array.nbytes for array in arrays)
    if total > max_share * _available_bytes():
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


def _available_bytes() -> int:
    """Free memory and page cache; all physical memory where the kernel does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
