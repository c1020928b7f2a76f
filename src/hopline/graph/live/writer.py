"""Applies batches of changes to the memory of a live graph, as its only writer.

A batch is written where no reader reads (`prepare`), made durable by the caller, and then published as the
newest version in one step (`publish`). Unpublished batches can be dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hopline.graph.ids import IdIndex
from hopline.graph.live import lists, rows
from hopline.graph.live.changed_at import OutNeighbors, mark_changed
from hopline.graph.live.changes import Applied, Changes, Rejected
from hopline.graph.live.check import check
from hopline.graph.live.checked import Checked, NodeRows
from hopline.graph.live.columns import ColumnWriter
from hopline.graph.live.edge_writer import EdgeWriter, HistoryWriter
from hopline.graph.live.ids import LiveIds
from hopline.graph.live.memory import LATEST, NO_TIME, THROUGH_MS, LiveMemory, NodeMemory
from hopline.graph.live.version import NO_OFFSET, StreamOffset
from hopline.graph.parts import Nodes
from hopline.graph.schema import ColumnSchema, GraphSchema, reverse_key
from hopline.graph.snapshot import Graph
from hopline.types import IdArray


class _NodeWriter(ColumnWriter):
    """Writes the nodes of one type.

    Args:
        history: of the slots of its rows by their times; None where each node has one row.
    """

    def __init__(
        self,
        memory: NodeMemory,
        ids: LiveIds,
        columns: Sequence[ColumnSchema],
        oldest: Callable[[], int],
        history: HistoryWriter | None,
    ) -> None:
        super().__init__(memory, columns, self._mark_rows, oldest)
        self.memory = memory
        self.ids = ids
        self.history = history
        self._last_at = np.empty(memory.heads.shape[0], np.int64)

    def fill(self, nodes: Nodes, version: int) -> None:
        """Load the rows of a snapshot."""
        memory, past = self.memory, nodes.history
        rows, count = nodes if past is None else past, nodes.num_nodes if past is None else len(past.times)
        memory.rows[:count] = rows.features
        self.load(rows.columns)
        memory.since[:count], memory.previous[:count], memory.heads[:] = version, -1, -1
        memory.heads[: nodes.num_nodes] = np.arange(count) if past is None else past.offsets[1:] - 1
        memory.changed_at[:, : nodes.num_nodes] = version
        self._remove(nodes.ids.removed, version)
        if past is not None and self.history is not None:
            self.history.begin(past, version)
        self.find_free(version)

    def attach(self, version: int) -> None:
        """Load the rows in the memory, as of a version: later versions are dropped."""
        memory = self.memory
        rows.undo(memory.heads, memory.since, memory.previous, version)
        if self.history is not None:
            self.history.attach(version)
        self.find_free(version)
        if memory.removed_at[-1]:
            memory.removed_at[:-1][memory.removed_at[:-1] > version + 1] = 0

    def apply(self, wanted: NodeRows, version: int) -> bool:
        """Write the changes of a batch as of `version`, which has no readers yet.

        Returns: False if there is no room: `attach` drops what was written.
        """
        memory = self.memory
        if self.ids.kind == "string" and wanted.added:
            needed = sum(len(str(name).encode("utf-8", "surrogatepass")) for name in wanted.added)
            if needed > self.ids.free_bytes():
                return False
        at = wanted.last_rows(self._last_at)
        slots = self.write(wanted.cells[at], wanted.texts[at], version)
        if slots is None:
            return False
        memory.rows[slots] = wanted.values[at]
        ids, heads = wanted.ids[at], slots.astype(np.int64)
        if self.history is not None:
            times = wanted.times[at]
            if len(wanted.removed):
                times = self._until_removal(wanted, ids, times)
            newest = self.history.put(ids, times, heads, wanted.removed, version)
            if newest is None:
                return False
            ids, heads = ids[newest], heads[newest]
        rows.set_heads(memory.heads, memory.previous, ids, heads)
        if wanted.added:
            self.ids.add(wanted.added, wanted.first)
        self._remove(wanted.removed, version)
        return True

    def _until_removal(self, wanted: NodeRows, ids: IdArray, times: IdArray) -> IdArray:
        """The times of rows; the empty row of a removed node has that of the node's first one."""
        assert self.history is not None
        gone = np.isin(ids, wanted.removed)
        known = ids[gone] < wanted.first
        times[gone] = [wanted.times[wanted.ids == each].min() for each in ids[gone].tolist()]
        times[np.flatnonzero(gone)[known]] = self.history.first_times(ids[gone][known])
        return times

    def _mark_rows(self, oldest: int, used: NDArray[np.uint8]) -> None:
        memory = self.memory
        rows.mark_used(memory.heads, memory.since, memory.previous, oldest, used)
        if self.history is not None:
            past = self.history.memory
            lists.mark_rows(past.heads, past.records, past.indices[:, None], oldest, used)

    def _remove(self, removed: IdArray, version: int) -> None:
        """Mark nodes as removed; their last edges are removed by `EdgeWriter.apply`."""
        if len(removed):
            self.memory.removed_at[-1] += len(removed)
            self.memory.removed_at[removed] = version + 1


#: Batches between checks for readers that have died.
_LOOK_EVERY = 256
#: A version that is later than all.
_LATEST = 2**62
#: Seconds to wait for readers of older versions before room is computed again.
_PATIENCE_S = 10.0


@dataclass(slots=True)
class Prepared:
    """A batch that was written and not published.

    Attributes:
        applied: its outcome.
        changes: the batch.
        skip: bool [num_events], events that change nothing; with it, the batch has the same outcome
            again.
        is_version: True if it makes a new version of the graph.
        lists: edge type key -> destinations whose lists changed.
        rows: node type -> nodes whose features were set.
    """

    applied: Applied
    changes: Changes
    skip: NDArray[np.bool_]
    is_version: bool = False
    lists: dict[str, IdArray] = field(default_factory=dict)
    rows: dict[str, IdArray] = field(default_factory=dict)


class LiveWriter:
    """Writes the memory of a live graph.

    Attributes:
        sequence: of the newest version that was prepared.
        offset: place in the stream of the newest version that was published.
    """

    def __init__(
        self,
        memory: LiveMemory,
        schema: GraphSchema,
        base: Mapping[str, IdIndex],
        now_ms: Callable[[], int],
    ) -> None:
        self.memory = memory
        self.schema = schema
        self._now_ms = now_ms
        plan = memory.plan
        self._counts: dict[str, int] = {name: room.base for name, room in plan.nodes.items()}
        self._nodes = {
            name: _NodeWriter(
                memory.nodes[name],
                LiveIds(
                    base[name],
                    memory.nodes[name],
                    room.base,
                    partial(self._counts.__getitem__, name),
                    lambda: _LATEST,
                ),
                schema.node_types[name].columns,
                memory.oldest_pin,
                HistoryWriter(memory.histories[name], plan.histories[name], (), memory.oldest_pin)
                if name in plan.histories
                else None,
            )
            for name, room in plan.nodes.items()
        }
        self._edges = {
            key: EdgeWriter(memory.edges[key], room, schema.edge_types[key].columns, memory.oldest_pin)
            for key, room in plan.edges.items()
        }
        pasts = {name: nodes.history for name, nodes in self._nodes.items() if nodes.history is not None}
        self._lists = [*self._edges.values(), *pasts.values()]
        self._first_times = {name: past.first_times for name, past in pasts.items()}
        self._out: dict[str, OutNeighbors] = {}
        self._frontiers = {
            name: [np.empty(room.capacity, np.int64) for _ in range(2)] for name, room in plan.nodes.items()
        }
        self._through_ms = 0
        self._latest = NO_TIME
        self._published = 0
        self.sequence = plan.sequence
        self.offset = NO_OFFSET

    def fill(
        self,
        graph: Graph,
        changed_at: Mapping[str, IdArray] | None = None,
        through_ms: int = 0,
        offset: StreamOffset = NO_OFFSET,
    ) -> None:
        """Load a snapshot as the first version.

        Args:
            changed_at: node type -> int64 [levels, n] as of the snapshot.
            offset: place in the stream of the snapshot.
        """
        plan = self.memory.plan
        for name, nodes in self._nodes.items():
            nodes.fill(graph.nodes[name], plan.sequence)
            known = None if changed_at is None else changed_at.get(name)
            if known is not None:
                levels, count = min(known.shape[0], plan.num_levels), known.shape[1]
                nodes.memory.changed_at[:levels, :count] = known[:levels]
        for key, edges in self._edges.items():
            of = plan.edges[key].rows_of
            edges.fill(graph.edges[key], plan.sequence, graph.edges[of] if of not in ("", key) else None)
        self._through_ms = through_ms
        self.offset = offset
        self._latest = self._latest_of_all()
        self.memory.publish(plan.sequence, through_ms, self._latest, self._counts, offset)

    def attach(self) -> None:
        """Continue after another writer: load the newest version that it published."""
        self.sequence, self.offset = self.memory.newest()
        self._drop()

    @property
    def counts(self) -> Mapping[str, int]:
        """Node type -> number of nodes, of the newest version."""
        return self._counts

    @property
    def num_edges(self) -> dict[str, int]:
        """Edge type key -> number of edges, of the newest version."""
        return {key: edges.num_edges for key, edges in self._edges.items()}

    @property
    def filled(self) -> float:
        """Used share of the fullest part of the room, 0 to 1."""
        plan = self.memory.plan
        shares = [edges.filled for edges in self._edges.values()]
        for nodes in self._nodes.values():
            if (past := nodes.history) is not None:
                shares += [past.filled, past.num_edges / len(nodes.memory.since)]
        for name, room in plan.nodes.items():
            spare = room.capacity - room.base
            shares.append((self._counts[name] - room.base) / spare if spare else 0.0)
        return max(shares, default=0.0)

    def prepare(
        self, changes: Changes, skip: NDArray[np.bool_] | None = None, *, moves: bool = False
    ) -> Prepared:
        """Write a batch as the next version, which is not visible before `publish`.

        Args:
            skip: bool [num_events], events that change nothing (seen before).
            moves: make a version even if nothing changes, since its place in the stream does.
        """
        known = np.zeros(changes.num_events, bool) if skip is None else skip
        room = {name: part.capacity - self._counts[name] for name, part in self.memory.plan.nodes.items()}
        ids = {name: nodes.ids for name, nodes in self._nodes.items()}
        with_ids = {key: edges.with_ids for key, edges in self._edges.items()}
        checked = check(
            changes,
            known,
            self.schema,
            ids,
            self._counts,
            room,
            self._edges_of,
            with_ids,
            self._first_times,
        )
        duplicates = np.flatnonzero(known).tolist()
        version = self.sequence + 1
        checked.accepted &= not (changes.is_whole and checked.rejected)
        if not checked.accepted.any():
            self.sequence = version if moves else self.sequence
            applied = Applied(self.sequence, 0, duplicates, checked.rejected)
            return Prepared(applied, changes, ~checked.accepted, moves)
        of_rows = [(self._nodes[name].history, each.ids) for name, each in checked.nodes.items()]
        changed: list[tuple[EdgeWriter, IdArray]]
        changed = [(lists, ids) for lists, ids in of_rows if lists is not None]
        changed += [(self._edges[key], np.append(e.add_dst, e.del_dst)) for key, e in checked.edges.items()]
        before = max((lists.latest(ids) for lists, ids in changed), default=NO_TIME)
        prepared = self._write(changes, checked, duplicates, version, moves)
        after = max((lists.latest(ids) for lists, ids in changed), default=NO_TIME)
        if prepared is None:
            self.drop()
            reason = "the live graph's memory is used up; restart the server with more (live.spare_*)"
            full = [Rejected(at, "full", reason) for at in np.flatnonzero(checked.accepted).tolist()]
            rejected = sorted([*checked.rejected, *full], key=lambda one: one.order)
            return Prepared(
                Applied(self.sequence, 0, duplicates, rejected), changes, np.ones(changes.num_events, bool)
            )
        is_less = before == self._latest > after  # only a removal of the latest reads all lists
        self._latest = self._latest_of_all() if is_less else max(self._latest, after)
        return prepared

    def publish(
        self, batches: list[Prepared], through_ms: int | None = None, offset: StreamOffset | None = None
    ) -> None:
        """Make prepared batches visible in one step, in the order in which they were prepared.

        Args:
            offset: place in the stream after them; None if it is the same.
            through_ms: the graph contains everything that happened until then; None for now.
        """
        changed = [batch for batch in batches if batch.lists or batch.rows]
        if changed:
            self._mark(changed)
        self.offset = self.offset if offset is None else offset
        self._through_ms = max(self._through_ms, self._now_ms() if through_ms is None else through_ms)
        if self.sequence != self.memory.version:
            self.memory.publish(self.sequence, self._through_ms, self._latest, self._counts, self.offset)
        else:
            self.memory.confirm(self._through_ms)
        oldest = self.memory.oldest_pin()
        for each in self._lists:
            each.release(oldest)
        self._published += 1
        if self._published % _LOOK_EVERY == 0:
            self.memory.release_dead()

    def drop(self) -> None:
        """Drop prepared batches that are not published."""
        self.sequence = self.memory.version
        self._drop()

    def apply(self, changes: Changes) -> Applied:
        """Prepare and publish in one step, for a graph that need not be durable."""
        prepared = self.prepare(changes)
        self.publish([prepared])
        return prepared.applied

    def _write(
        self, changes: Changes, checked: Checked, duplicates: list[int], version: int, moves: bool
    ) -> Prepared | None:
        lists: dict[str, IdArray] = {}
        rows: dict[str, IdArray] = {}
        absent: list[IdArray] = []
        added = {}
        for name, wanted in checked.nodes.items():
            if len(wanted.ids):
                if not self._nodes[name].apply(wanted, version):
                    return None
                rows[name] = wanted.ids
                added[name] = len(wanted.added)
        for key, edges in checked.edges.items():
            if len(edges.add_dst) + len(edges.del_dst):
                outcome = self._edges[key].apply(edges, version)
                if outcome is None:
                    return None
                lists[key] = outcome[0]
                absent.append(outcome[1])
                if key in self._out:
                    self._out[key].add(edges.add_src, edges.add_dst)
        rejected = checked.rejected
        accepted = checked.accepted
        if absent and any(len(orders) for orders in absent):
            orders = np.unique(np.concatenate(absent))  # of a type and of the one derived from it
            for nodes in checked.nodes.values():  # a removed node may have no edges
                orders = np.setdiff1d(orders, nodes.removed_by)
            accepted[orders] = False
            reason = "no such edge to remove"
            rejected = rejected + [Rejected(int(at), "no_edge", reason) for at in orders.tolist()]
            rejected.sort(key=lambda one: one.order)
        num_applied = int(accepted.sum())
        is_version = bool(num_applied) or moves
        if is_version:
            for name, count in added.items():
                self._counts[name] += count
            self.sequence = version
        applied = Applied(self.sequence, num_applied, duplicates, rejected)
        return Prepared(applied, changes, ~accepted, is_version, lists, rows)

    def _latest_of_all(self) -> int:
        return max((each.latest() for each in self._lists), default=NO_TIME)

    def _drop(self) -> None:
        """Return to the newest published version; room is computed again."""
        version = self.memory.version
        row = self.memory.ring[version % len(self.memory.ring)]
        self._through_ms, self._latest = int(row[THROUGH_MS]), int(row[LATEST])
        given_up = time.monotonic() + _PATIENCE_S
        while self.memory.oldest_pin() < version and time.monotonic() < given_up:
            self.memory.release_dead()
            time.sleep(0.001)  # batches that read older versions end soon; their room is then reused
        self._counts |= self.memory.counts()
        for nodes in self._nodes.values():
            nodes.attach(version)
        for edges in self._edges.values():
            edges.attach(version)
        self._out.clear()

    def _mark(self, batches: list[Prepared]) -> None:
        """Set changed_at of all states that the batches may have changed, to the newest version."""
        plan, version = self.memory.plan, self.sequence
        lists: dict[str, list[IdArray]] = {}
        changed: dict[str, list[IdArray]] = {}
        for batch in batches:
            for key, touched in batch.lists.items():
                lists.setdefault(key, []).append(touched)
            for name, ids in batch.rows.items():
                changed.setdefault(name, []).append(ids)
        below: dict[str, IdArray] = {}
        for level in range(plan.num_levels):
            marked: dict[str, IdArray] = {}
            for name, nodes in self._nodes.items():
                changed_at = nodes.memory.changed_at[level]
                frontier, count = self._frontiers[name][level % 2], 0
                starts = changed.get(name, []) if level == 0 else [below[name]]
                for key, touched_lists in lists.items():
                    if plan.edges[key].dst == name and (level > 0 or plan.reads_degrees):
                        starts = [*starts, *touched_lists]
                for ids in starts:
                    count = mark_changed(ids, changed_at, version, frontier, count)
                if level > 0:
                    for key, room in plan.edges.items():
                        if room.dst == name and len(below[room.src]):
                            out = self._out_neighbors(key)
                            count = out.mark(below[room.src], changed_at, version, frontier, count)
                marked[name] = frontier[:count]
            below = marked

    def _edges_of(self, node_type: str, removed: IdArray) -> dict[str, tuple[IdArray, IdArray]]:
        """As `check.EdgesOf`."""
        found = {}
        for key, kind in self.schema.own_edge_types.items():
            parts = []
            if kind.dst == node_type:
                parts.append(self._edges[key].edges_of(removed))
            if kind.src == node_type and self.schema.both_directions:
                parts.append(self._edges[reverse_key(key)].edges_of(removed)[::-1])
            elif kind.src == node_type:
                parts.append(self._out_neighbors(key).edges_of(removed))
            if parts:
                src, dst = (np.concatenate(ends) for ends in zip(*parts, strict=True))
                found[key] = src, dst
        return found

    def _out_neighbors(self, key: str) -> OutNeighbors:
        found = self._out.get(key)
        if found is None:
            plan = self.memory.plan
            capacity = plan.nodes[plan.edges[key].src].capacity
            found = self._out[key] = OutNeighbors(self.memory.edges[key], capacity)
        return found
