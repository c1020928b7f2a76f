"""A file of the state: records in order, each with its length and its CRC-32.

It can be read without others. An incomplete record at the end, after a kill or on a full disk, is
ignored; the records before it are valid. Knows bytes.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from hopline_mesh.errors import StateDamaged

#: The last two digits are the version of the format.
MAGIC = b"HLMESH02"
_HEAD = struct.Struct("<II")


def framed(payload: bytes) -> bytes:
    """Return a record in its written form."""
    return _HEAD.pack(len(payload), zlib.crc32(payload)) + payload


class SegmentWriter:
    """Appends to a new file.

    Raises:
        OSError: the disk is full, or a write failed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = 0
        self._file = path.open("xb", buffering=0)
        self.size = 0
        try:
            self._write(MAGIC)
        except OSError:
            self.close()
            path.unlink(missing_ok=True)
            raise

    def append(self, payload: bytes) -> None:
        """Write one record.

        Raises:
            OSError: the disk is full, or a write failed; then close the file, whose end is incomplete.
        """
        self._write(framed(payload))
        os.fdatasync(self._file.fileno())
        self.records += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            done = self._file.write(left)
            self.size += done
            left = left[done:]


def read_segment(path: Path) -> Iterator[bytes]:
    """Yield the records of a file, oldest first.

    Raises:
        StateDamaged: after the last valid record, if the rest is incomplete or changed; at the start, if
            the file is of another version or cannot be read.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            magic = file.read(len(MAGIC))
            if magic != MAGIC:
                raise StateDamaged(f"{path}: not a state file of this version of Hopline: {magic!r}")
            while head := file.read(_HEAD.size):
                at = file.tell() - len(head)
                if len(head) < _HEAD.size:
                    raise StateDamaged(f"{path}: was cut off at byte {at}")
                length, crc = _HEAD.unpack(head)
                if at + _HEAD.size + length > size:
                    raise StateDamaged(f"{path}: was cut off in the record at byte {at}")
                payload = file.read(length)
                if zlib.crc32(payload) != crc:
                    raise StateDamaged(f"{path}: the record at byte {at} was changed after it was written")
                yield payload
    except OSError as error:
        raise StateDamaged(f"{path}: cannot be read: {error.strerror}") from None
