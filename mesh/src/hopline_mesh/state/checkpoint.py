"""A file with a JSON header and arrays, written atomically.

Layout: magic (8 bytes), length of the header (uint64, little-endian), header, arrays in order, SHA-256 of
all of it. A packed array is pieces of 8 MiB, each as its length (uint32) and zlib data. In a piece all
first bytes of the numbers come first, then all second ones and so on, because high bytes of windows are
nearly all equal. Reading a file executes nothing in it. Knows bytes, not their meaning.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hopline_mesh.errors import StateDamaged

#: The last two digits are the version of the format.
MAGIC = b"HLMESH01"
_DIGEST_BYTES = 32
_PIECE = 8 * 2**20
_KINDS = "biuf"  # booleans, integers, floats

Arrays = Mapping[str, NDArray[Any]]


def checkpoint_bytes(meta: Mapping[str, Any], arrays: Arrays) -> int:
    """Return the size of the unpacked file in bytes."""
    payload = sum(array.nbytes for array in arrays.values())
    return len(MAGIC) + 8 + len(_header(meta, arrays, packed=False)) + payload + _DIGEST_BYTES


def write_checkpoint(
    path: Path, meta: Mapping[str, Any], arrays: Arrays, *, packed: bool = False, most: float = math.inf
) -> int:
    """Write a file atomically: at any time the complete old or the complete new file exists.

    Args:
        meta: JSON values.
        arrays: of booleans, integers or floats.
        packed: compress; smaller and slower, some 50 MB a second.
        most: maximum size in bytes.

    Returns: its size in bytes.

    Raises:
        OSError: the disk is full, a write failed, or the file would be larger than `most`; the old file
            still exists.
    """
    partial = path.with_name(f"{path.name}.part")
    try:
        with partial.open("wb") as file:
            size = write_to(file, meta, arrays, packed=packed, most=most)
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return size


def write_to(
    file: BinaryIO, meta: Mapping[str, Any], arrays: Arrays, *, packed: bool = False, most: float = math.inf
) -> int:
    """Write the content of a file, as `write_checkpoint`, to an open one.

    Returns: its size in bytes.
    """
    digest = hashlib.sha256()
    size = _DIGEST_BYTES
    for part in _parts(meta, arrays, packed):
        size += len(part)
        if size > most:
            raise OSError(errno.ENOSPC, f"the file is larger than the {most:.0f} bytes that are left")
        digest.update(part)
        file.write(part)
    file.write(digest.digest())
    file.flush()
    return size


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and arrays of a file; the caller may change the arrays.

    Raises:
        StateDamaged: the file cannot be read, is incomplete or changed, or of another version; the message
            names it.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StateDamaged(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) < len(MAGIC) + 8 + _DIGEST_BYTES or data[:6] != MAGIC[:6]:
        raise StateDamaged(f"{path}: not a state file of the mesh watch, or cut off")
    if data[: len(MAGIC)] != MAGIC:
        found, known = data[6:8].decode("ascii", "replace"), MAGIC[6:].decode()
        raise StateDamaged(f"{path}: has format {found!r}; this version of Hopline reads {known!r}")
    body = memoryview(data)[:-_DIGEST_BYTES]
    if hashlib.sha256(body).digest() != data[-_DIGEST_BYTES:]:
        raise StateDamaged(f"{path}: was changed after it was written: its SHA-256 differs")
    start = len(MAGIC) + 8
    end = start + int.from_bytes(data[len(MAGIC) : start], "little")
    try:
        header = json.loads(bytes(body[start:end]))
        arrays = {}
        for name, kind, shape, packed in header["arrays"]:
            dtype = np.dtype(kind)
            if dtype.kind not in _KINDS:
                raise ValueError(f"array of {kind}")
            start, size = end, dtype.itemsize * math.prod(shape)
            if packed:
                raw, end = _unpacked(body, start, size, dtype.itemsize)
            else:
                end = start + size
                raw = np.frombuffer(body[start:end], np.uint8).copy()
            arrays[name] = raw.view(dtype).reshape(shape)
        return header["meta"], arrays
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise StateDamaged(f"{path}: invalid content: {error}") from None


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable; ignores file systems that cannot."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)


def _parts(meta: Mapping[str, Any], arrays: Arrays, packed: bool) -> Iterator[bytes | memoryview]:
    """Yield the file's bytes without the digest."""
    header = _header(meta, arrays, packed=packed)
    yield MAGIC + len(header).to_bytes(8, "little") + header
    for array in arrays.values():
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if not packed:
            yield raw.data
            continue
        for at in range(0, len(raw), _PIECE):
            piece = raw[at : at + _PIECE].reshape(-1, array.dtype.itemsize)
            data = zlib.compress(piece.T.tobytes(), 1)
            yield len(data).to_bytes(4, "little") + data


def _unpacked(body: memoryview, start: int, size: int, itemsize: int) -> tuple[NDArray[np.uint8], int]:
    """Return the bytes of a packed array that begins at `start`, and its end."""
    raw = np.empty(size, np.uint8)
    for at in range(0, size, _PIECE):
        wanted = min(_PIECE, size - at)
        length = int.from_bytes(body[start : start + 4], "little")
        data = zlib.decompress(body[start + 4 : start + 4 + length], bufsize=wanted)
        piece = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
        raw[at : at + wanted] = np.ascontiguousarray(piece.T).reshape(-1)
        start += 4 + length
    return raw, start


def _header(meta: Mapping[str, Any], arrays: Arrays, *, packed: bool) -> bytes:
    for name, array in arrays.items():
        if array.dtype.kind not in _KINDS:
            raise TypeError(
                f"array {name} has {array.dtype}; state may have only booleans, integers and floats"
            )
    table = [(name, array.dtype.str, array.shape, packed) for name, array in arrays.items()]
    return json.dumps({"meta": meta, "arrays": table}).encode()
