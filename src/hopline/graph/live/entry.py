"""The log's entry for one batch: the batch, and its outcome.

    through_ms i64 │ number of skipped events u32 │ 0 │ their positions i64 │ the batch (codec.py)

Applied again to the same version, a batch with its skipped events has the same outcome: events are not
checked again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hopline.errors import BadRequest
from hopline.graph.live import codec
from hopline.graph.live.changes import Changes

_BEGIN = struct.Struct("<qI4x")


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A batch and its outcome.

    Attributes:
        changes: the batch.
        skip: bool [num_events], events that changed nothing.
        through_ms: the graph contained everything that happened until then, ms since 1970.
    """

    changes: Changes
    skip: NDArray[np.bool_]
    through_ms: int


def encode_entry(entry: Entry) -> bytes:
    """Encode the payload of a record of the log. Raises: BadRequest: as `encode_changes`."""
    skipped = np.flatnonzero(entry.skip).astype("<i8")
    begin = _BEGIN.pack(entry.through_ms, len(skipped))
    return b"".join((begin, skipped.tobytes(), codec.encode_changes(entry.changes)))


def decode_entry(data: bytes) -> Entry:
    """Decode the result of `encode_entry`. Raises: BadRequest: the bytes are something else."""
    if len(data) < _BEGIN.size:
        raise BadRequest(f"an entry of the log has {len(data)} bytes; it needs at least {_BEGIN.size}")
    through_ms, count = _BEGIN.unpack_from(data)
    end = _BEGIN.size + 8 * count
    if end > len(data):
        raise BadRequest(f"an entry of the log is truncated: {count} positions in {len(data)} bytes")
    skipped = np.frombuffer(data, "<i8", count, _BEGIN.size)
    changes = codec.decode_changes(memoryview(data)[end:])
    if count and not 0 <= skipped.min() <= skipped.max() < changes.num_events:
        raise BadRequest(f"an entry of the log skips events that are not below {changes.num_events}")
    skip = np.zeros(changes.num_events, np.bool_)
    skip[skipped] = True
    return Entry(changes, skip, through_ms)
