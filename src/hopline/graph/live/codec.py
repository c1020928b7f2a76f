"""Encodes changes and their outcome as bytes: for the log, and between processes of a host.

    b"HLch" │ u32 length of the head │ head: msgpack │ columns, each padded to 8 bytes

The head lists the groups and the number of rows of each; the place of a column follows from that. All
numbers are little-endian. Integer ids are an int64 column; strings are a column of u32 lengths and one of
their UTF-8 bytes. An `order` that counts up by one is not stored: the head has its first value.

Decoding copies no column of numbers: arrays are views of the bytes, read-only if those are. It does not
trust its input: claimed sizes are compared with the available bytes before anything of that size is
allocated.

The log's entry for one batch is the batch, and its outcome:

    through_ms i64 │ number of skipped events u32 │ 0 │ their positions i64 │ the batch

Applied again to the same version, a batch with its skipped events has the same outcome: events are not
checked again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline.graph import id_values
from hopline.graph.live.changes import Applied, Changes, EdgeChanges, Ids, NodeChanges, Rejected
from hopline.types import UNREADABLE, AnyArray, IdArray

_ENTRY = struct.Struct("<qI4x")


@dataclass(frozen=True, slots=True, eq=False)
class StoredBatch:
    """A batch and its outcome.

    Attributes:
        changes: the batch.
        skip: bool [num_events], events that changed nothing.
        through_ms: the graph contained everything that happened until then, ms since 1970.
    """

    changes: Changes
    skip: NDArray[np.bool_]
    through_ms: int


def encode_entry(entry: StoredBatch) -> bytes:
    """Encode the payload of a record of the log. Raises: BadRequest: as `encode_changes`."""
    skipped = np.flatnonzero(entry.skip).astype("<i8")
    begin = _ENTRY.pack(entry.through_ms, len(skipped))
    return b"".join((begin, skipped.tobytes(), encode_changes(entry.changes)))


def decode_entry(data: bytes) -> StoredBatch:
    """Decode the result of `encode_entry`. Raises: BadRequest: the bytes are something else."""
    if len(data) < _ENTRY.size:
        raise BadRequest(f"an entry of the log has {len(data)} bytes; it needs at least {_ENTRY.size}")
    through_ms, count = _ENTRY.unpack_from(data)
    end = _ENTRY.size + 8 * count
    if end > len(data):
        raise BadRequest(f"an entry of the log is truncated: {count} positions in {len(data)} bytes")
    skipped = np.frombuffer(data, "<i8", count, _ENTRY.size)
    changes = decode_changes(memoryview(data)[end:])
    if count and not 0 <= skipped.min() <= skipped.max() < changes.num_events:
        raise BadRequest(f"an entry of the log skips events that are not below {changes.num_events}")
    skip = np.zeros(changes.num_events, np.bool_)
    skip[skipped] = True
    return StoredBatch(changes, skip, through_ms)


#: In one batch: readers may allocate arrays of that length.
MAX_EVENTS = 2**24
_MAGIC = b"HLch"
_INT, _BOOL, _FLOAT, _LENGTH, _BYTE = (np.dtype(name) for name in ("<i8", "?", "<f4", "<u4", "u1"))
_DOUBLE = np.dtype("<f8")
#: Instead of the number of string bytes: ids are integers, or the column is missing.
_NO_STRINGS = -1
#: Instead of the first value of `order`: the column is stored.
_STORED = -1


class _Edges(msgspec.Struct, array_like=True):
    """Head of one edge type; *_bytes are the lengths of strings, the last fields as of nodes."""

    key: str
    num_rows: int
    src_bytes: int
    dst_bytes: int
    first: int
    time: bool
    has_time: bool
    weight: bool
    attr_dim: int
    columns: int = -1
    num_texts: int = 0
    text_bytes: int = 0


class _Nodes(msgspec.Struct, array_like=True):
    """Head of one node type; `columns` is -1 where it has none."""

    name: str
    num_rows: int
    id_bytes: int
    first: int
    dim: int
    columns: int = -1
    num_texts: int = 0
    text_bytes: int = 0
    remove: bool = False
    time: bool = False


class _Head(msgspec.Struct, array_like=True):
    num_events: int
    edges: list[_Edges]
    nodes: list[_Nodes]
    event_id_bytes: int
    event_time: bool
    positions: dict[str, Any]
    is_whole: bool = False


class _Applied(msgspec.Struct, array_like=True):
    """`duplicates` is int64 little-endian."""

    sequence: int
    num_applied: int
    duplicates: bytes
    rejected: tuple[Rejected, ...]


_encoder = msgspec.msgpack.Encoder()
_heads = msgspec.msgpack.Decoder(_Head)
_outcomes = msgspec.msgpack.Decoder(_Applied)


def encode_changes(changes: Changes) -> bytes:
    """Encode a batch.

    Raises: BadRequest: columns of one group differ in length, ids are neither integers nor strings, or
        positions hold values that msgpack cannot encode.
    """
    if not 0 <= changes.num_events <= MAX_EVENTS:
        raise BadRequest(f"changes of {changes.num_events} events; the limit of a batch is {MAX_EVENTS}")
    columns = _Columns()
    edges = [_put_edges(columns, key, group) for key, group in changes.edges.items()]
    nodes = [_put_nodes(columns, name, group) for name, group in changes.nodes.items()]
    event_id_bytes = _NO_STRINGS
    if len(changes.event_ids):
        columns.expect("event_ids", len(changes.event_ids), changes.num_events)
        event_id_bytes = columns.strings(list(changes.event_ids))
    if changes.event_time_ms is not None:
        columns.put("event_time_ms", changes.event_time_ms, _INT, (changes.num_events,))
    head = _Head(
        changes.num_events,
        edges,
        nodes,
        event_id_bytes,
        changes.event_time_ms is not None,
        dict(changes.positions),
        changes.is_whole,
    )
    try:
        packed = _encoder.encode(head)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRequest(f"changes cannot be encoded: {error}; positions must be plain values") from None
    begin = _MAGIC + len(packed).to_bytes(4, "little") + packed
    return b"".join((begin, bytes(-len(begin) % 8), *columns.pieces))


def decode_changes(data: bytes | bytearray | memoryview) -> Changes:
    """Decode the result of `encode_changes`.

    Args:
        data: kept alive by the arrays of the result, which are views of it.
    Raises: BadRequest: the bytes are not the result of `encode_changes`.
    """
    try:
        return _decode(memoryview(data).cast("B"))
    except (*UNREADABLE, OverflowError) as error:
        raise BadRequest(f"changes are malformed: {error}") from None


def encode_applied(applied: Applied) -> bytes:
    """Encode an outcome."""
    rejected = tuple(
        Rejected(int(r.order), r.code, str(r.reason.encode("utf-8", "backslashreplace"), "utf-8"))
        for r in applied.rejected
    )
    duplicates = np.asarray(applied.duplicates, _INT).tobytes()
    return _encoder.encode(_Applied(int(applied.sequence), int(applied.num_applied), duplicates, rejected))


def decode_applied(data: bytes | bytearray | memoryview) -> Applied:
    """Decode the result of `encode_applied`. Raises: BadRequest: the bytes are something else."""
    try:
        found = _outcomes.decode(data)
    except UNREADABLE as error:
        raise BadRequest(f"an outcome is malformed: {error}") from None
    if len(found.duplicates) % _INT.itemsize:
        raise BadRequest(f"an outcome is malformed: {len(found.duplicates)} bytes are not int64 positions")
    duplicates = np.frombuffer(found.duplicates, _INT).tolist()
    return Applied(found.sequence, found.num_applied, tuple(duplicates), found.rejected)


class _Columns:
    """Writes columns in sequence."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []

    def expect(self, what: str, found: int, wanted: int) -> None:
        if found != wanted:
            raise BadRequest(f"changes: {what} has {found} rows; expected {wanted}")

    def put(self, what: str, values: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        array = np.ascontiguousarray(values, dtype)
        if array.shape != shape:
            raise BadRequest(f"changes: {what} has shape {list(array.shape)}; expected {list(shape)}")
        if array.size:
            self.pieces.append(array.data.cast("B"))
            self.pieces.append(bytes(-array.nbytes % 8))

    def strings(self, values: Sequence[str]) -> int:
        """Write strings; returns the number of their bytes."""
        blob, lengths = id_values.encoded(values)
        self.put("lengths", lengths, _LENGTH, (len(values),))
        self.put("strings", blob, _BYTE, blob.shape)
        return int(blob.shape[0])

    def ids(self, what: str, ids: Ids, num_rows: int) -> int:
        """Write ids; returns the number of string bytes, _NO_STRINGS for integers."""
        kind, values = id_values.typed(ids)
        self.expect(what, len(values), num_rows)
        if kind == "string":
            return self.strings(values)
        ints = id_values.as_int64(values)
        if ints is None:
            raise BadRequest(f"changes: an id of {what} does not fit into a signed 64-bit integer")
        self.put(what, ints, _INT, (num_rows,))
        return _NO_STRINGS

    def order(self, order: Any, num_rows: int) -> int:
        """Write `order`; returns the first value if it counts up by one and is not stored."""
        array = np.ascontiguousarray(order, _INT)
        if array.shape == (num_rows,) and num_rows and array[0] >= 0:
            first = int(array[0])
            if array[-1] == first + num_rows - 1 and (num_rows < 3 or bool((np.diff(array) == 1).all())):
                return first
        self.put("order", array, _INT, (num_rows,))
        return _STORED


def _put_edges(columns: _Columns, key: str, group: EdgeChanges) -> _Edges:
    n = len(group)
    src = columns.ids(f"src of {key}", group.src, n)
    dst = columns.ids(f"dst of {key}", group.dst, n)
    columns.put(f"remove of {key}", group.remove, _BOOL, (n,))
    first = columns.order(group.order, n)
    for name, dtype in (("time", _INT), ("has_time", _BOOL), ("weight", _FLOAT)):
        values = getattr(group, name)
        if values is not None:
            columns.put(f"{name} of {key}", values, dtype, (n,))
    dim = -1 if group.attr is None else int(np.shape(group.attr)[-1])
    if group.attr is not None:
        columns.put(f"attr of {key}", group.attr, _FLOAT, (n, dim))
    time, has_time, weight = (each is not None for each in (group.time, group.has_time, group.weight))
    return _Edges(key, n, src, dst, first, time, has_time, weight, dim, *_put_cells(columns, key, group))


def _put_nodes(columns: _Columns, name: str, group: NodeChanges) -> _Nodes:
    n = len(group)
    id_bytes = columns.ids(f"ids of {name}", group.ids, n)
    columns.put(f"add of {name}", group.add, _BOOL, (n,))
    first = columns.order(group.order, n)
    dim = int(np.shape(group.features)[-1])
    columns.put(f"features of {name}", group.features, _FLOAT, (n, dim))
    cells, remove = _put_cells(columns, name, group), group.remove is not None
    if remove:
        columns.put(f"remove of {name}", group.remove, _BOOL, (n,))
    if time := group.time is not None:
        columns.put(f"time of {name}", group.time, _INT, (n,))
    return _Nodes(name, n, id_bytes, first, dim, *cells, remove, time)


def _put_cells(columns: _Columns, name: str, group: EdgeChanges | NodeChanges) -> tuple[int, int, int]:
    """Write rows; returns the number of columns, -1 for none, of those of texts, and the texts' bytes."""
    if group.cells is None or group.texts is None:
        return -1, 0, 0
    shape = len(group), int(np.shape(group.cells)[-1])
    columns.put(f"cells of {name}", group.cells, _DOUBLE, shape)
    texts = group.texts.ravel().tolist()
    columns.expect(f"texts of {name}", len(group.texts), len(group))
    columns.put(f"texts of {name}", [text is not None for text in texts], _BOOL, (len(texts),))
    return shape[1], group.texts.shape[1], columns.strings([text or "" for text in texts])


def _decode(data: memoryview) -> Changes:
    if bytes(data[:4]) != _MAGIC or len(data) < 8:
        raise BadRequest(f"changes begin with {bytes(data[:4])!r}; expected {_MAGIC!r}")
    length = int.from_bytes(data[4:8], "little")
    if length > len(data) - 8:
        raise BadRequest(f"changes are truncated: {len(data)} bytes cannot have a head of {length}")
    head = _heads.decode(data[8 : 8 + length])
    if not 0 <= head.num_events <= MAX_EVENTS:
        raise BadRequest(f"changes of {head.num_events} events; the limit of a batch is {MAX_EVENTS}")
    cursor = _Cursor(data, 8 + length + -(8 + length) % 8)
    edges = {each.key: _take_edges(cursor, each, head.num_events) for each in head.edges}
    nodes = {each.name: _take_nodes(cursor, each, head.num_events) for each in head.nodes}
    if len(edges) != len(head.edges) or len(nodes) != len(head.nodes):
        raise BadRequest("changes repeat an edge type or a node type")
    event_ids: Sequence[str] = ()
    if head.event_id_bytes != _NO_STRINGS:
        event_ids = cursor.strings(head.num_events, head.event_id_bytes)
    event_time_ms = cursor.take(_INT, head.num_events) if head.event_time else None
    if cursor.at != len(data):
        raise BadRequest(f"changes of {cursor.at} bytes are followed by {len(data) - cursor.at} more bytes")
    return Changes(edges, nodes, head.num_events, event_ids, event_time_ms, head.positions, head.is_whole)


class _Cursor:
    """Reads columns in sequence."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self.at = at

    def take(self, dtype: np.dtype[Any], count: int) -> AnyArray:
        """A view of the next column, in native byte order."""
        begin, num_bytes = self.at, count * dtype.itemsize
        end = begin + num_bytes + -num_bytes % 8
        if count < 0 or end > len(self._data):
            raise BadRequest(
                f"changes are truncated: {count} values at byte {begin} end at {end}, of {len(self._data)}"
            )
        self.at = end
        if dtype == _BOOL:
            # Other bytes than 0 and 1 would be neither true nor false in compiled code.
            as_bytes = np.frombuffer(self._data, _BYTE, count, begin) if count else np.empty(0, _BYTE)
            if count and as_bytes.max() > 1:
                raise BadRequest(f"changes hold {as_bytes.max()} as a boolean at byte {begin}")
            return as_bytes.view(np.bool_)
        array = np.frombuffer(self._data, dtype, count, begin) if count else np.empty(0, dtype)
        return array.astype(dtype.newbyteorder("="), copy=False)

    def strings(self, count: int, num_bytes: int) -> list[str]:
        lengths = self.take(_LENGTH, count)
        blob = memoryview(self.take(_BYTE, num_bytes))  # type: ignore[arg-type]
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        if (ends[-1] if ends else 0) != num_bytes:
            raise BadRequest(f"changes: {count} strings do not have {num_bytes} bytes")
        begins = [0, *ends[:-1]]
        text = str(blob, "utf-8", "surrogatepass")
        if len(text) == num_bytes:  # ASCII: byte positions are character positions
            return [text[begin:end] for begin, end in zip(begins, ends, strict=False)]
        return [
            str(blob[begin:end], "utf-8", "surrogatepass") for begin, end in zip(begins, ends, strict=False)
        ]

    def ids(self, count: int, num_bytes: int) -> Ids:
        return self.take(_INT, count) if num_bytes == _NO_STRINGS else self.strings(count, num_bytes)

    def rows(self, count: int, dim: int, dtype: np.dtype[Any] = _FLOAT) -> AnyArray:
        if not 0 <= dim < 2**31:
            raise BadRequest(f"changes: rows of {dim} columns")
        return self.take(dtype, count * dim).reshape(count, dim)

    def order(self, count: int, first: int, num_events: int) -> IdArray:
        if first == _STORED:
            order = self.take(_INT, count)
            bounds = (int(order[0]), int(order[-1])) if count else (0, -1)
            ascends = bool((order[1:] >= order[:-1]).all())
        else:
            bounds, ascends = (first, first + count - 1), True
        if not ascends or bounds[0] < 0 or bounds[1] >= num_events:
            raise BadRequest(f"changes: order does not ascend from 0 to below {num_events}")
        return order if first == _STORED else np.arange(first, first + count, dtype=np.int64)


def _take_edges(cursor: _Cursor, head: _Edges, num_events: int) -> EdgeChanges:
    n = head.num_rows
    src, dst = cursor.ids(n, head.src_bytes), cursor.ids(n, head.dst_bytes)
    remove = cursor.take(_BOOL, n)
    order = cursor.order(n, head.first, num_events)
    time = cursor.take(_INT, n) if head.time else None
    has_time = cursor.take(_BOOL, n) if head.has_time else None
    weight = cursor.take(_FLOAT, n) if head.weight else None
    attr = cursor.rows(n, head.attr_dim) if head.attr_dim != -1 else None
    return EdgeChanges(src, dst, remove, order, time, has_time, weight, attr, *_take_cells(cursor, head))


def _take_nodes(cursor: _Cursor, head: _Nodes, num_events: int) -> NodeChanges:
    n = head.num_rows
    ids = cursor.ids(n, head.id_bytes)
    add = cursor.take(_BOOL, n)
    order = cursor.order(n, head.first, num_events)
    features = cursor.rows(n, head.dim)
    cells, texts = _take_cells(cursor, head)
    remove = cursor.take(_BOOL, n) if head.remove else None
    time = cursor.take(_INT, n) if head.time else None
    return NodeChanges(ids, add, features, order, cells, texts, remove, time)


def _take_cells(cursor: _Cursor, head: _Edges | _Nodes) -> tuple[AnyArray | None, AnyArray | None]:
    if head.columns < 0:
        return None, None
    cells = cursor.rows(head.num_rows, head.columns, _DOUBLE)
    count = head.num_rows * head.num_texts
    given = cursor.take(_BOOL, count).tolist()
    strings = cursor.strings(count, head.text_bytes)
    texts = np.array([text if yes else None for text, yes in zip(strings, given, strict=True)], object)
    return cells, texts.reshape(head.num_rows, head.num_texts)
