"""Changes the lists of one edge type, or of the rows that nodes had; holds what only the writer needs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hopline.graph.extent import DEGREE, START
from hopline.graph.history import History, find_rows
from hopline.graph.live import lists, pool
from hopline.graph.live.checked import Edge, EdgeRows
from hopline.graph.live.columns import ColumnWriter
from hopline.graph.live.ids import LiveIds
from hopline.graph.live.memory import NO_TIME, EdgeMemory
from hopline.graph.live.plan import EdgeRoom
from hopline.graph.parts import Adjacency
from hopline.graph.schema import ColumnSchema
from hopline.kernels.jit import njit
from hopline.types import ContextId, IdArray


@njit(nogil=True, cache=True)
def _in_use(heads, records, capacities, base, begins, sizes):  # type: ignore[no-untyped-def]
    """Room of the newest lists, as far as it is known; returns how many lists have room."""
    count = 0
    for v in range(heads.shape[0]):
        at = heads[v]
        if at < 0:
            continue
        start, degree = records[at, START], records[at, DEGREE]
        if degree == 0:
            size = 0  # empty lists at the end of a snapshot begin where the room of other lists begins
        else:
            size = degree if start < base else pool.capacity_of(degree)
        capacities[at] = size
        if size > 0:
            begins[count] = start
            sizes[count] = size
            count += 1
    return count


#: No version is later.
_NEWEST = 1 << 62


def find_by_ids(
    memory: EdgeMemory, room: EdgeRoom, texts: LiveIds | None, ids: Sequence[ContextId], version: int
) -> tuple[IdArray, IdArray]:
    """Positions and destinations of edges by their ids, int64 [n] each; -1 for unknown ids.

    An id that another edge of a later version took over is unknown to readers of earlier ones.
    """
    assert texts is not None  # a column of texts
    places = texts.lookup([str(each) for each in ids])
    found, owners = np.empty_like(places), np.empty_like(places)
    rows = memory.attr, memory.cells, room.id_column, memory.owners
    lists.find_ids(memory.heads, memory.records, *rows, places, version, found, owners)
    return found, owners


class EdgeWriter(ColumnWriter):
    """Writes the lists of one edge type, and the rows of its columns."""

    def __init__(
        self, memory: EdgeMemory, room: EdgeRoom, columns: Sequence[ColumnSchema], oldest: Callable[[], int]
    ) -> None:
        super().__init__(memory, columns, self._mark_rows, oldest)
        self.memory = memory
        self._room = room
        num_records = memory.records.shape[0]
        self._capacities = np.zeros(num_records, np.int64)
        self._free_records = np.empty(num_records, np.int64)
        self._pool = np.zeros(pool.STATE_SIZE, np.int64)
        self._counters = np.zeros(lists.NUM_COUNTERS, np.int64)
        #: (version that replaced them, rows of `lists.RECORD` … ), in order.
        self._retired: deque[tuple[int, IdArray]] = deque()

    def fill(self, adjacency: Adjacency, version: int, turned: Adjacency | None = None) -> None:
        """Load the lists of a snapshot.

        Args:
            turned: the edges whose rows these have, if they are against their direction.
        """
        memory, count, num_nodes = self.memory, adjacency.num_edges, len(adjacency.indptr) - 1
        memory.indices[:count] = adjacency.indices
        if adjacency.time is not None:
            memory.time[:count] = adjacency.time
        if adjacency.weight is not None and adjacency.cumweight is not None:
            memory.weight[:count] = adjacency.weight
            memory.cumweight[:count] = adjacency.cumweight
        if adjacency.attr is not None:
            memory.attr[:count] = adjacency.attr
        if self._room.rows_of:
            memory.attr[:count, 0] = np.arange(count) if turned is None else turned.reverse_order()
            memory.since[:count] = version
        self.load(adjacency.columns)
        lists.fill(adjacency.indptr, memory.heads, memory.records, self._capacities, num_nodes, version)
        self.attach(version)

    def attach(self, version: int) -> None:
        """Load the lists in the memory as of a version: drop later versions, compute the room again.

        Earlier versions must have no active readers.
        """
        memory, counters = self.memory, self._counters
        lists.undo(memory.heads, memory.records, version)
        self._retired.clear()
        size = memory.heads.shape[0]
        begins, sizes = np.empty(size, np.int64), np.empty(size, np.int64)
        base = self._room.base
        count = _in_use(memory.heads, memory.records, self._capacities, base, begins, sizes)
        order = np.argsort(begins[:count], kind="stable")
        begins, sizes = begins[order], sizes[order]
        ends = begins + sizes
        first = int(max(base, ends.max(initial=0)))
        self._pool[:] = 0
        self._pool[pool.BUMP], self._pool[pool.END] = first, self._room.positions
        self._pool[pool.IN_USE] = int(sizes.sum())
        previous = np.concatenate([[0], np.maximum.accumulate(ends)])[:-1] if count else begins
        gaps = np.flatnonzero(begins - previous >= 4)
        for at in gaps.tolist():
            gap = int(begins[at] - previous[at])
            self._pool[pool.IN_USE] += gap
            pool.free(self._pool, memory.indices, int(previous[at]), gap)
        used = np.zeros(memory.records.shape[0], bool)
        used[memory.heads[memory.heads >= 0]] = True
        free = np.flatnonzero(~used)[::-1]
        self._free_records[: len(free)] = free
        counters[lists.FREE] = len(free)
        self.find_free(version)
        if (column := self._room.id_column) >= 0:
            rows = memory.attr, memory.cells, column, memory.owners
            lists.mark_owners(memory.heads, memory.records, *rows)
        degrees = memory.records[memory.heads[memory.heads >= 0], DEGREE]
        counters[lists.NUM_EDGES] = int(degrees.sum())
        counters[lists.MAX_DEGREE] = int(degrees.max(initial=0))

    def apply(self, rows: EdgeRows, version: int) -> tuple[IdArray, IdArray] | None:
        """Write the changes of a batch as of `version`, which has no readers yet.

        Returns: destinations whose lists changed, and the `order` of removals that met no edge; None
            if there is no room: `attach` drops what was written.
        """
        if not self._put_rows(rows, version):
            return None
        attr = rows.slots[rows.add_attr] if self._room.rows_of else rows.add_attr
        most = len(rows.add_dst) + len(rows.del_dst)
        touched = np.empty(most, np.int64)
        retired = np.empty((most, 3), np.int64)
        found = np.zeros(len(rows.del_dst), bool)
        memory, counters = self.memory, self._counters
        done = lists.merge(
            memory.heads, memory.records, memory.indices, memory.time, memory.weight, memory.cumweight,
            memory.attr, self._capacities, self._pool, self._free_records,
            rows.add_dst, rows.add_src, rows.add_time, rows.add_weight, attr, rows.add_order,
            rows.del_dst, rows.del_src, rows.del_time, rows.del_has_time, rows.del_order,
            version, found, touched, retired, counters,
        )  # fmt: skip
        if not done:
            return None
        if counters[lists.RETIRED]:
            self._retired.append((version, retired[: counters[lists.RETIRED]]))
        return touched[: counters[lists.TOUCHED]], rows.del_order[~found]

    def _put_rows(self, rows: EdgeRows, version: int) -> bool:
        """Write the rows of added edges, and set their slots; False if there is no room."""
        if not self._room.rows or not len(rows.add_dst):
            return True
        places = np.unique(rows.add_attr)
        slots = self.write(rows.cells[places], rows.texts[places], version)
        if slots is None:
            return False
        rows.slots[places] = slots
        if (column := self._room.id_column) >= 0:
            by = np.argsort(rows.add_order)  # of an id that is freed and taken again, the last edge stays
            ids = self.memory.cells[rows.slots[rows.add_attr[by, 0]], column]
            self.memory.owners[ids.astype(np.int64)] = rows.add_dst[by]
        return True

    def with_ids(self, ids: Sequence[str]) -> dict[str, Edge]:
        """The edges that have some of these ids, by id, in the newest version that was prepared."""
        memory, found = self.memory, {}
        positions, owners = find_by_ids(memory, self._room, self._texts, ids, _NEWEST)
        for name, at, owner in zip(ids, positions.tolist(), owners.tolist(), strict=True):
            if at >= 0:
                time = int(memory.time[at]) if self._room.has_time else 0
                found[name] = Edge(-1, int(memory.indices[at]), owner, time)
        return found

    def _mark_rows(self, oldest: int, used: NDArray[np.uint8]) -> None:
        lists.mark_rows(self.memory.heads, self.memory.records, self.memory.attr, oldest, used)

    def release(self, oldest: int) -> None:
        """Reuse room that was replaced at or before the oldest version that is read."""
        memory = self.memory
        while self._retired and self._retired[0][0] <= oldest:
            _, retired = self._retired.popleft()
            lists.release(
                retired, memory.records, memory.indices, self._pool, self._free_records, self._counters
            )

    def edges_of(self, rows: IdArray) -> tuple[IdArray, IdArray]:
        """The edges into destinations, int64 [n]: sources and destinations, int64 each."""
        memory, heads = self.memory, self.memory.heads[rows]
        listed = memory.records[heads[heads >= 0]]
        counts = listed[:, DEGREE]
        places = np.repeat(listed[:, START] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        return memory.indices[places].astype(np.int64), np.repeat(rows[heads >= 0], counts)

    def latest(self, rows: IdArray | None = None) -> int:
        """The latest time into destinations int64 [n], or into all; `NO_TIME` for none."""
        memory = self.memory
        heads = memory.heads if rows is None else memory.heads[rows]
        listed = memory.records[heads[heads >= 0]]
        ends = listed[listed[:, DEGREE] > 0][:, [START, DEGREE]].sum(axis=1) - 1  # lists are sorted by time
        return int(memory.time[ends].max(initial=NO_TIME)) if len(memory.time) else NO_TIME

    @property
    def num_edges(self) -> int:
        """Of the newest version."""
        return int(self._counters[lists.NUM_EDGES])

    @property
    def filled(self) -> float:
        """Share of the room that is in use, 0 to 1."""
        positions = self._pool[pool.IN_USE] / max(1, self._room.positions)
        records = 1 - self._counters[lists.FREE] / max(1, self.memory.records.shape[0])
        return float(max(positions, records, self.num_edges / (self._room.rows or self._room.positions)))


class HistoryWriter(EdgeWriter):
    """Writes which rows the nodes of a type had: a list for each node, slots of its rows by their times."""

    def begin(self, past: History, version: int) -> None:
        """Load the lists of a snapshot, whose rows have the first slots."""
        name, slots = self._room.src, np.arange(len(past.times), dtype=np.int32)
        found = Adjacency(name, "", name, past.offsets, slots, past.times, None, None, None, False, 0)
        self.fill(found, version)

    def first_times(self, ids: IdArray) -> IdArray:
        """Times int64 [n] of the first rows of nodes that have one."""
        found: IdArray = self.memory.time[self.memory.records[self.memory.heads[ids], START]]
        return found

    def put(
        self, ids: IdArray, times: IdArray, slots: IdArray, removed: IdArray, version: int
    ) -> NDArray[np.bool_] | None:
        """Add rows, in place of those of the same times.

        Args:
            ids, times, slots: int64 [n], sorted and distinct; one of each removed node, its only one then.

        Returns: bool [n], which are the newest rows of their nodes; None if there is no room.
        """
        memory = self.memory
        known = memory.heads[ids] >= 0
        ends = memory.records[memory.heads[ids]][:, [START, DEGREE]].sum(axis=1) - 1
        newest = ~known | np.isin(ids, removed) | (times >= memory.time[np.where(known, ends, 0)])
        found = np.empty(len(ids), np.int64)
        find_rows(memory.heads, memory.records, version, memory.time, ids, times, found)
        same = (found >= 0) & (memory.time[found] == times)
        replaced, owners = self.edges_of(np.unique(removed))
        src, dst = np.append(replaced, memory.indices[found[same]]), np.append(owners, ids[same])
        by, none = np.lexsort((src, dst)), np.zeros(len(src), np.int64)
        nothing = np.empty((len(ids), 0), np.float32)
        rows = EdgeRows(
            ids, slots, times, np.empty(0, np.float32), nothing, np.zeros(len(ids), np.int64),
            dst[by], src[by], none, none != 0, none, nothing, nothing, np.empty(0, np.int32),
        )  # fmt: skip
        if self.apply(rows, version) is None:
            return None
        newest[:-1] &= ids[1:] != ids[:-1]
        return newest
