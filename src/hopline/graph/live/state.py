"""State that a snapshot stores next to the graph, in one file: seen events, source positions, changed_at.

    b"HLstate1" │ u32 length of the head │ u32 crc of the head │ head: JSON │ arrays

Each array begins at a multiple of 64. The head names each array's dtype and shape and the checksum of its
bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from hopline.errors import LogDamaged
from hopline.graph.live import seen
from hopline.types import UNREADABLE, AnyArray, IdArray

_MAGIC = b"HLstate1"
_BEGIN = len(_MAGIC) + 8
_ALIGN = 64
#: Prefix of the names of arrays that are not changed_at.
_SEEN = "seen"
_CHANGED_AT = "changed_at/"


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """State of a snapshot; see the module.

    Attributes:
        lineage: snapshot id of the original graph.
        sequence: the version.
        through_ms: it contains everything that happened until then, ms since 1970.
        positions: source -> the position that follows its last event.
        seen: uint64 [n, 2], hashes of event ids, oldest first.
        changed_at: node type -> int64 [levels, nodes], when states may last have changed.
    """

    lineage: str
    sequence: int
    through_ms: int = 0
    positions: Mapping[str, Any] = field(default_factory=dict)
    seen: NDArray[np.uint64] = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    changed_at: Mapping[str, IdArray] = field(default_factory=dict)


class _Array(msgspec.Struct):
    name: str
    dtype: str
    shape: tuple[int, ...]
    crc: int


class _Head(msgspec.Struct):
    lineage: str
    sequence: int
    through_ms: int
    positions: dict[str, Any]
    hash: str
    arrays: list[_Array]


def write_state(path: Path, state: State) -> None:
    """Write the file; the caller syncs it. Raises: OSError."""
    arrays = {_SEEN: state.seen} | {_CHANGED_AT + name: array for name, array in state.changed_at.items()}
    ready = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    entries = [
        _Array(name, array.dtype.newbyteorder("<").str, array.shape, zlib.crc32(_bytes_of(array)))
        for name, array in ready.items()
    ]
    head = msgspec.json.encode(
        _Head(state.lineage, state.sequence, state.through_ms, dict(state.positions), seen.HASH, entries)
    )
    with path.open("wb") as file:
        file.write(_MAGIC + len(head).to_bytes(4, "little") + zlib.crc32(head).to_bytes(4, "little") + head)
        for array in ready.values():
            file.write(bytes(-file.tell() % _ALIGN))
            file.write(_bytes_of(array))


def read_state(path: Path) -> State:
    """Read a file.

    Raises: LogDamaged: it cannot be read, or is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise LogDamaged(f"{path} cannot be read: {error.strerror}") from error
    length = int.from_bytes(data[8:12], "little")
    packed = data[_BEGIN : _BEGIN + length]
    if not data.startswith(_MAGIC) or zlib.crc32(packed).to_bytes(4, "little") != data[12:16]:
        raise LogDamaged(f"{path}: the checksum of its head (byte 0) differs")
    try:
        head = msgspec.json.decode(packed, type=_Head)
    except UNREADABLE as error:
        raise LogDamaged(
            f"{path}: its head is malformed: {error}; was it written by a newer Hopline?"
        ) from None
    arrays = _arrays(path, memoryview(data), _BEGIN + length, head.arrays)
    known = arrays.pop(_SEEN)
    if head.hash != seen.HASH:  # hashes are unusable: a repeated event may be applied again
        known = np.empty((0, 2), np.uint64)
    changed_at = {name.removeprefix(_CHANGED_AT): array for name, array in arrays.items()}
    return State(head.lineage, head.sequence, head.through_ms, head.positions, known, changed_at)


def _arrays(path: Path, data: memoryview, at: int, entries: list[_Array]) -> dict[str, AnyArray]:
    found = {}
    for entry in entries:
        dtype = np.dtype(entry.dtype)
        at += -at % _ALIGN
        count = int(np.prod(entry.shape, dtype=object))
        content = data[at : at + count * dtype.itemsize]
        if len(content) < count * dtype.itemsize or zlib.crc32(content) != entry.crc:
            raise LogDamaged(f"{path}: {entry.name} at byte {at} is damaged")
        found[entry.name] = np.frombuffer(content, dtype).reshape(entry.shape)
        at += len(content)
    return found


def _bytes_of(array: AnyArray) -> memoryview:
    return array.data.cast("B") if array.size else memoryview(b"")
