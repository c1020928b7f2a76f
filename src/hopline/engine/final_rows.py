"""Precomputed final rows: which rows of a precomputed file are still valid, and the answers from them.

The final state of a node depends only on the model, the graph and the node (keyed sampling). A row that was
computed a day ago equals the row that would be computed now, unless something that it depends on has
changed. Nodes that are not in the file, changed rows and rows that are too old are computed as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hopline.artifact import ModelSpec
from hopline.engine import outputs as out_of
from hopline.engine.precomputed import PrecomputedRows
from hopline.engine.precomputed_file.header import Strip
from hopline.engine.precomputed_file.hot import HotRows
from hopline.engine.precomputed_file.reader import PrecomputedFile
from hopline.engine.precomputed_file.residency import Residency
from hopline.types import AnyArray, IdArray


class Cold(NamedTuple):
    """Rows that must be read from a disk first."""

    residency: Residency
    strips: tuple[Strip, ...]
    ids: IdArray

    def read_ahead(self) -> None:
        """Read the rows into memory; blocks, so call it on a thread."""
        self.residency.read_ahead(self.strips, self.ids)


class FinalRows(PrecomputedRows):
    """The precomputed rows of one node type in a server: pinned in memory, or read on a thread.

    Args:
        file, spec, options: as for `PrecomputedRows`.
    """

    def __init__(self, file: PrecomputedFile, spec: ModelSpec, **options: Any) -> None:
        super().__init__(file, spec, **options)
        self._hot: HotRows | None = None
        self._task = spec.task
        self._has_head = spec.head.kind == "node"
        self.residency = Residency(file.pages)
        strips = {name: Strip.of(section) for name, section in file.sections.items()}
        state, logits = strips["state"], strips.get("logits", strips["state"])
        self._of_logits: tuple[Strip, ...] = (strips["computed_at"], logits)
        self._of_states: tuple[Strip, ...] = (strips["computed_at"], state)
        self._of_all: tuple[Strip, ...] = tuple({strips["computed_at"]: 0, state: 0, logits: 0})

    def pin(self, num_bytes: int, hot: IdArray | None) -> bool:
        """Keep rows in memory, so that reading them never waits for a disk.

        Args:
            num_bytes: memory for the rows.
            hot: the rows to copy, most requested first; None locks the whole file.

        Returns: whether the rows are pinned; the kernel may forbid locking.
        """
        if hot is None:
            return self.residency.lock()
        self._hot = HotRows(self.file, hot, num_bytes)
        return True

    def near_row(self, names: Sequence[str], row: int, now: float) -> bool:
        """True if one row can be read for these outputs without waiting for a disk; see `Residency`."""
        if self._hot is not None and self._hot.slots[row] >= 0:
            return True
        return self.residency.near_row(self._strips(names), row, now)

    def cold(self, names: Sequence[str], ids: IdArray, now: float) -> Cold | None:
        """The rows that must be read from a disk first, for these outputs; None if there are none.

        Args:
            ids: int64 [n]; ids that the file does not have count as in memory.
            now: seconds, monotonic.
        """
        if self.residency.is_locked:
            return None
        held = ids[(ids >= 0) & (ids < self.num_rows)]
        if self._hot is not None:
            held = self._hot.cold(held)
        strips = self._strips(names)
        if not held.shape[0] or self.residency.near_rows(strips, held, now):
            return None
        return Cold(self.residency, strips, held)

    def _strips(self, names: Sequence[str]) -> tuple[Strip, ...]:
        """The strips of the file that these outputs read."""
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
        return out_of.named_outputs(names, self._task, states, lambda: self.logits(ids))

    def _take(self, array: AnyArray, ids: IdArray | slice) -> AnyArray:
        if self._hot is None:
            found: AnyArray = array[ids]
            return found
        return self._hot.row(array, ids.start) if isinstance(ids, slice) else self._hot.take(array, ids)

    def _take_one(self, array: AnyArray, row: int) -> AnyArray:
        return array[row : row + 1] if self._hot is None else self._hot.row(array, row)
