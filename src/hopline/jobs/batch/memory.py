"""Keeps a run within its memory limit: measures resident memory, and releases mapped pages."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from hopline.graph import Graph
from hopline.graph.storage import arrays_of
from hopline.types import AnyArray

_PAGE = os.sysconf("SC_PAGE_SIZE")
#: Above this part of the limit, mapped pages are released.
HIGH = 0.85


def resident_bytes() -> int:
    """Resident bytes of this process, mapped files included."""
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE


def peak_bytes() -> int:
    """The peak of resident bytes (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return resident_bytes()


def is_mapped(array: AnyArray) -> bool:
    """True if an array's memory is a mapped file, whose pages can be released."""
    base: object = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return isinstance(base, mmap.mmap)


class MemoryGuard:
    """Releases pages of mapped files when the process nears its limit.

    The pages stay in the page cache while the machine has room, so that reading them again is cheap.

    Args:
        limit_bytes: of resident memory.
        arrays: mapped files among them are watched.
    """

    def __init__(self, limit_bytes: int, arrays: Iterable[AnyArray]) -> None:
        self._high = int(limit_bytes * HIGH)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._ranges = []
        for array in arrays:
            if array.nbytes and is_mapped(array):
                first = array.ctypes.data & -_PAGE
                self._ranges.append((first, array.ctypes.data + array.nbytes - first))
        self._keep = list(arrays)

    def check(self) -> None:
        """Call this between pieces of work; costs ten microseconds below the limit."""
        if resident_bytes() > self._high:
            self.drop()

    def drop(self) -> None:
        """Release all pages."""
        for first, length in self._ranges:
            self._libc.madvise(
                ctypes.c_void_p(first), ctypes.c_size_t(length), ctypes.c_int(mmap.MADV_DONTNEED)
            )


def graph_arrays(graph: Graph) -> list[AnyArray]:
    """Every array of a graph."""
    return list(arrays_of(graph.nodes, graph.edges).values())
