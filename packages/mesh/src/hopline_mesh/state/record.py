"""One interval as bytes: a snapshot, with planned changes and troubles at that time.

A record leaves out what equals the previous record: known names, and unchanged lists of services and call
paths. Features are written exactly, so judging them again gives the same verdict.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline_mesh.changes import Context
from hopline_mesh.errors import StateDamaged
from hopline_mesh.roster import Roster, SlotArray
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Gap, Snapshot


class Seen(msgspec.Struct, frozen=True):
    """One interval of the history."""

    snapshot: Snapshot
    context: Context


class HistoryRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record in its written form.

    Attributes:
        names: of the roster from `first` on, UTF-8 (with lone surrogates).
        nodes, edges: int32 as bytes; edges are all callers, then all callees. None: as in the previous one.
        node_features, edge_features: float32 as bytes.
    """

    time_s: float
    schema: Schema | None
    first: int
    names: list[bytes]
    nodes: bytes | None
    edges: bytes | None
    node_features: bytes
    edge_features: bytes
    gaps: list[Gap]
    context: Context


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(HistoryRecord)


class RecordWriter:
    """Encodes snapshots to bytes, for one segment of the history."""

    def __init__(self) -> None:
        self._named = 0
        self._schema: Schema | None = None
        self._nodes: SlotArray | None = None
        self._edges: SlotArray | None = None

    def encode(self, snapshot: Snapshot, context: Context) -> bytes:
        """Return the record of the next interval."""
        names = snapshot.roster.names[self._named :]
        edges = np.stack((snapshot.edge_src, snapshot.edge_dst))
        same_nodes = self._nodes is not None and np.array_equal(self._nodes, snapshot.nodes)
        same_edges = self._edges is not None and np.array_equal(self._edges, edges)
        record = HistoryRecord(
            time_s=snapshot.time_s,
            schema=None if snapshot.schema == self._schema else snapshot.schema,
            first=self._named,
            names=[name.encode("utf-8", "surrogatepass") for name in names],
            nodes=None if same_nodes else _bytes(snapshot.nodes, np.int32),
            edges=None if same_edges else _bytes(edges, np.int32),
            node_features=_bytes(snapshot.node_features, np.float32),
            edge_features=_bytes(snapshot.edge_features, np.float32),
            gaps=list(snapshot.gaps),
            context=context,
        )
        try:
            data = _encoder.encode(record)
        except UnicodeEncodeError:  # texts from outside may be invalid Unicode: leave them out
            data = _encoder.encode(msgspec.structs.replace(record, gaps=[], context=Context()))
        self._named += len(names)
        self._schema = snapshot.schema
        self._nodes = snapshot.nodes.copy()  # the caller may change its array later
        self._edges = edges
        return data


class RecordReader:
    """Decodes bytes to snapshots, for one segment of the history, with slots of the caller's roster."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._slots: NDArray[np.int32] = np.zeros(0, np.int32)
        self._schema: Schema | None = None
        self._nodes: SlotArray | None = None
        self._edges: SlotArray | None = None

    def decode(self, data: bytes) -> Seen:
        """Return the next interval.

        Raises:
            StateDamaged: not a record, or not the next one of the segment.
        """
        try:
            record = _decoder.decode(data)
            return self._seen(record)
        except (msgspec.MsgspecError, ValueError, IndexError) as error:
            raise StateDamaged(f"a record of the history is invalid: {error}") from None

    def _seen(self, record: HistoryRecord) -> Seen:
        if record.first != len(self._slots):
            raise ValueError(f"names from {record.first} on, after {len(self._slots)}")
        if record.names:
            names = [name.decode("utf-8", "surrogatepass") for name in record.names]
            new = np.array([self._roster.slot(name) for name in names], np.int32)
            self._slots = np.concatenate([self._slots, new])
        if record.schema is not None:
            self._schema = record.schema
        if record.nodes is not None:
            self._nodes = self._slots[np.frombuffer(record.nodes, np.int32)]
        if record.edges is not None:
            self._edges = self._slots[np.frombuffer(record.edges, np.int32).reshape(2, -1)]
        if self._schema is None or self._nodes is None or self._edges is None:
            raise ValueError("the segment's beginning is missing")
        node_width, edge_width = len(self._schema.node_features), len(self._schema.edge_features)
        nodes, edges = self._nodes, self._edges
        snapshot = Snapshot(
            time_s=record.time_s,
            schema=self._schema,
            roster=self._roster,
            nodes=nodes,
            node_features=_floats(record.node_features, len(nodes), node_width),
            edge_src=edges[0],
            edge_dst=edges[1],
            edge_features=_floats(record.edge_features, edges.shape[1], edge_width),
            gaps=tuple(record.gaps),
        )
        return Seen(snapshot, record.context)


def _bytes(array: NDArray[Any], dtype: Any) -> bytes:
    return np.ascontiguousarray(array, dtype).tobytes()


def _floats(data: bytes, rows: int, width: int) -> NDArray[np.float32]:
    # A writable copy like that of any snapshot: kernels are compiled separately for read-only arrays.
    return np.frombuffer(data, np.float32).reshape(rows, width).copy()
