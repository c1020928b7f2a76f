"""Precomputed final rows: which rows of a precomputed file are still valid, and the answers from them.

What a node's final state is hangs on the model, the graph and the node alone (keyed sampling): a row
computed a day ago is the row that would be computed now, unless something below it has changed. Nodes that
the file does not have, rows that have changed and rows that are too old are computed as ever.
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
    """Rows that a disk has to be asked for before they can be read without waiting."""

    residency: Residency
    strips: tuple[Strip, ...]
    ids: IdArray

    def read_ahead(self) -> None:
        """Read them; for a thread."""
        self.residency.read_ahead(self.strips, self.ids)


class FinalRows(PrecomputedRows):
    """The precomputed rows of one node type in a server: kept in memory, or read on a thread.

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
        """See that rows never wait for a disk.

        Args:
            num_bytes: for that.
            hot: which rows, the most asked for first: they are copied; None locks the whole file.

        Returns: whether that could be done; the kernel may forbid to lock.
        """
        if hot is None:
            return self.residency.lock()
        self._hot = HotRows(self.file, hot, num_bytes)
        return True

    def near_row(self, names: Sequence[str], row: int, now: float) -> bool:
        """Whether one row can be read for these outputs without waiting for a disk; see `Residency`."""
        if self._hot is not None and self._hot.slots[row] >= 0:
            return True
        return self.residency.near_row(self._strips(names), row, now)

    def cold(self, names: Sequence[str], ids: IdArray, now: float) -> Cold | None:
        """What of some rows a disk has to be asked for; None where there is nothing.

        Args:
            ids: int64 [n]; those that the file does not have count as being there.
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
        """What is read of the file for these outputs."""
        if "embedding" not in names:
            return self._of_logits
        return self._of_states if len(names) == 1 else self._of_all

    def outputs(self, names: Sequence[str], ids: IdArray | slice) -> dict[str, AnyArray]:
        """Named outputs of rows that are good, as `Model.outputs` would have them; for node heads.

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
