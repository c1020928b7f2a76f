"""Reads a log from a sequence on, file by file. Several processes may read while one writes.

Sequences count up by one, within files and from file to file. If another file follows a file, records from
the next file's first sequence on are void in it: they did not reach the disk when they were written (see
`Log.sync`), and were never acknowledged.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hopline.errors import GraphError, LogDamaged
from hopline.graph.live import segment
from hopline.graph.live.segment import ADVICE, Header


def replay(folder: Path, from_sequence: int, lineage: str) -> Iterator[tuple[int, bytes]]:
    """Yield (sequence, payload) of every complete record from a sequence on.

    Records that are written in the meantime may or may not be included, and the last ones may not be on the
    disk yet.

    Raises:
        LogDamaged: a record is damaged, or is missing though later ones exist.
        GraphError: the log is of another graph, or cannot be read.
    """
    try:
        yield from _replay(folder, from_sequence, lineage)
    except FileNotFoundError as error:
        raise LogDamaged(
            f"{error.filename} is gone: a snapshot has its changes; open that and read from there on"
        ) from None
    except OSError as error:
        raise GraphError(f"the log in {folder} cannot be read: {error}") from error


def _replay(folder: Path, from_sequence: int, lineage: str) -> Iterator[tuple[int, bytes]]:
    segments = segment.list_segments(folder)
    if not segments:
        return
    if segments[0][0] > from_sequence:
        raise LogDamaged(
            f"{folder}: the log begins with sequence {segments[0][0]}, but {from_sequence} is needed; "
            f"the records between are gone: {ADVICE}"
        )
    begin = max(i for i, (first, _) in enumerate(segments) if first <= from_sequence)
    for i, (first, path) in enumerate(segments[begin:], begin + 1):
        header = checked_header(path, lineage)
        stop = segments[i][0] if i < len(segments) else None
        sequence, end = first, segment.HEADER_BYTES
        for record in segment.read_records(path, header):
            if record.sequence == stop:
                break
            if record.sequence >= from_sequence:
                yield record.sequence, record.payload
            sequence, end = record.sequence + 1, record.end
        if stop is None:
            refuse_damage(path, header, end, sequence)
        elif sequence < stop:
            raise LogDamaged(
                f"{path}: record {sequence} at byte {end} is damaged, and "
                f"{segments[i][1].name} continues with {stop}; {ADVICE}"
            )


def checked_header(path: Path, lineage: str) -> Header:
    """Read the header of a file of this graph's log.

    Raises: LogDamaged: as `read_header`. GraphError: it is of another graph.
    """
    header = segment.read_header(path)
    if header.lineage != lineage:
        raise GraphError(
            f"{path} belongs to graph {header.lineage}, this one is {lineage}; name another live folder"
        )
    return header


def refuse_damage(path: Path, header: Header, end: int, sequence: int) -> int:
    """Distinguish an incomplete end of a file from damage.

    Args:
        end: where its last complete record ends. sequence: of the record that should follow.
    Returns: bytes of an incomplete record, 0 for a clean end.
    Raises: LogDamaged: record `sequence` was on the disk once, as a later record proves.
    """
    tail = segment.read_tail(path, header, end, sequence)
    if tail.synced < sequence:
        return tail.num_bytes
    # The end may have been read while it was being written; what follows was written in the meantime.
    again = [r for r in segment.read_records(path, header) if r.sequence == sequence]
    if again:
        return 0
    raise LogDamaged(
        f"{path}: record {sequence} at byte {end} is damaged, and valid records from {tail.later} "
        f"on follow it; {ADVICE}"
    )
