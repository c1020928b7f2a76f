"""Precomputed final rows: which rows of a precomputed file are still valid, and the answers from them.

The final state of a node depends only on the model, the graph and the node (keyed sampling). A row that was
computed a day ago equals the row that would be computed now, unless something that it depends on has
changed. Nodes that are not in the file, changed rows and rows that are too old are computed as usual.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.artifact import ModelSpec
from hopline.engine import outputs as out_of
from hopline.engine.precomputed import PrecomputedRows
from hopline.engine.precomputed_file.reader import PrecomputedFile
from hopline.engine.tasks import outputs_of
from hopline.kernels.jit import njit
from hopline.memory.file_reads import NOWAIT, EntryFile, preadv2
from hopline.types import AnyArray, IdArray

_PAGE = mmap.PAGESIZE


class _RowFile(EntryFile):
    """Knows which rows can be read without waiting, also through a map."""

    @property
    def reports_residency(self) -> bool:
        """True if the file system says what is in memory; tmpfs and some others do not."""
        try:
            return bool(NOWAIT and os.preadv(self.fd, [bytearray(1)], self.begin, NOWAIT) >= 0)
        except OSError as error:
            return error.errno == errno.EAGAIN

    def are_near(self, rows: IdArray, num_rows: int, seen: NDArray[np.uint16]) -> bool:
        """True if rows can be read without waiting.

        Args:
            rows: int64 [n], contiguous; those outside of [0, num_rows) count as near.
            seen: uint16 by page of the file, the second in which the page was in memory. It is believed for
                that second: pages that were read recently are the last that the kernel evicts.
        """
        second = int(time.monotonic()) % 65535 + 1
        place = self.fd, self.begin, self.entry_bytes
        return bool(NOWAIT and _are_near(*place, rows, num_rows, seen, second))


@njit(cache=True, nogil=True)
def _are_near(fd: Any, begin: Any, row_bytes: Any, rows: Any, num_rows: Any, seen: Any, second: Any) -> Any:
    """Read a byte of each page of each row that is not known to be in memory."""
    byte, vector = np.empty(1, np.uint8), np.empty(2, np.int64)
    vector[0], vector[1] = byte.ctypes.data, 1
    for row in rows:
        if row < 0 or row >= num_rows:
            continue
        first = begin + row * row_bytes
        for page in range(first // _PAGE, (first + row_bytes - 1) // _PAGE + 1):
            if seen[page] != second:
                if preadv2(fd, vector.ctypes.data, page * _PAGE, NOWAIT) < 1:
                    return False
                seen[page] = second
    return True


class Cold(NamedTuple):
    """Rows that must be read from a disk first."""

    files: tuple[_RowFile, ...]
    ids: IdArray

    def read_ahead(self) -> None:
        """Read the rows into memory; blocks, so call it on a thread. Raises: OSError: some cannot be."""
        for file in self.files:
            file.read(self.ids)


class FinalRows(PrecomputedRows):
    """The precomputed rows of one node type in a server: read immediately, or on a thread.

    Reading a row of the map that is not in memory is a page fault, and the reader waits (0.1 ms, sometimes
    5 ms). On an event loop all other requests wait too. So the kernel is asked first (`_RowFile`).

    Args:
        file, spec, options: as for `PrecomputedRows`.
    """

    def __init__(self, file: PrecomputedFile, spec: ModelSpec, **options: Any) -> None:
        super().__init__(file, spec, **options)
        self._offers = outputs_of(spec)
        self._has_head = spec.head.kind == "node"
        #: All rows are in memory, and need not be asked for.
        self._is_held = False
        self._seen = np.zeros(-(-file.pages.shape[0] // _PAGE), np.uint16)
        parts = {
            name: _RowFile(file.path, section.offset, section.dtype, math.prod(section.shape[1:]))
            for name, section in file.sections.items()
            if name != "ids"
        }
        state, logits = parts["state"], parts.get("logits", parts["state"])
        self._of_logits: tuple[_RowFile, ...] = (parts["computed_at"], logits)
        self._of_states: tuple[_RowFile, ...] = (parts["computed_at"], state)
        self._of_all: tuple[_RowFile, ...] = tuple(parts.values())

    def populate(self) -> None:
        """Read the whole file into memory as far as it fits; the kernel may evict it again."""
        self.file.populate()
        self._is_held = not self._of_all[0].reports_residency

    def cold(self, names: Sequence[str], ids: IdArray) -> Cold | None:
        """The rows that must be read from a disk first, for these outputs; None if there are none.

        Args:
            ids: int64 [n]; ids that the file does not have count as in memory.
        """
        if self._is_held:
            return None
        files = self._files(names)
        for file in files:
            if not file.are_near(ids, self.num_rows, self._seen):
                return Cold(files, ids[(ids >= 0) & (ids < self.num_rows)])
        return None

    def _files(self, names: Sequence[str]) -> tuple[_RowFile, ...]:
        """The parts of the file that these outputs read."""
        if "embedding" not in names:
            return self._of_logits
        return self._of_states if len(names) == 1 else self._of_all

    def outputs(self, names: Sequence[str], ids: IdArray | slice) -> dict[str, AnyArray]:
        """Named outputs of valid rows, as `Model.outputs` returns them; for node heads.

        Args:
            ids: int64 [n], or the range of one row.
        """
        assert self._has_head
        states = self.embeddings(ids) if "embedding" in names else self._state[:0]
        return out_of.named_outputs(names, self._offers, states, lambda: self.logits(ids))
