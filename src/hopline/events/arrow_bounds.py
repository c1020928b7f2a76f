"""Bounds the memory of an Arrow IPC stream, from its metadata, before anything is built.

An IPC stream is a sequence of messages, each of metadata (a flatbuffer, `Message.fbs`) and a body. The
metadata declares how many rows, values and bytes there are. A column of nulls has no bytes at all, and a
compressed buffer few of them: a body of 200 bytes can declare 21 GiB. This file reads only those numbers,
no values. pyarrow does not show them. It verifies the flatbuffers again when it reads the stream.

Format: https://arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess Communication".
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from hopline.types import IdArray

#: Rows of one stream.
MAX_ROWS = 100_000
#: Bytes of the stream for each row; a stream may always have the second number of rows.
_BYTES_A_ROW, _ROWS_ALWAYS = 4, 4_096
#: Bytes in memory for each byte of the stream, and bytes that every stream may use. Events of 64 KiB
#: then grow a process by less than 16 MiB, with the copies on the way to the graph.
_GROWTH, _BYTES_ALWAYS = 32, 4 * 2**20
#: But no more than these bytes, or this factor for a long stream: the writer reads messages of 256 MiB.
_BYTES_EVER, _GROWTH_EVER = 128 * 2**20, 4
#: Bytes that each message and each value costs, whatever its width: NumPy uses 8 bytes for most.
_MESSAGE_BYTES, _VALUE_BYTES = 1024, 8
#: Fields of a schema, nested ones included: a refusal names some that the graph lacks.
MAX_FIELDS = 1_000
_MAX_DEPTH = 8

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3  # MessageHeader


class TooMuch(Exception):
    """A stream that would become too large; the text says why, and what to send instead."""


class Malformed(Exception):
    """Not an Arrow IPC stream."""


def most_bytes(num_bytes: int) -> int:
    """Bytes of memory that a stream of a length may use."""
    return max(_BYTES_ALWAYS, min(_GROWTH * num_bytes, max(_BYTES_EVER, _GROWTH_EVER * num_bytes)))


def check(payload: bytes, max_columns: int, row_bytes: int) -> None:
    """Count the memory that a stream would use.

    Args:
        max_columns: the columns that events of the graph can have.
        row_bytes: of the longest vector of an edge, which is built for removals as well.

    Raises:
        TooMuch: more than a stream of this length may use.
        Malformed: the metadata cannot be read.
    """
    try:
        _count(payload, max_columns, row_bytes)
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise Malformed(f"its metadata cannot be read ({error})") from None


def _count(payload: bytes, max_columns: int, row_bytes: int) -> None:
    limit = most_bytes(len(payload))
    max_rows = min(MAX_ROWS, max(_ROWS_ALWAYS, len(payload) // _BYTES_A_ROW))
    rows = total = in_dictionaries = 0
    at, first = 0, True
    while at + 8 <= len(payload):
        mark, length = struct.unpack_from("<ii", payload, at)
        if mark != -1:
            raise ValueError(f"no message begins at byte {at}")
        if length == 0:
            at += 8
            break
        body = at + 8 + length
        if length < 0 or body > len(payload):
            raise ValueError(f"a message at byte {at} declares metadata of {length} bytes")
        metadata = memoryview(payload)[at + 8 : body]
        message = _FlatTable(metadata, struct.unpack_from("<I", metadata)[0])
        kind, num_bytes = message.number(1, "<B"), message.number(3, "<q")
        if not 0 <= num_bytes <= len(payload) - body:
            raise ValueError(f"a message at byte {at} declares a body of {num_bytes} bytes")
        header = message.table(2)
        if header is None or (kind == _SCHEMA) != first:
            raise ValueError(f"the message at byte {at} is not allowed there")
        data = memoryview(payload)[body : body + num_bytes]
        total += _MESSAGE_BYTES
        if kind == _SCHEMA:
            _check_fields(header, max_columns)
        elif kind == _DICTIONARY:
            batch = header.table(1)
            if batch is None:
                raise ValueError("a dictionary without values")
            # A delta is joined to its dictionary, and each batch reads all dictionaries again.
            in_dictionaries += _size(batch, data, limit)
            total += in_dictionaries
        elif kind == _BATCH:
            num_rows = header.number(0, "<q")
            if num_rows < 0:
                raise ValueError(f"a batch of {num_rows} rows")
            rows += num_rows
            total += _size(header, data, limit) + in_dictionaries + num_rows * row_bytes
        else:
            raise ValueError(f"a message of kind {kind}")
        if rows > max_rows:
            if max_rows == MAX_ROWS:
                raise TooMuch(f"{rows} events in one payload; at most {MAX_ROWS} are allowed")
            raise TooMuch(
                f"{rows} rows in {len(payload)} bytes; at most one row for {_BYTES_A_ROW} bytes is read "
                f"({max_rows} here); send fewer events in one request, or uncompressed"
            )
        if total > limit:
            raise TooMuch(
                f"its columns would take more than {limit} bytes of memory, the most for a stream of "
                f"{len(payload)} bytes; send fewer events in one request, or uncompressed"
            )
        at, first = body + num_bytes, False
    if payload[at:].strip(b"\0"):  # padding is zeros; a reader would stop here silently
        num_left = len(payload) - at
        raise Malformed(f"{num_left} bytes follow the end of the stream; send one stream in a body")


def _check_fields(schema: _FlatTable, max_columns: int) -> None:
    """Check the number and the nesting of columns.

    Raises: TooMuch: more columns than a graph's events can have, or deeply nested ones.
    """
    most = MAX_FIELDS + max_columns
    level, count = schema.tables(1, most), 0
    for _ in range(_MAX_DEPTH):
        count += len(level)
        below: list[_FlatTable] = []
        for field in level:
            below += field.tables(5, most - count - len(below))
        if not below:
            return
        level = below
    raise TooMuch("columns are nested too deeply; use lists of numbers")


def _size(batch: _FlatTable, body: memoryview, limit: int) -> int:
    """Bytes that a batch of columns uses in memory."""
    lengths = batch.pairs(1)[:, 0]
    begins, sizes = batch.pairs(2).T
    if lengths.size and (lengths.min() < 0 or lengths.max() > limit):
        if lengths.min() < 0:
            raise ValueError("a column of negative length")
        raise TooMuch(f"a column of {lengths.max()} values; fewer than {limit} are read")
    if sizes.size:
        outside = min(sizes.min(), begins.min()) < 0 or max(sizes.max(), begins.max()) > len(body)
        if outside or (begins + sizes).max() > len(body):
            raise ValueError("a buffer lies outside of its message")
    total = int(lengths.sum()) * _VALUE_BYTES + int(sizes.sum())
    if (
        batch.table(3) is not None
    ):  # compressed: each buffer begins with its uncompressed length; -1 means not compressed
        for begin, size in zip(begins.tolist(), sizes.tolist(), strict=True):
            if size >= 8:
                declared = struct.unpack_from("<q", body, begin)[0]
                if declared < -1:
                    raise ValueError(f"a buffer of {declared} bytes")
                total += max(0, declared)
    return total


class _FlatTable:
    """A table of a flatbuffer: fields by their number in the schema file."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        table = at - self._unsigned(at, "<i")
        self._num_bytes = self._unsigned(table, "<H")
        self._fields = table

    def number(self, field: int, form: str) -> int:
        """A scalar; 0 if it is missing."""
        place = self._place(field)
        return self._unsigned(place, form) if place else 0

    def table(self, field: int) -> _FlatTable | None:
        """A table that is a field; None if it is missing."""
        place = self._place(field)
        return _FlatTable(self._data, place + self._unsigned(place, "<I")) if place else None

    def tables(self, field: int, most: int) -> list[_FlatTable]:
        """A vector of tables. Raises: TooMuch: more than `most`."""
        begin, count = self._vector(field)
        if count > most:
            raise TooMuch(f"more than {MAX_FIELDS} columns that the graph does not know")
        places = range(begin, begin + 4 * count, 4)
        return [_FlatTable(self._data, place + self._unsigned(place, "<I")) for place in places]

    def pairs(self, field: int) -> IdArray:
        """A vector of structs of two int64: [n, 2]."""
        begin, count = self._vector(field)
        if count == 0:
            return np.empty((0, 2), np.int64)
        return np.frombuffer(self._data, "<i8", 2 * count, begin).reshape(count, 2)

    def _vector(self, field: int) -> tuple[int, int]:
        """The place of the first item, and the number of items."""
        place = self._place(field)
        if not place:
            return 0, 0
        begin = place + self._unsigned(place, "<I")
        return begin + 4, self._unsigned(begin, "<I")

    def _place(self, field: int) -> int:
        """The place of a field; 0 if it is missing."""
        slot = 4 + 2 * field
        offset = self._unsigned(self._fields + slot, "<H") if slot < self._num_bytes else 0
        return self._at + offset if offset else 0

    def _unsigned(self, at: int, form: str) -> int:
        if at < 0:
            raise ValueError("an offset before the beginning")
        value: Any = struct.unpack_from(form, self._data, at)[0]
        return int(value)
