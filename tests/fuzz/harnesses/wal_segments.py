"""Files of the live graph's log: whatever a disk gives back, and files that a crash cut off."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

from hopline.errors import BadRequest, LogDamaged
from hopline.graph.live.codec import decode_changes, decode_entry, encode_changes
from hopline.graph.live.segment import (
    HEADER_BYTES,
    SegmentHeader,
    name_of,
    read_header,
    read_records,
    read_tail,
)

_HEADER = SegmentHeader(1, "0123456789abcdef", 7)
_RECORD_BYTES, _CHECKED_BYTES = 32, 24
_folder = tempfile.TemporaryDirectory(prefix="hopline-fuzz-")
_path = Path(_folder.name) / name_of(1)


def check(data: bytes) -> None:
    """Args: data: whether a file, records or an entry; where a crash cuts; and bytes of it."""
    if len(data) < 2:
        return
    kind, cut, body = data[0] % 3, data[1], data[2:]
    if kind == 2:
        _check_entry(body)
    else:
        _check_file(body if kind == 0 else _HEADER.encode() + _with_checksums(body), cut)


def _check_file(content: bytes, cut: int) -> None:
    _path.write_bytes(content)
    try:
        header = read_header(_path)
    except LogDamaged:
        return
    records = list(read_records(_path, header))
    at = HEADER_BYTES
    for place, record in enumerate(records):
        assert (record.sequence, record.begin) == (header.first + place, at)
        assert content[at + _RECORD_BYTES :].startswith(record.payload)
        at = record.end
        try:
            decode_entry(record.payload)
        except BadRequest:
            continue
    tail = read_tail(_path, header, at, header.first + len(records))
    assert 0 <= tail.num_bytes <= len(content) - at
    kept = HEADER_BYTES + (len(content) - HEADER_BYTES) * cut // 256
    _path.write_bytes(content[:kept])
    left = list(read_records(_path, header))
    assert left == records[: len(left)], "a file that was cut off has other records"
    assert len(left) == sum(record.end <= kept for record in records)


def _check_entry(body: bytes) -> None:
    for decode in (decode_entry, decode_changes):
        try:
            found = decode(body)
        except BadRequest:
            continue
        changes = getattr(found, "changes", found)
        again = decode_changes(encode_changes(changes))
        assert encode_changes(again) == encode_changes(changes)


def _with_checksums(body: bytes) -> bytes:
    """The same records, each with the marker, number and checksum that it should have."""
    found, at, sequence = bytearray(body), 0, _HEADER.first
    while at + _RECORD_BYTES <= len(found):
        length = int.from_bytes(found[at + 4 : at + 8], "little") % 4096
        found[at : at + 16] = b"HLWR" + length.to_bytes(4, "little") + sequence.to_bytes(8, "little")
        payload = found[at + _RECORD_BYTES : at + _RECORD_BYTES + length]
        crc = zlib.crc32(payload, zlib.crc32(found[at : at + _CHECKED_BYTES], _HEADER.salt))
        found[at + _CHECKED_BYTES : at + _CHECKED_BYTES + 4] = crc.to_bytes(4, "little")
        at, sequence = at + _RECORD_BYTES + length + -length % 8, sequence + 1
    return bytes(found)
