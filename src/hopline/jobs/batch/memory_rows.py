"""Rows of one (level, node type) in memory, in place of their file until a checkpoint writes it.

A run that ends before its first checkpoint writes no states at all: that halves its work apart from
computing. Reading is faster, too, from huge pages.
"""

from __future__ import annotations

import numpy as np

from hopline.engine.kernels import gather
from hopline.jobs.batch.spans import Span
from hopline.jobs.batch.states import RowFile
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
