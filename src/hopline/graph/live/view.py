"""A reader's view of a live graph: reads like a snapshot, at the version that it has pinned.

One reader, one view: models that run at the same time pin their versions separately.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hopline.graph import csc
from hopline.graph.edge_ids import EdgeIds, no_edge_ids
from hopline.graph.extent import Clock, degrees, extent, starts
from hopline.graph.history import History, all_there, find_rows
from hopline.graph.ids import IdIndex
from hopline.graph.live import rows
from hopline.graph.live.columns import LiveColumns
from hopline.graph.live.edge_writer import find_by_ids
from hopline.graph.live.ids import LiveIds
from hopline.graph.live.memory import THROUGH_MS, VERSION, EdgeMemory, LiveMemory, NodeMemory, offset_of
from hopline.graph.live.plan import EdgeRoom
from hopline.graph.live.version import StreamOffset, version_name
from hopline.graph.parts import Adjacency, Nodes
from hopline.graph.schema import GraphSchema, edge_key
from hopline.graph.snapshot import Graph
from hopline.graph.stored_columns import StoredColumns
from hopline.types import ContextId, FloatArray, IdArray


class LiveRows:
    """Feature rows by node, for code that reads few of them; the engine reads `array` by slots.

    Attributes:
        array: float32 [slots, dim].
    """

    dtype: ClassVar[np.dtype[np.float32]] = np.dtype(np.float32)

    def __init__(self, nodes: LiveNodes, array: FloatArray) -> None:
        self._nodes = nodes
        self.array = array

    @property
    def shape(self) -> tuple[int, int]:
        """(nodes, dim)."""
        return self._nodes.num_nodes, self.array.shape[1]

    def __len__(self) -> int:
        return self._nodes.num_nodes

    def __getitem__(self, ids: Any) -> FloatArray:
        wanted = np.atleast_1d(np.asarray(ids, np.int64))
        found: FloatArray = self.array[self._nodes.slots(wanted)]
        return found[0] if np.ndim(ids) == 0 else found


class LiveNodes(LiveColumns):
    """The nodes of one type; reads like `Nodes`.

    Attributes:
        features: rows, as of the reader's version.
        ids: the caller's ids.
        capacity: upper bound of ids, including nodes added later.
        changed_at: int64 [levels, capacity]; see `changed_at.py`.
        ready: int64 [slots], where rows of `features` are made when they are read: one more than the
            version of the row that was made; None where all rows exist.
        history: rows of the past, of a type that has some.
    """

    ready: IdArray | None = None
    history: LivePast | None = None

    def __init__(
        self, memory: LiveMemory, name: str, own: NodeMemory, base: IdIndex, reader: LiveView
    ) -> None:
        room, clock = memory.plan.nodes[name], reader.clock
        super().__init__(own, reader.schema.node_types[name].columns)
        self._place = memory.place_of_count(name)
        self._own = own
        self._clock = clock
        self.capacity = room.capacity
        self.changed_at = own.changed_at
        self.features = LiveRows(self, own.rows)
        self.ids = LiveIds(base, own, room.base, lambda: self.num_nodes, lambda: clock.version)
        if (past := memory.histories.get(name)) is not None:
            schema = reader.schema.node_types[name].history
            self.history = LivePast(past, self, reader, None if schema is None else schema.since)

    @property
    def num_nodes(self) -> int:
        """Rows at the reader's version, also those of removed nodes."""
        return self._clock.ring_row[self._place]

    def slots(self, ids: IdArray) -> IdArray:
        """Rows of `features.array`: int64 [n] of global ids int64 [n]."""
        out = np.empty(ids.shape[0], np.int64)
        own = self._own
        rows.slots_at(own.heads, own.since, own.previous, self._clock.version, ids, out)
        return out

    def made(self, ids: IdArray, slots: IdArray) -> IdArray:
        """The slots of rows of nodes, int64 [n] each, which can be read now."""
        return slots


class LiveLists:
    """A list for each node of a type; located through `records`.

    Attributes:
        indptr: int64 [capacity], the newest record of each node. records: see `extent.py`.
        indices: int32, the entries of all lists.
        time: of each entry; None where there are none.
        clock: the reader's version.
    """

    def __init__(self, own: EdgeMemory, nodes: LiveNodes, reader: LiveView) -> None:
        self._own = own
        self._nodes = nodes
        self._reader = reader
        self.clock = reader.clock
        self.indptr, self.records, self.indices = own.heads, own.records, own.indices
        self.time: IdArray | None = own.time if len(own.time) else None

    @property
    def num_edges(self) -> int:
        """Entries at the reader's version, or the newest if none is pinned; counts them."""
        with self._reader:
            return int(self.degrees().sum())

    def degree(self, global_ids: IdArray) -> IdArray:
        """Lengths of lists, int64 [n]."""
        ids = np.asarray(global_ids, np.int64)
        out = np.empty(ids.shape[0], np.int64)
        degrees(self.indptr, self.records, self.clock.version, ids, out)
        return out

    def starts(self, global_ids: IdArray) -> IdArray:
        """Begin of lists in the arrays, int64 [n]."""
        out = np.empty(global_ids.shape[0], np.int64)
        starts(self.indptr, self.records, self.clock.version, np.asarray(global_ids, np.int64), out)
        return out

    def degrees(self) -> IdArray:
        """Lengths of all lists, int64 [N]."""
        return self.degree(np.arange(self._nodes.num_nodes))

    def positions(self) -> IdArray:
        """Positions of all entries, in the order of the lists."""
        counts = self.degrees()
        begins = self.starts(np.arange(len(counts))) - np.cumsum(counts) + counts
        return np.repeat(begins, counts) + np.arange(counts.sum())


class LivePast(LiveLists):
    """The rows that nodes had; reads like `History`, but places are slots of rows of `LiveNodes`.

    Attributes:
        features: float32 [slots, d].
    """

    def __init__(self, own: EdgeMemory, nodes: LiveNodes, reader: LiveView, since: int | None) -> None:
        super().__init__(own, nodes, reader)
        self.since, self.features = since, nodes.features.array

    def of(self, nodes: LiveNodes) -> LivePast:
        """The same, of nodes with other rows."""
        return LivePast(self._own, nodes, self._reader, self.since)

    def places(self, ids: IdArray, as_of: int) -> IdArray:
        """As `History.places`."""
        assert self.time is not None
        out = np.empty(ids.shape[0], np.int64)
        version, cut = self.clock.version, np.array([as_of])
        find_rows(self.indptr, self.records, version, self.time, ids, cut, out)
        return np.where(out < 0, np.int64(-1), self.indices[out])

    def rows(self, ids: IdArray, as_of: int) -> IdArray:
        """As `History.rows`."""
        return self._nodes.made(ids, all_there(self.places(ids, as_of), as_of))

    def frozen(self) -> History:
        """A copy that no longer changes."""
        nodes, places = self._nodes, self.positions()
        slots, columns = self.indices[places].astype(np.int64), None
        if nodes.column_schemas:
            columns = StoredColumns.of_cells(nodes.column_schemas, *nodes.cells(slots))
        assert self.time is not None
        offsets = np.append(0, np.cumsum(self.degrees()))
        return History(offsets, self.time[places], self.features[slots], columns, self.since)


#: Of node types, by name.
Histories: TypeAlias = Mapping[str, History | LivePast]
NO_HISTORY: Histories = {}


class LiveAdjacency(LiveLists, LiveColumns):
    """The edges of one type; reads like `Adjacency`.

    Attributes:
        has_self_loops: True if there may be self-loops.
        attr: float32 by position, or None; where preprocessing makes attributes of columns, an object that
            reads like it.
        rows: int32 [positions, 1], slots of the rows of columns; None where the edges have none.
        signed_weight: True if weights may be negative, now or later.
    """

    def __init__(
        self, key: str, room: EdgeRoom, own: EdgeMemory, nodes: LiveNodes, reader: LiveView
    ) -> None:
        LiveLists.__init__(self, own, nodes, reader)
        LiveColumns.__init__(self, own, reader.schema.edge_types[key].columns)
        self.src, self.dst = room.src, room.dst
        self.relation = key[len(room.src) + 2 : len(key) - len(room.dst) - 2]
        self._room = room
        self.weight = own.weight if room.has_weight else None
        self.cumweight = own.cumweight if room.has_weight else None
        self.attr: Any = own.attr if room.attr_dim else None
        self.rows = own.attr if room.rows_of else None
        self.has_self_loops = room.src == room.dst
        self.signed_weight = reader.schema.edge_types[key].signed_weight

    @property
    def key(self) -> str:
        """ "src__relation__dst"."""
        return edge_key(self.src, self.relation, self.dst)

    def slots(self, positions: IdArray) -> IdArray:
        """Slots of the rows of edges, int64 [n]."""
        assert self.rows is not None
        found: IdArray = self.rows[positions, 0].astype(np.int64)
        return found

    def located(self, ids: Sequence[ContextId]) -> tuple[IdArray, IdArray]:
        """As `Adjacency.located`, at the reader's version."""
        if self._room.id_column < 0:
            raise no_edge_ids(self.key)
        return find_by_ids(self._own, self._room, self._texts, ids, self.clock.version)

    def neighbors(self, global_id: int) -> NDArray[np.int32]:
        """In-neighbours of one destination in canonical order, a view."""
        start, end = extent.py_func(self.indptr, self.records, self.clock.version, global_id)
        return self.indices[start:end]


class LiveView:
    """A live graph, read by one reader.

    Attributes:
        clock: the pinned version, or the last one.
        on_pin: called when a version is pinned.
        adapt: changes views for additional readers to what the model reads.
    """

    is_live: ClassVar[bool] = True

    def __init__(
        self, memory: LiveMemory, schema: GraphSchema, ids: Mapping[str, IdIndex], path: Path | None = None
    ) -> None:
        self.memory = memory
        self.schema = self._stored_schema = schema
        self.path = path
        self.clock = Clock()
        self._ids = ids
        self._lane = memory.take_lane()
        self._depth = 0
        self._others: dict[str, LiveView] = {}
        self.on_pin: list[Callable[[], None]] = []
        self.adapt: Callable[[LiveView], None] = lambda view: None
        self._version: tuple[int, str] = (-1, "")
        plan = memory.plan
        self.nodes: dict[str, LiveNodes] = {
            name: LiveNodes(memory, name, memory.nodes[name], ids[name], self) for name in plan.nodes
        }
        self.edges: dict[str, LiveAdjacency] = {
            key: LiveAdjacency(key, room, memory.edges[key], self.nodes[room.dst], self)
            for key, room in plan.edges.items()
        }
        with self:
            pass

    def another(self) -> LiveView:
        """A view for another reader."""
        return LiveView(self.memory, self._stored_schema, self._ids, self.path)

    def beside(self, purpose: str) -> LiveView:
        """A view for an additional reader, possibly on another thread. Each purpose always gets the same
        view, which is closed with this one."""
        found = self._others.get(purpose)
        if found is None:
            found = self._others[purpose] = self.another()
            self.adapt(found)
        return found

    def __enter__(self) -> LiveView:
        """Read the newest version until `__exit__`; calls may be nested."""
        self._depth += 1
        if self._depth == 1:
            self.clock.ring_row = ring_row = self.memory.pin(self._lane)
            self.clock.version = ring_row[VERSION]
            for follow in self.on_pin:
                follow()
        return self

    def __exit__(self, *raised: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.memory.unpin(self._lane)

    def close(self) -> None:
        """Stop reading."""
        for view in self._others.values():
            view.close()
        self.memory.release_lane(self._lane)

    @property
    def version(self) -> str:
        """The name of the pinned version; see `version.py`."""
        number = self.clock.version
        if self._version[0] != number:
            self._version = (number, version_name(self.memory.plan.lineage, number, self.offset))
        return self._version[1]

    @property
    def offset(self) -> StreamOffset:
        """The place in the stream of the pinned version."""
        return offset_of(self.clock.ring_row)

    @property
    def through_ms(self) -> int:
        """The pinned version contains everything that happened until then, ms since 1970."""
        return self.clock.ring_row[THROUGH_MS]

    @property
    def latest_time(self) -> int | None:
        """As `Graph.clock`, of the pinned version."""
        return self.memory.latest_time(self.clock.ring_row)

    @property
    def num_nodes(self) -> int:
        """Nodes of all types."""
        return sum(part.ids.num_nodes for part in self.nodes.values())

    @property
    def num_edges(self) -> int:
        """Edges of all types; counts them."""
        with self:
            return sum(part.num_edges for part in self.edges.values())

    def snapshot(self) -> Graph:
        """A copy of the pinned version that no longer changes."""
        with self:
            nodes = {}
            for name, part in self.nodes.items():
                everyone, ids = np.arange(part.num_nodes), part.ids.frozen(part.num_nodes)
                if part.history is not None:
                    past = part.history.frozen()
                    features, columns = past.now()
                    nodes[name] = Nodes(features, ids, columns, history=past)
                    continue
                columns = None
                if part.column_schemas:
                    columns = StoredColumns.of_cells(part.column_schemas, *part.cells(part.slots(everyone)))
                nodes[name] = Nodes(part.features[everyone], ids, columns)
            edges = {}
            for key, edge in self.edges.items():
                edges[key] = _frozen(edge, self.schema.edge_types[key].id_column)
            schema = self._schema_of(nodes)
            return Graph(schema, nodes, edges)

    def _schema_of(self, nodes: Mapping[str, Nodes]) -> GraphSchema:
        import msgspec

        types = {
            name: msgspec.structs.replace(
                schema, id_kind=nodes[name].ids.kind, feature_dtype=str(nodes[name].features.dtype)
            )
            for name, schema in self.schema.node_types.items()
        }
        return GraphSchema(types, self.schema.edge_types)


def _frozen(edge: LiveAdjacency, id_column: str) -> Adjacency:
    places, counts = edge.positions(), edge.degrees()
    columns = None
    if edge.column_schemas:
        columns = StoredColumns.of_cells(edge.column_schemas, *edge.cells(edge.slots(places)))
    indptr, indices = np.concatenate([[0], np.cumsum(counts)]), edge.indices[places]
    loops = edge.src == edge.dst and bool((indices == np.repeat(np.arange(len(counts)), counts)).any())
    given = {"time": edge.time, "attr": edge.attr, "weight": edge.weight, "cumweight": edge.cumweight}
    arrays: Any = {name: None if each is None else each[places] for name, each in given.items()}
    return Adjacency(
        src=edge.src, relation=edge.relation, dst=edge.dst, indptr=indptr, indices=indices, **arrays,
        columns=columns, has_self_loops=loops, max_degree=int(counts.max(initial=0)),
        has_repeated_edges=csc.repeated_edge(indptr, indices)[0] >= 0, signed_weight=edge.signed_weight,
        ids=EdgeIds(columns, id_column) if columns and id_column else None,
    )  # fmt: skip
