"""Copies of the most requested rows of a precomputed file, in memory of this process.

Such rows are scattered over the file: locking their pages would need a page for each row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hopline.engine.precomputed_file.header import Strip
from hopline.engine.precomputed_file.reader import PrecomputedFile
from hopline.types import AnyArray, IdArray

_NO_SLOT = -1


class HotRows:
    """Copies of rows of a precomputed file.

    Args:
        file: whose rows these are.
        rows: int64 [n], distinct, most requested first.
        num_bytes: for the copies; rows that do not fit stay in the file.

    Attributes:
        slots: int32 [N], place of each row's copy, or -1.
    """

    def __init__(self, file: PrecomputedFile, rows: IdArray, num_bytes: int) -> None:
        row_bytes = sum(Strip.of(section).width for name, section in file.sections.items() if name != "ids")
        left = num_bytes - 4 * file.header.plan.num_nodes
        rows = rows[: max(0, left // row_bytes)]
        self.slots: NDArray[np.int32] = np.full(file.header.plan.num_nodes, _NO_SLOT, np.int32)
        self.slots[rows] = np.arange(rows.shape[0], dtype=np.int32)
        self._copies: dict[int, AnyArray] = {
            id(array): array[rows]
            for array in (file.state, file.logits, file.computed_at)
            if array is not None
        }

    def __len__(self) -> int:
        return int(np.count_nonzero(self.slots >= 0))

    def take(self, array: AnyArray, ids: IdArray) -> AnyArray:
        """Rows of an array of the file: `array[ids]`, from copies where they exist."""
        slots = self.slots[ids]
        hot = slots >= 0
        copies = self._copies[id(array)]
        if hot.all():
            found: AnyArray = copies[slots]
            return found
        out = np.empty((ids.shape[0], *array.shape[1:]), array.dtype)
        out[hot] = copies[slots[hot]]
        out[~hot] = array[ids[~hot]]
        return out

    def row(self, array: AnyArray, row: int) -> AnyArray:
        """One row [1, …] of an array of the file, a view."""
        slot = int(self.slots[row])
        found: AnyArray = array[row : row + 1] if slot < 0 else self._copies[id(array)][slot : slot + 1]
        return found

    def cold(self, ids: IdArray) -> IdArray:
        """The ids that have no copy."""
        left: IdArray = ids[self.slots[ids] < 0]
        return left
