"""Rows of one (level, node type): the `.npy` files that a run computes, a graph's features, rows in memory.

Files are written with pwrite, never through a mapping: a full disk is then an error instead of a crash of
the process, and written pages do not count as memory of the process.

Rows may stay in memory, in place of their file, until a checkpoint writes it. A run that ends before its
first checkpoint writes no states at all: that halves its work apart from computing. Reading is faster, too,
from huge pages.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np

from hopline.engine.kernels import gather
from hopline.errors import BatchError
from hopline.graph.schema import quoted
from hopline.jobs.batch.spans import Span
from hopline.sampling.keyed import frozen
from hopline.types import FloatArray, IdArray


class MemoryRows:
    """As `RowFile`, of rows that a run computes.

    Args:
        num_rows, dim: its shape.

    Attributes:
        array: float32 [N, d], read-only.
        row_bytes: of one row.
    """

    def __init__(self, num_rows: int, dim: int) -> None:
        # NumPy asks for huge pages itself where an array is large.
        self._rows: FloatArray = np.empty((num_rows, dim), np.float32)
        self.array: FloatArray = frozen(self._rows)
        self.row_bytes = 4 * dim

    def part(self, begin: int, end: int) -> FloatArray:
        """Rows [begin, end), to be filled in place."""
        return self._rows[begin:end]

    def write(self, ids: IdArray, rows: FloatArray) -> None:
        """Put rows: float32 [n, d] at ids int64 [n]."""
        self._rows[ids] = rows

    def read(self, ids: IdArray, out: FloatArray) -> None:
        """Copy rows of ids int64 [n] into out[:n]."""
        if out.size:
            gather(self.array, ids, 0, out.shape[1], out[: ids.shape[0]], 0)

    def save(self, file: RowFile, spans: list[Span]) -> None:
        """Write spans into a file of the same shape.

        Raises:
            BatchError: the disk is full.
        """
        for begin, end in spans:
            file.write_range(begin, self._rows[begin:end])

    def close(self) -> None:
        """Do nothing: the memory is released with its last reader."""


#: Bytes of one read when rows are read in file order; a longer gap begins another read.
_WINDOW_BYTES, _GAP_BYTES = 1 << 20, 32 << 10
#: Bytes of one write: the system accepts 2 GiB at most.
_WRITE_BYTES = 1 << 30


def state_path(work: Path, level: int, node_type: str) -> Path:
    """The file of the rows of a level."""
    return work / "states" / f"{level}.{quoted(node_type)}.npy"


def create(path: Path, num_rows: int, dim: int, *, sparse: bool = False) -> None:
    """Create a file of zero rows.

    Args:
        sparse: only few rows will be written; else all of the disk space is allocated now.

    Raises:
        BatchError: the disk is full, or the folder cannot be written.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, dim)}
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            size = file.tell() + 4 * num_rows * dim
            os.ftruncate(file.fileno(), size)
            if not sparse:
                os.posix_fallocate(file.fileno(), 0, size)


def rows_of(path: Path) -> tuple[int, int]:
    """(rows, columns) of a file of rows."""
    return _header(path)[0]


def _header(path: Path) -> tuple[tuple[int, int], int]:
    """The shape of a `.npy` file of float32 rows, and the offset at which they begin."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        assert version == (1, 0)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype != np.float32 or len(shape) != 2:
            raise BatchError(f"{path} holds {dtype} {list(shape)}; expected float32 rows")
        return (shape[0], shape[1]), file.tell()


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Convert disk failures to errors that say what they mean for the run.

    Raises:
        BatchError: instead of OSError.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise BatchError(
                f"the disk of {path.parent} is full; finished work is kept: free some space and "
                "start the same command again to resume"
            ) from error
        raise BatchError(f"{path} cannot be written: {error.strerror or error}") from error


class RowFile:
    """A float32 `.npy` file of rows, mapped for reading.

    Attributes:
        array: float32 [N, d], read-only.
    """

    def __init__(self, path: Path, *, writable: bool = False) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        shape, self._offset = _header(path)
        empty = shape[0] == 0 or shape[1] == 0
        mapped = np.empty(shape, np.float32) if empty else np.load(path, mmap_mode="r")
        self.array: FloatArray = frozen(mapped)
        self.row_bytes = 4 * shape[1]

    def write(self, ids: IdArray, rows: FloatArray) -> None:
        """Write rows: float32 [n, d] at ids int64 [n], ascending.

        Raises:
            BatchError: the disk is full.
        """
        ends = [0, *(np.flatnonzero(np.diff(ids) != 1) + 1).tolist(), ids.shape[0]]
        for a, b in pairwise(ends):
            if b > a:
                self.write_range(int(ids[a]), rows[a:b])

    def write_range(self, first: int, rows: FloatArray) -> None:
        """Write rows float32 [n, d], C-contiguous, from row `first` on.

        Raises:
            BatchError: the disk is full.
        """
        view = rows.data.cast("B") if rows.size else memoryview(b"")
        at = self._offset + first * self.row_bytes
        with disk_errors(self.path):
            while len(view):
                done = os.pwrite(self._fd, view[:_WRITE_BYTES], at)
                view, at = view[done:], at + done

    def read(self, ids: IdArray, out: FloatArray) -> None:
        """Read rows, each page of the file at most once and in order.

        Args:
            ids: int64 [n], distinct, any order. out: float32 [>= n, d]; row i is of ids[i].
        """
        if not ids.shape[0] or not self.row_bytes:
            return
        order = np.argsort(ids, kind="stable")
        ranked = ids[order]
        window = max(1, _WINDOW_BYTES // self.row_bytes)
        far = np.diff(ranked) * self.row_bytes > _GAP_BYTES
        starts = [0, *(np.flatnonzero(far | (np.diff(ranked // window) != 0)) + 1).tolist()]
        scratch = np.empty((window, out.shape[1]), np.float32)
        for a, b in pairwise([*starts, ids.shape[0]]):
            first, last = int(ranked[a]), int(ranked[b - 1]) + 1
            self.read_range(first, last, scratch)
            out[order[a:b]] = scratch[ranked[a:b] - first]

    def read_range(self, first: int, last: int, out: FloatArray) -> None:
        """Read rows [first, last) into out[: last - first]."""
        view = memoryview(b"")
        if last > first and self.row_bytes:
            view = out[: last - first].data.cast("B")
        at = self._offset + first * self.row_bytes
        while len(view):
            done = os.preadv(self._fd, [view], at)
            if not done:
                raise BatchError(f"{self.path} is shorter than its header states; start with --restart")
            view, at = view[done:], at + done

    def sync(self) -> None:
        """Sync written rows to the disk."""
        with disk_errors(self.path):
            os.fdatasync(self._fd)

    def close(self) -> None:
        """Close the file; the mapping is released with the array."""
        os.close(self._fd)
