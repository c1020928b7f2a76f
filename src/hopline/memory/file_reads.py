"""Reads entries of a file by number: those in the page cache without waiting, or all of them on a thread.

A map would fault: the reader waits for the disk, and on an event loop all requests wait with it. `preadv2`
with RWF_NOWAIT copies what is in the page cache and refuses what is not. On a thread, all reads are started
(`posix_fadvise`, WILLNEED) before the first one is waited for: 12 µs for each cold entry in place of 143
(log/). Both run compiled, without the GIL.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hopline.kernels.jit import njit
from hopline.types import AnyArray, IdArray

#: Linux: fail with EAGAIN rather than wait for a disk.
NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_WILLNEED = 3
_I32, _I64 = ir.IntType(32), ir.IntType(64)


@intrinsic
def preadv2(typingctx: Any, fd: Any, vector: Any, offset: Any, flags: Any) -> Any:
    """preadv2(fd, vector, 1, offset, flags) of libc; bytes read, negative for an error."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I64, [_I32, cgutils.voidptr_t, _I32, _I64, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "preadv2")
        where = builder.inttoptr(args[1], cgutils.voidptr_t)
        file, flag = builder.trunc(args[0], _I32), builder.trunc(args[3], _I32)
        return builder.call(function, [file, where, ir.Constant(_I32, 1), args[2], flag])

    return types.int64(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def _read_ahead(typingctx: Any, fd: Any, offset: Any, length: Any) -> Any:
    """posix_fadvise(fd, offset, length, WILLNEED) of libc."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_I32, [_I32, _I64, _I64, _I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "posix_fadvise")
        file = builder.trunc(args[0], _I32)
        builder.call(function, [file, args[1], args[2], ir.Constant(_I32, _WILLNEED)])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


class EntryFile:
    """Entries of equal size in a file.

    Args:
        path: of the file.
        begin: where the first entry begins, bytes.
        dtype: of an entry's values. width: values of an entry; 0 for one value without a further axis.
    """

    def __init__(self, path: Path, begin: int, dtype: Any, width: int = 0) -> None:
        self.path = path
        self.dtype = np.dtype(dtype)
        self.begin = begin
        self._shape = (width,) if width else ()
        self.entry_bytes = self.dtype.itemsize * max(1, width)
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        #: Closes the file, as the collector would.
        self.close = weakref.finalize(self, os.close, self.fd)
        # Entries are scattered: reading the pages around them would fill memory with what no request needs.
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)

    def read_now(self, entries: IdArray) -> tuple[AnyArray, IdArray]:
        """Read what is in memory.

        Args:
            entries: int64 [n], numbers of entries.

        Returns: [n, …], and int64 [m] rows of it that would have had to wait, which are undefined.
        """
        values = np.empty((entries.shape[0], *self._shape), self.dtype)
        if not NOWAIT:
            return values, np.arange(entries.shape[0])
        return values, self._read(entries, values, NOWAIT)

    def read(self, entries: IdArray) -> AnyArray:
        """Read entries, from the disk if need be; call it on a thread.

        Raises: OSError: some cannot be read.
        """
        values = np.empty((entries.shape[0], *self._shape), self.dtype)
        _start_reads(self.fd, self.begin, self.entry_bytes, entries)
        lost = self._read(entries, values, 0)
        for row in lost.tolist():  # interrupted, or the file is cut: a second try says which
            offset = self.begin + int(entries[row]) * self.entry_bytes
            content = os.pread(self.fd, self.entry_bytes, offset)
            if len(content) != self.entry_bytes:
                raise OSError(f"{self.path} ends before entry {int(entries[row])}")
            values[row] = np.frombuffer(content, self.dtype).reshape(self._shape)
        return values

    def _read(self, entries: IdArray, values: AnyArray, flags: int) -> IdArray:
        lost = np.empty(entries.shape[0], np.int64)
        raw = values.view(np.uint8).reshape(-1)
        count = _read_runs(self.fd, self.begin, self.entry_bytes, entries, raw, flags, lost)
        return lost[:count]


@njit(cache=True, nogil=True)
def _run_end(entries: Any, first: Any) -> Any:
    """The end of the run of consecutive entries that begins at `first`."""
    last = first + 1
    while last < entries.shape[0] and entries[last] == entries[last - 1] + 1:
        last += 1
    return last


@njit(cache=True, nogil=True)
def _read_runs(fd: Any, begin: Any, entry_bytes: Any, entries: Any, out: Any, flags: Any, lost: Any) -> Any:
    """Read each run of consecutive entries by one call; returns how many rows are in `lost`."""
    vector = np.empty(2, np.int64)
    count = 0
    at = 0
    while at < entries.shape[0]:
        end = _run_end(entries, at)
        vector[0] = out.ctypes.data + at * entry_bytes
        vector[1] = (end - at) * entry_bytes
        got = preadv2(fd, vector.ctypes.data, begin + entries[at] * entry_bytes, flags)
        whole = at + max(got, 0) // entry_bytes
        for row in range(whole, end):
            lost[count] = row
            count += 1
        at = end
    return count


@njit(cache=True, nogil=True)
def _start_reads(fd: Any, begin: Any, entry_bytes: Any, entries: Any) -> Any:
    """Start to read each run."""
    at = 0
    while at < entries.shape[0]:
        end = _run_end(entries, at)
        _read_ahead(fd, begin + entries[at] * entry_bytes, (end - at) * entry_bytes)
        at = end
