"""The memory of a live graph: one region that the writer fills and every worker maps.

Layout: a head of fixed size (a description, as JSON), then arrays in a fixed order. A version is
published by filling the next row of a ring and then setting one number to it. A reader *pins* the
version that it reads; data that this version needs is kept until no reader has it, or an older one, pinned.
Readers never wait for the writer, and the writer never waits for readers.
"""

from __future__ import annotations

import mmap
import os
import secrets
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import GraphError
from hopline.graph import hash_table
from hopline.graph.extent import NUM_COLUMNS
from hopline.graph.live.plan import ColumnRoom, EdgeRoom, LivePlan, NodeRoom
from hopline.graph.live.version import StreamOffset
from hopline.kernels.intrinsics import compare_exchange, full_fence
from hopline.kernels.jit import njit
from hopline.memory.arena import Arena, array_bytes
from hopline.types import AnyArray, FloatArray, IdArray

_MAGIC = b"hopline live 7\n\x00"
_HEAD_BYTES = 1 << 20
_RING = 64
#: Columns of the ring before the counts of nodes, one for each node type.
VERSION, THROUGH_MS, LATEST = 0, 1, 2
#: As LATEST, where no edge and no row has a time.
NO_TIME = -(1 << 62)
#: Three columns, a `StreamOffset`.
OFFSET = 3
_BEFORE_COUNTS = 6
MAX_LANES = 1024


@dataclass(frozen=True, slots=True, eq=False)
class ColumnMemory:
    """Rows of columns by slot; see `columns.py`."""

    #: int64 [slots], the version that wrote a row.
    since: IdArray
    #: float64 [slots, columns], as `cells_of` has them; of a text its place among the texts.
    cells: NDArray[np.float64]
    #: int64 [8], the number of texts in the first.
    num_texts: IdArray
    text_slots: NDArray[np.int32]
    text_offsets: IdArray
    text_blob: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class NodeMemory(ColumnMemory):
    """Arrays of one node type; see `rows.py` and `ids.py`."""

    heads: IdArray
    rows: FloatArray
    previous: IdArray
    id_slots: NDArray[np.int32]
    id_values: IdArray
    id_offsets: IdArray
    id_blob: NDArray[np.uint8]
    #: int64 [capacity + 1]: one more than the version that removed a node, 0 for none; the last: so many.
    removed_at: IdArray
    #: int64 [num_levels, capacity]: the version at which a state may last have changed.
    changed_at: IdArray


@dataclass(frozen=True, slots=True, eq=False)
class EdgeMemory(ColumnMemory):
    """Arrays of one edge type; see `lists.py`. Arrays that the type lacks have no entries.

    Attributes:
        attr: float32 [positions, d_e]; or int32 [positions, 1], the slots of rows of columns.
        owners: int32 [texts], destination of the newest edge whose id a text is.
    """

    heads: IdArray
    records: IdArray
    indices: NDArray[np.int32]
    time: IdArray
    weight: FloatArray
    cumweight: NDArray[np.float64]
    attr: AnyArray
    owners: NDArray[np.int32]


@njit(nogil=True, cache=True)
def _pin(latest, ring, pins, lane):  # type: ignore[no-untyped-def]
    """Pin the newest version in `lane`; returns the ring's row for it."""
    while True:
        version = latest[0]
        pins[lane] = version + 1
        full_fence()
        row = version % ring.shape[0]
        if latest[0] == version and ring[row, 0] == version:
            return row


@njit(nogil=True, cache=True)
def _oldest_pin(latest, pins, used):  # type: ignore[no-untyped-def]
    """The oldest version that a reader may read."""
    full_fence()
    oldest = latest[0]
    for lane in range(used):
        pin = pins[lane]
        if pin > 0 and pin - 1 < oldest:
            oldest = pin - 1
    return oldest


@njit(nogil=True, cache=True)
def _publish(latest, version):  # type: ignore[no-untyped-def]
    full_fence()
    latest[0] = version


@njit(nogil=True, cache=True)
def _claim(owners, lane, old, new):  # type: ignore[no-untyped-def]
    return compare_exchange(owners, lane, old, new)


class LiveMemory:
    """The region, mapped.

    Attributes:
        plan: its layout.
        nodes, edges: arrays by type. histories: lists of slots of rows of nodes, by type.
        latest: int64 [1], the newest version.
        ring: int64 [_RING, …], properties of the last versions.
    """

    def __init__(self, plan: LivePlan, fd: int | None) -> None:
        self.plan = plan
        arena = Arena(num_bytes(plan) - _HEAD_BYTES, fd, 0 if fd is None else _HEAD_BYTES)
        self.latest: IdArray = arena.take((8,), np.int64)
        self.ring: IdArray = arena.take((_RING, _BEFORE_COUNTS + len(plan.nodes)), np.int64)
        self._pins: IdArray = arena.take((MAX_LANES,), np.int64)
        self._owners: IdArray = arena.take((MAX_LANES,), np.int64)
        self.nodes = {name: _node_memory(arena, room, plan) for name, room in plan.nodes.items()}
        self.edges = {key: _edge_memory(arena, room, plan) for key, room in plan.edges.items()}
        self.histories = {name: _edge_memory(arena, room, plan) for name, room in plan.histories.items()}
        self._columns = {name: _BEFORE_COUNTS + at for at, name in enumerate(plan.nodes)}

    @classmethod
    def create(cls, plan: LivePlan, fd: int | None = None) -> LiveMemory:
        """Create an empty region, in a memfd or (None) in this process's own memory."""
        plan = plan if fd is None else msgspec.structs.replace(plan, nonce=secrets.token_hex(16))
        memory = cls(plan, fd)
        if fd is not None:
            described = msgspec.json.encode(plan)
            if len(described) > _HEAD_BYTES - 32:
                raise GraphError("live graph: too many node and edge types for the head of its memory")
            content = _MAGIC + len(described).to_bytes(8, "little") + described
            os.pwrite(fd, content, 0)
        return memory

    @classmethod
    def attach(cls, fd: int) -> LiveMemory | None:
        """Map a region that `create` laid out; None if it has not been created yet.

        Raises: GraphError: it is something else.
        """
        if os.fstat(fd).st_size < _HEAD_BYTES:
            return None
        with mmap.mmap(fd, _HEAD_BYTES, access=mmap.ACCESS_READ) as head:
            magic = head[: len(_MAGIC)]
            if magic == bytes(len(_MAGIC)):
                return None
            if magic != _MAGIC:
                raise GraphError("live graph: its memory was laid out by another version of Hopline")
            begin = len(_MAGIC) + 8
            size = int.from_bytes(head[len(_MAGIC) : begin], "little")
            plan = msgspec.json.decode(head[begin : begin + size], type=LivePlan)
        return cls(plan, fd)

    @property
    def version(self) -> int:
        """The newest version."""
        return int(self.latest[0])

    @property
    def is_filled(self) -> bool:
        """True if a first version was published."""
        return bool(self.latest[1])

    @property
    def offset(self) -> StreamOffset:
        """The place in the stream of the newest version, for the process that writes."""
        return offset_of(self.ring[self.version % _RING].tolist())

    @property
    def is_caught_up(self) -> bool:
        """True if the graph once had everything that its stream had."""
        return bool(self.latest[2])

    def set_caught_up(self) -> None:
        """Record that the graph has everything that its stream has."""
        self.latest[2] = 1

    def newest(self) -> tuple[int, StreamOffset]:
        """The newest version and its place in the stream, without pinning it."""
        while True:
            version = self.version
            row = self.ring[version % _RING].tolist()
            if row[VERSION] == version and self.version - version < _RING - 1:
                return version, offset_of(row)

    def publish(
        self, version: int, through_ms: int, latest: int, counts: dict[str, int], offset: StreamOffset
    ) -> None:
        """Make a version the newest one; all its data must have been written."""
        row = self.ring[version % _RING]
        row[THROUGH_MS], row[LATEST] = through_ms, latest
        row[OFFSET:_BEFORE_COUNTS] = offset
        for name, count in counts.items():
            row[self._columns[name]] = count
        row[VERSION] = version
        self.latest[1] = 1
        _publish(self.latest, version)

    @staticmethod
    def latest_time(row: list[int]) -> int | None:
        """The latest time of an edge or a row in a version, from its row of the ring; None without."""
        return None if row[LATEST] == NO_TIME else row[LATEST]

    def confirm(self, through_ms: int) -> None:
        """Record that the newest version contains everything that happened until then."""
        self.ring[self.version % _RING, THROUGH_MS] = through_ms

    def place_of_count(self, node_type: str) -> int:
        """Index of the number of nodes of a type in a row of the ring."""
        return self._columns[node_type]

    def counts(self) -> dict[str, int]:
        """Nodes by type, in the newest version."""
        row = self.ring[self.version % _RING]
        return {name: int(row[at]) for name, at in self._columns.items()}

    def take_lane(self) -> int:
        """Reserve a lane of this process, for one reader at a time.

        Raises: GraphError: there are too many readers.
        """
        own = os.getpid()
        for lane in range(MAX_LANES):
            if self._owners[lane] == 0 and _claim(self._owners, lane, 0, own):
                self._pins[lane] = 0
                return lane
        raise GraphError(f"live graph: more than {MAX_LANES} readers")

    def release_lane(self, lane: int) -> None:
        """Release the lane of a reader that is closed."""
        self._pins[lane] = 0
        self._owners[lane] = 0

    def pin(self, lane: int) -> list[int]:
        """Pin the newest version; returns its row of the ring."""
        while True:
            row = _pin(self.latest, self.ring, self._pins, lane)
            version = self._pins[lane] - 1
            found: list[int] = self.ring[row].tolist()
            # The ring was overwritten while it was read: there are newer versions.
            if found[VERSION] == version and self.latest[0] - version < _RING - 1:
                return found

    def unpin(self, lane: int) -> None:
        """Unpin the reader's version."""
        self._pins[lane] = 0

    def oldest_pin(self) -> int:
        """The oldest version that a reader may still read."""
        return int(_oldest_pin(self.latest, self._pins, MAX_LANES))

    def release_dead(self) -> int:
        """Free the lanes of processes that no longer exist; returns their number."""
        freed = 0
        for lane in np.flatnonzero(self._owners).tolist():
            owner = int(self._owners[lane])
            try:
                os.kill(owner, 0)
            except ProcessLookupError:
                self._pins[lane] = 0
                freed += bool(_claim(self._owners, lane, owner, 0))
            except PermissionError:
                continue
        return freed


def offset_of(row: list[int]) -> StreamOffset:
    """The place in the stream of a version, from its row of the ring."""
    return StreamOffset(row[OFFSET], row[OFFSET + 1], row[OFFSET + 2])


def num_bytes(plan: LivePlan) -> int:
    """Bytes of the region; pages use memory only once they are written."""
    total = _HEAD_BYTES
    total += array_bytes((8,), np.int64) + array_bytes((_RING, _BEFORE_COUNTS + len(plan.nodes)), np.int64)
    total += 2 * array_bytes((MAX_LANES,), np.int64)
    for node in plan.nodes.values():
        total += sum(array_bytes(shape, dtype) for shape, dtype in _node_shapes(node, plan))
    for edge in [*plan.edges.values(), *plan.histories.values()]:
        total += sum(array_bytes(shape, dtype) for shape, dtype in _edge_shapes(edge, plan))
    return total


def _node_shapes(room: NodeRoom, plan: LivePlan) -> list[tuple[tuple[int, ...], type]]:
    added = room.capacity - room.base
    strings = room.id_kind == "string"
    return [
        *_column_shapes(room),
        ((room.capacity,), np.int64),
        ((room.rows, room.dim), np.float32),
        ((room.rows,), np.int64),
        ((room.id_slots,), np.int32),
        ((0 if strings else added,), np.int64),
        ((added + 1 if strings else 0,), np.int64),
        ((room.id_bytes,), np.uint8),
        ((room.capacity + 1,), np.int64),
        ((plan.num_levels, room.capacity), np.int64),
    ]


def _column_shapes(room: ColumnRoom) -> list[tuple[tuple[int, ...], type]]:
    return [
        ((room.rows,), np.int64),
        ((room.rows, room.columns), np.float64),
        ((8 if room.texts else 0,), np.int64),
        ((hash_table.capacity_for(room.texts) if room.texts else 0,), np.int32),
        ((room.texts + 1 if room.texts else 0,), np.int64),
        ((room.text_bytes,), np.uint8),
    ]


def _node_memory(arena: Arena, room: NodeRoom, plan: LivePlan) -> NodeMemory:
    arrays: list[AnyArray] = [arena.take(shape, dtype) for shape, dtype in _node_shapes(room, plan)]
    return NodeMemory(*arrays)


def _edge_shapes(room: EdgeRoom, plan: LivePlan) -> list[tuple[tuple[int, ...], type]]:
    size = room.positions
    attr = (
        ((size, 1), np.int32)
        if room.rows_of
        else ((size if room.attr_dim else 0, room.attr_dim), np.float32)
    )
    return [
        *_column_shapes(room),
        ((plan.nodes[room.dst].capacity,), np.int64),
        ((room.records, NUM_COLUMNS), np.int64),
        ((size,), np.int32),
        ((size if room.has_time else 0,), np.int64),
        ((size if room.has_weight else 0,), np.float32),
        ((size if room.has_weight else 0,), np.float64),
        attr,
        ((0 if room.id_column < 0 else room.texts,), np.int32),
    ]


def _edge_memory(arena: Arena, room: EdgeRoom, plan: LivePlan) -> EdgeMemory:
    arrays: list[AnyArray] = [arena.take(shape, dtype) for shape, dtype in _edge_shapes(room, plan)]
    return EdgeMemory(*arrays)
