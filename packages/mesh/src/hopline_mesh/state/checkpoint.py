"""A file with a JSON header and arrays, written atomically, in the form of a segment.

Its first record is the header, each other one a piece of 8 MiB of an array as zlib data. In a piece all
first bytes of the numbers come first, then all second ones and so on, because high bytes of windows are
nearly all equal. Reading a file executes nothing in it. Knows bytes, not their meaning.
"""

from __future__ import annotations

import errno
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hopline.files import draft_of, publish_file
from hopline_mesh.errors import StateDamaged
from hopline_mesh.state.segment import MAGIC, framed, read_segment

_PIECE = 8 * 2**20
_KINDS = "biuf"  # booleans, integers, floats

Arrays = Mapping[str, NDArray[Any]]


def write_checkpoint(path: Path, meta: Mapping[str, Any], arrays: Arrays, *, most: float = math.inf) -> int:
    """Write a file atomically: at any time the complete old or the complete new file exists.

    Args:
        meta: JSON values.
        arrays: of booleans, integers or floats; they are compressed, some 50 MB a second.
        most: maximum size in bytes.

    Returns: its size in bytes.

    Raises:
        OSError: the disk is full, a write failed, or the file would be larger than `most`; the old file
            still exists.
    """
    draft = draft_of(path)
    try:
        with draft.open("wb") as file:
            size = write_to(file, meta, arrays, most=most)
        publish_file(draft, path, durable=True)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return size


def write_to(file: BinaryIO, meta: Mapping[str, Any], arrays: Arrays, *, most: float = math.inf) -> int:
    """Write the content of a file, as `write_checkpoint`, to an open one.

    Returns: its size in bytes.
    """
    size = file.write(MAGIC)
    for record in _records(meta, arrays):
        size += len(record)
        if size > most:
            raise OSError(errno.ENOSPC, f"the file is larger than the {most:.0f} bytes that are left")
        file.write(record)
    return size


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and arrays of a file; the caller may change the arrays.

    Raises:
        StateDamaged: the file cannot be read, is incomplete or changed, or of another version; the message
            names it.
    """
    records = read_segment(path)
    try:
        header = json.loads(next(records))
        arrays = {}
        for name, kind, shape in header["arrays"]:
            dtype = np.dtype(kind)
            if dtype.kind not in _KINDS:
                raise ValueError(f"array of {kind}")
            raw = np.empty(dtype.itemsize * math.prod(shape), np.uint8)
            for at in range(0, len(raw), _PIECE):
                piece = np.frombuffer(zlib.decompress(next(records)), np.uint8)
                raw[at : at + _PIECE] = piece.reshape(dtype.itemsize, -1).T.reshape(-1)
            arrays[name] = raw.view(dtype).reshape(shape)
        return header["meta"], arrays
    except StopIteration:
        raise StateDamaged(f"{path}: was cut off after a record") from None
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise StateDamaged(f"{path}: invalid content: {error}") from None


def _records(meta: Mapping[str, Any], arrays: Arrays) -> Iterator[bytes]:
    for name, array in arrays.items():
        if array.dtype.kind not in _KINDS:
            raise TypeError(
                f"array {name} has {array.dtype}; state may have only booleans, integers and floats"
            )
    table = [(name, array.dtype.str, array.shape) for name, array in arrays.items()]
    yield framed(json.dumps({"meta": meta, "arrays": table}).encode())
    for array in arrays.values():
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for at in range(0, len(raw), _PIECE):
            piece = raw[at : at + _PIECE].reshape(-1, array.dtype.itemsize)
            yield framed(zlib.compress(piece.T.tobytes(), 1))
