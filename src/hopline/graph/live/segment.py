"""One file of the log: its format, how it is read, and how an incomplete end is detected.

    header, 128 bytes    magic │ format u32 │ salt u32 │ first sequence u64 │ lineage │ crc u32
    record, 32 + n       marker u32 │ n u32 │ sequence u64 │ synced u64 │ crc u32 │ 0 │ payload, padded to 8
    …
    zeros                room reserved ahead; truncated when the file is closed

All numbers are little-endian. A record's checksum (CRC-32, begun with the salt of its file) covers its
header and its payload. `synced` is the last sequence that was known to be on the disk when the record was
written. It distinguishes a record that a crash left incomplete, with unsynced ones after it, from one that
was damaged later. Knows nothing of other files.
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hopline.errors import LogDamaged

FORMAT = 1
MAGIC = b"HOPWAL\r\n"
HEADER_BYTES = 128
#: The largest payload of a record, bytes.
MAX_PAYLOAD_BYTES = 2**30
#: What to do about damage.
ADVICE = (
    "restore the file from a copy, or move the live folder away to start from the original graph (its "
    "source can then be read again)"
)
_HEADER = struct.Struct("<8sIIQ64s")
_RECORD = struct.Struct("<IIQQI4x")
_CHECKED = struct.Struct("<IIQQ")
_MARKER = 0x52574C48
_NAME_DIGITS = 20
_BUFFER_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The beginning of a segment.

    Attributes:
        first: sequence of its first record.
        lineage: version of the graph that the log changes, at most 64 bytes.
        salt: initial value of its checksums, so that no payload can look like a record.
    """

    first: int
    lineage: str
    salt: int

    @classmethod
    def new(cls, first: int, lineage: str) -> SegmentHeader:
        """A header with a new salt."""
        return cls(first, lineage, secrets.randbits(32))

    def encode(self) -> bytes:
        """The first bytes of the file."""
        lineage = self.lineage.encode()
        assert len(lineage) <= 64, lineage
        body = _HEADER.pack(MAGIC, FORMAT, self.salt, self.first, lineage)
        body = body.ljust(HEADER_BYTES - 4, b"\0")
        return body + zlib.crc32(body).to_bytes(4, "little")


@dataclass(frozen=True, slots=True)
class Record:
    """A record and its place: bytes [begin, end) of its file."""

    sequence: int
    synced: int
    payload: bytes
    begin: int
    end: int


def name_of(first: int) -> str:
    """The file name of the segment whose first record is `first`."""
    return f"{first:0{_NAME_DIGITS}d}.wal"


def list_segments(folder: Path) -> list[tuple[int, Path]]:
    """(first sequence, path) of all segments of a folder, in order. Raises: OSError."""
    names = (name for name in os.listdir(folder) if name.endswith(".wal"))
    found = [(int(name[:-4]), folder / name) for name in names if name[:-4].isdigit()]
    return sorted(found)


def encode_record(header: SegmentHeader, sequence: int, synced: int, payload: bytes) -> bytes:
    """The bytes of a record."""
    checked = _CHECKED.pack(_MARKER, len(payload), sequence, synced)
    crc = zlib.crc32(payload, zlib.crc32(checked, header.salt))
    return b"".join((checked, crc.to_bytes(4, "little"), b"\0\0\0\0", payload, bytes(-len(payload) % 8)))


def read_header(path: Path) -> SegmentHeader:
    """Read the header, which is complete as soon as a file has its name.

    Raises:
        LogDamaged: it is not a header, or one of a newer format.
        OSError: the file cannot be read; FileNotFoundError: it is missing.
    """
    with path.open("rb") as file:
        data = file.read(HEADER_BYTES)
    magic, form, salt, first, lineage = _HEADER.unpack_from(data.ljust(HEADER_BYTES, b"\0"))
    if magic != MAGIC:
        raise LogDamaged(f"{path} is not a segment of a log: at byte 0 it has {data[:8]!r}; {ADVICE}")
    if form > FORMAT:
        raise LogDamaged(f"{path} has format {form}, this Hopline reads {FORMAT}; upgrade hopline")
    if zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise LogDamaged(f"{path}: the checksum of its header (byte 0) differs; {ADVICE}")
    if name_of(first) != path.name:
        raise LogDamaged(f"{path} begins with sequence {first}, which differs from its name; {ADVICE}")
    return SegmentHeader(first, lineage.rstrip(b"\0").decode(errors="replace"), salt)


def read_records(path: Path, header: SegmentHeader) -> Iterator[Record]:
    """Yield the records up to the first incomplete one. A file may grow while it is read.

    Raises: OSError: as `read_header`.
    """
    with path.open("rb", buffering=_BUFFER_BYTES) as file:
        file.seek(HEADER_BYTES)
        at, sequence = HEADER_BYTES, header.first
        while record := _read_record(file, header, at, sequence):
            yield record
            at, sequence = record.end, sequence + 1


def _read_record(file: BinaryIO, header: SegmentHeader, at: int, sequence: int) -> Record | None:
    """The record at `at`, the file's position; None if it is incomplete, or of another sequence."""
    head = file.read(_RECORD.size)
    if len(head) < _RECORD.size:
        return None
    marker, length, found, synced, crc = _RECORD.unpack(head)
    if marker != _MARKER or found != sequence or length > MAX_PAYLOAD_BYTES:
        return None
    padded = length + -length % 8
    # Compared before reading, so that no memory is allocated for missing bytes. A record without all of
    # its padding is incomplete: the next one would be written where it ends, and read after the padding.
    if padded > os.fstat(file.fileno()).st_size - at - _RECORD.size:
        return None
    body = file.read(padded)
    payload = body[:length]
    if len(body) < padded or zlib.crc32(payload, zlib.crc32(head[: _CHECKED.size], header.salt)) != crc:
        return None
    return Record(sequence, synced, payload, at, at + _RECORD.size + len(body))


@dataclass(frozen=True, slots=True)
class Tail:
    """The bytes after the last complete record of a segment.

    Attributes:
        num_bytes: up to the last byte that is not 0; 0 for a clean end.
        later: the first complete record after that; None if there is none.
        synced: the last sequence that was on the disk according to a later record; -1 without one.
    """

    num_bytes: int
    later: int | None
    synced: int


def read_tail(path: Path, header: SegmentHeader, end: int, sequence: int) -> Tail:
    """Examine the bytes from `end` on, where record `sequence` should be. Raises: OSError."""
    with path.open("rb") as file:
        file.seek(end)
        rest = file.read()
        num_bytes = len(rest.rstrip(b"\0"))
        later, synced = None, -1
        at = rest.find(_MARKER.to_bytes(4, "little"), 1)
        while at >= 0:
            record = _read_later(file, header, end + at, sequence) if (end + at) % 8 == 0 else None
            if record is not None:
                later = record.sequence if later is None else later
                synced = max(synced, record.synced)
            at = rest.find(_MARKER.to_bytes(4, "little"), at + 1 if record is None else record.end - end)
    return Tail(num_bytes, later, synced)


def _read_later(file: BinaryIO, header: SegmentHeader, at: int, sequence: int) -> Record | None:
    file.seek(at)
    head = file.read(_RECORD.size)
    if len(head) < _RECORD.size:
        return None
    found: int = _RECORD.unpack(head)[2]
    file.seek(at)
    return _read_record(file, header, at, found) if found > sequence else None
