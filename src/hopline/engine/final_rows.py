"""Final rows that need not be computed: which of a table file are still good, and answers out of them.

What a node's final state is hangs on the model, the graph and the node alone (keyed sampling): a row
computed a day ago is the row that would be computed now, unless something below it has changed. Nodes that
the file does not have, rows that have changed and rows that are too old are computed as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hopline.artifact import ModelSpec
from hopline.engine import outputs as out_of
from hopline.engine.table_file.header import Section
from hopline.engine.table_file.reader import TableFile
from hopline.engine.table_file.residency import Residency
from hopline.types import AnyArray, FloatArray, IdArray

#: Global ids -> which of their rows are what would be computed now: int64 [n] -> bool [n].
Unchanged = Callable[[IdArray], NDArray[np.bool_]]

#: What became of rows that were asked for, as the metrics call it.
FOUND, NEW, ABSENT, EXPIRED, CHANGED = "looked_up", "new", "absent", "expired", "changed"
OUTCOMES = (FOUND, NEW, ABSENT, EXPIRED, CHANGED)


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
        self._stamp = file.stamp
        self._state = file.state
        self._logits = file.state if file.logits is None else file.logits
        self.state_dim = self._state.shape[1]
        self._task = spec.task
        self._has_head = spec.head.kind == "node"
        self._embedding = spec.head.embedding or (0, self._state.shape[1])
        self.residency = Residency(file.pages)
        sections = file.sections
        self._of_logits: tuple[Section, ...] = (
            sections["stamp"],
            sections.get("logits", sections["state"]),
        )
        self._of_states: tuple[Section, ...] = (sections["stamp"], sections["state"])
        self._of_all: tuple[Section, ...] = tuple(
            {each.name: each for each in (*self._of_states, *self._of_logits)}.values()
        )

    def sections(self, names: Sequence[str]) -> tuple[Section, ...]:
        """What is read of the file for these outputs."""
        if "embedding" not in names:
            return self._of_logits
        return self._of_states if len(names) == 1 else self._of_all

    def holds(self, row: int) -> bool:
        """Whether one row, at least 0, is good; where it is not, `good` says why."""
        if row >= self.num_rows:
            return False
        stamp = self._stamp[row]
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
        stamps = self._stamp[np.where(inside, ids, 0)] if self.num_rows else np.zeros(n, np.int64)
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
        found: FloatArray = self._state[ids]
        return found

    def outputs(self, names: Sequence[str], ids: IdArray | slice) -> dict[str, AnyArray]:
        """Named outputs of rows that are good, as `Model.outputs` would have them; for node heads.

        Args:
            ids: int64 [n], or the rows' range.
        """
        assert self._has_head
        a, b = self._embedding
        states = self._state[ids, a:b] if "embedding" in names else self._state[:0]
        return out_of.named_outputs(names, self._task, states, lambda: self._logits[ids])


def no_counts() -> dict[str, int]:
    """Counts by outcome, all 0."""
    return dict.fromkeys(OUTCOMES, 0)
