"""Memory for state caches: private to a process, or one memfd that all workers of a host map."""

from __future__ import annotations

import mmap
import os
from typing import Any

import numpy as np

from hopline.types import AnyArray

_ALIGN = 4096


class Arena:
    """A zero-filled region from which arrays are carved in a fixed order.

    Pages use memory only once they are written, so a generous arena costs only what is used. Workers that
    carve the same shapes in the same order from the same file see the same arrays.

    Args:
        num_bytes: size of the region.
        fd: file descriptor of a memfd, which is grown to that size; None maps private memory.
        offset: where in the file the region begins; a multiple of 4096.

    Attributes:
        mapping: the region; every array refers to it.
    """

    def __init__(self, num_bytes: int, fd: int | None = None, offset: int = 0) -> None:
        self.num_bytes = max(_ALIGN, -(-num_bytes // _ALIGN) * _ALIGN)
        self.shared = fd is not None
        if fd is None:
            self.mapping = mmap.mmap(-1, self.num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            end = offset + self.num_bytes
            if os.fstat(fd).st_size < end:
                os.ftruncate(fd, end)  # another process may do the same: the size is the same
            self.mapping = mmap.mmap(fd, self.num_bytes, offset=offset)
        # Random rows over 4 KiB pages are bound by TLB misses; the kernel may still decline.
        self.mapping.madvise(mmap.MADV_HUGEPAGE)
        self._used = 0

    def take(self, shape: tuple[int, ...], dtype: Any) -> AnyArray:
        """The next array, page-aligned and zero on first use.

        Raises:
            MemoryError: the arena is too small.
        """
        dtype = np.dtype(dtype)
        num_bytes = array_bytes(shape, dtype)
        if self._used + num_bytes > self.num_bytes:
            raise MemoryError(f"arena of {self.num_bytes} bytes has {self.num_bytes - self._used} left")
        count = int(np.prod(shape, dtype=np.int64))
        if count == 0:
            return np.empty(shape, dtype)
        array = np.frombuffer(self.mapping, dtype, count, self._used).reshape(shape)
        self._used += num_bytes
        return array


def array_bytes(shape: tuple[int, ...], dtype: Any) -> int:
    """Bytes that `Arena.take` uses for an array."""
    size: int = int(np.prod(shape, dtype=np.int64)) * int(np.dtype(dtype).itemsize)
    return -(-size // _ALIGN) * _ALIGN
