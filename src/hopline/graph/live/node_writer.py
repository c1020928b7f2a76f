"""Adds the nodes of one type and sets their feature rows; holds the data that only the writer needs."""

from __future__ import annotations

from collections import deque

import numpy as np

from hopline.graph.live import rows
from hopline.graph.live.check import NodeRows
from hopline.graph.live.ids import LiveIds
from hopline.graph.live.memory import NodeMemory
from hopline.graph.parts import Nodes
from hopline.types import IdArray


class NodeWriter:
    """Writes the nodes of one type.

    Args:
        memory: of the node type.
        ids: of the newest version.
    """

    def __init__(self, memory: NodeMemory, ids: LiveIds) -> None:
        self.memory = memory
        self.ids = ids
        num_slots = memory.rows.shape[0]
        self._free = np.empty(num_slots, np.int64)
        self._counters = np.zeros(rows.NUM_COUNTERS, np.int64)
        self._retired: deque[tuple[int, IdArray]] = deque()

    def fill(self, nodes: Nodes, version: int) -> None:
        """Load the rows of a snapshot."""
        memory, count = self.memory, nodes.num_nodes
        memory.rows[:count] = nodes.features
        rows.fill(memory.heads, memory.since, memory.previous, count, version)
        memory.changed_at[:, :count] = version
        self._counters[rows.BUMP] = count

    def attach(self, version: int) -> None:
        """Load the rows in the memory, as of a version: later versions are dropped."""
        memory = self.memory
        rows.undo(memory.heads, memory.since, memory.previous, version)
        self._retired.clear()
        used = np.zeros(memory.rows.shape[0], np.uint8)
        rows.mark_used(memory.heads, used)
        bump = int(np.flatnonzero(used)[-1]) + 1 if used.any() else 0
        free = np.flatnonzero(used[:bump] == 0)
        self._free[: len(free)] = free
        self._counters[rows.BUMP], self._counters[rows.FREE] = bump, len(free)

    def apply(self, wanted: NodeRows, version: int) -> bool:
        """Write the changes of a batch as of `version`, which has no readers yet.

        Returns: False if there is no room: `attach` drops what was written.
        """
        memory = self.memory
        if self.ids.kind == "string" and wanted.added:
            needed = sum(len(str(name).encode("utf-8", "surrogatepass")) for name in wanted.added)
            if needed > self.ids.free_bytes():
                return False
        retired = np.empty(len(wanted.ids), np.int64)
        done = rows.set_rows(
            memory.heads,
            memory.rows,
            memory.since,
            memory.previous,
            wanted.ids,
            wanted.values,
            version,
            self._free,
            retired,
            self._counters,
        )
        if not done:
            return False
        if wanted.added:
            self.ids.add(wanted.added, wanted.first)
        if self._counters[rows.RETIRED]:
            self._retired.append((version, retired[: self._counters[rows.RETIRED]]))
        return True

    def release(self, oldest: int) -> None:
        """Reuse slots that were replaced at or before the oldest version that is read."""
        while self._retired and self._retired[0][0] <= oldest:
            rows.release(self._retired.popleft()[1], self._free, self._counters)

    @property
    def filled(self) -> float:
        """Share of the room for replaced rows that is in use, 0 to 1."""
        count = len(self.ids)
        replaced = self._counters[rows.BUMP] - self._counters[rows.FREE] - count
        return float(replaced / max(1, self.memory.rows.shape[0] - count))
