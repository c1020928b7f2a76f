"""Final rows that need not be computed: which of a table file are still good, and answers out of them.

What a node's final state is hangs on the model, the graph and the node alone (keyed sampling): a row
computed a day ago is the row that would be computed now, unless something below it has changed. Nodes that
the file does not have, rows that have changed and rows that are too old are computed as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopline.artifact import ModelSpec
from hopline.engine import outputs as out_of
from hopline.engine.table_file.header import Strip
from hopline.engine.table_file.hot import HotRows
from hopline.engine.table_file.reader import TableFile
from hopline.engine.table_file.residency import Residency
from hopline.types import AnyArray, FloatArray, IdArray

#: Global ids -> which of their rows are what would be computed now: int64 [n] -> bool [n].
Unchanged = Callable[[IdArray], NDArray[np.bool_]]

#: What became of rows that were asked for, as the metrics call it.
FOUND, NEW, ABSENT, EXPIRED, CHANGED = "looked_up", "new", "absent", "expired", "changed"
OUTCOMES = (FOUND, NEW, ABSENT, EXPIRED, CHANGED)


class Cold(NamedTuple):
    """Rows that a disk has to be asked for before they can be read without waiting."""

    residency: Residency
    strips: tuple[Strip, ...]
    ids: IdArray

    def bring(self) -> None:
        """Read them; for a thread."""
        self.residency.bring(self.strips, self.ids)


class FinalRows:
    """The final rows of one node type.

    Args:
        file: of this model.
        spec: the model.
        ttl_s: rows older than this are computed; 0 for any age.
        is_stale: the rows are about another graph version, and served all the same.
        rows_known: bool [N], rows that are about the node of the same number here; None for all.
        unchanged: says which rows still hold on a graph that changes; None on one that does not.
        clock_ms: ms since the epoch.

    Attributes:
        num_rows: of the file; nodes from there on are new.
        state_dim: columns of a final state.
    """

    def __init__(
        self,
        file: TableFile,
        spec: ModelSpec,
        *,
        ttl_s: float = 0.0,
        is_stale: bool = False,
        rows_known: NDArray[np.bool_] | None = None,
        unchanged: Unchanged | None = None,
        clock_ms: Callable[[], float] = lambda: time.time() * 1e3,
    ) -> None:
        self.file = file
        self.node_type = file.header.plan.node_type
        self.num_rows = file.header.plan.num_nodes
        self.is_stale = is_stale
        self.unchanged = unchanged
        self._ttl_ms = ttl_s * 1e3
        self._clock_ms = clock_ms
        self._rows_known = rows_known
        self._hot: HotRows | None = None
        self._stamp = file.stamp
        self._state = file.state
        self._logits = file.state if file.logits is None else file.logits
        self.state_dim = self._state.shape[1]
        self._task = spec.task
        self._has_head = spec.head.kind == "node"
        self._embedding = spec.head.embedding or (0, self._state.shape[1])
        self.residency = Residency(file.pages)
        strips = {name: Strip.of(section) for name, section in file.sections.items()}
        state, logits = strips["state"], strips.get("logits", strips["state"])
        self._of_logits: tuple[Strip, ...] = (strips["stamp"], logits)
        self._of_states: tuple[Strip, ...] = (strips["stamp"], state)
        self._of_all: tuple[Strip, ...] = tuple({strips["stamp"]: 0, state: 0, logits: 0})

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

    def holds(self, row: int) -> bool:
        """Whether one row, at least 0, is good; where it is not, `good` says why."""
        if row >= self.num_rows:
            return False
        stamp = self._stamp[row] if self._hot is None else self._hot.row(self._stamp, row)[0]
        if stamp == 0 or (self._ttl_ms and stamp < self._clock_ms() - self._ttl_ms):
            return False
        if self._rows_known is not None and not self._rows_known[row]:
            return False
        return self.unchanged is None or bool(self.unchanged(np.array((row,), np.int64))[0])

    def good(self, ids: IdArray, counts: dict[str, int] | None = None) -> NDArray[np.bool_]:
        """Which rows need not be computed.

        Args:
            ids: int64 [n], at least 0.
            counts: by outcome; has n added.
        Returns: bool [n].
        """
        n = ids.shape[0]
        inside = ids < self.num_rows
        stamps = (
            self._take(self._stamp, np.where(inside, ids, 0)) if self.num_rows else np.zeros(n, np.int64)
        )
        good: NDArray[np.bool_] = inside & (stamps != 0)
        if self._rows_known is not None:
            good[good] = self._rows_known[ids[good]]
        num_inside, num_there = int(np.count_nonzero(inside)), int(np.count_nonzero(good))
        if self._ttl_ms:
            good &= stamps >= self._clock_ms() - self._ttl_ms
        num_young = int(np.count_nonzero(good))
        if self.unchanged is not None and num_young:
            good[good] = self.unchanged(ids[good])
        if counts is not None:
            num_good = int(np.count_nonzero(good))
            counts[FOUND] += num_good
            counts[NEW] += n - num_inside
            counts[ABSENT] += num_inside - num_there
            counts[EXPIRED] += num_there - num_young
            counts[CHANGED] += num_young - num_good
        return good

    def states(self, ids: IdArray) -> FloatArray:
        """Final states float32 [n, d] of rows that are good."""
        found: FloatArray = self._take(self._state, ids)
        return found

    def outputs(self, names: Sequence[str], ids: IdArray | slice) -> dict[str, AnyArray]:
        """Named outputs of rows that are good, as `Model.outputs` would have them; for node heads.

        Args:
            ids: int64 [n], or the range of one row.
        """
        assert self._has_head
        a, b = self._embedding
        states = self._take(self._state, ids)[:, a:b] if "embedding" in names else self._state[:0]
        return out_of.named_outputs(names, self._task, states, lambda: self._take(self._logits, ids))

    def _take(self, array: AnyArray, ids: IdArray | slice) -> AnyArray:
        if self._hot is None:
            found: AnyArray = array[ids]
            return found
        return self._hot.row(array, ids.start) if isinstance(ids, slice) else self._hot.take(array, ids)


def no_counts() -> dict[str, int]:
    """Counts by outcome, all 0."""
    return dict.fromkeys(OUTCOMES, 0)
