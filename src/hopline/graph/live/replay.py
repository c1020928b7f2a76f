"""Reads a log from a sequence on, file by file. Several processes may read while one writes.

Sequences count up by one, within files and from file to file. Where a file is followed by another one, what
it holds from that one's first sequence on is void: those records failed to reach the disk when they were
written (see `Log.sync`), and no caller got a confirmation.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hopline.errors import GraphError, LogDamaged
from hopline.graph.live import segment
from hopline.graph.live.segment import ADVICE, Header


def replay(folder: Path, from_sequence: int, lineage: str) -> Iterator[tuple[int, bytes]]:
    """(sequence, payload) of every whole record from a sequence on.

    What is written while this runs may or may not be among them, and what comes last may not be on the disk
    yet.

    Raises:
        LogDamaged: a record is not what was written, or is missing though later ones exist.
        GraphError: the log is of another graph, or cannot be read.
    """
    try:
        yield from _replay(folder, from_sequence, lineage)
    except FileNotFoundError as error:
        raise LogDamaged(
            f"{error.filename} is gone: a snapshot has what it held; open that and read from there on"
        ) from None
    except OSError as error:
        raise GraphError(f"the log in {folder} cannot be read: {error}") from error


def _replay(folder: Path, from_sequence: int, lineage: str) -> Iterator[tuple[int, bytes]]:
    segments = segment.list_segments(folder)
    if not segments:
        return
    if segments[0][0] > from_sequence:
        raise LogDamaged(
            f"{folder}: the log begins with sequence {segments[0][0]}, but {from_sequence} is wanted; "
            f"the ones between are gone: {ADVICE}"
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
                f"{path}: record {sequence} at byte {end} is not what was written, and "
                f"{segments[i][1].name} continues with {stop}; {ADVICE}"
            )


def checked_header(path: Path, lineage: str) -> Header:
    """The header of a file of this graph's log.

    Raises: LogDamaged: as `read_header`. GraphError: it is of another graph.
    """
    header = segment.read_header(path)
    if header.lineage != lineage:
        raise GraphError(
            f"{path} belongs to graph {header.lineage}, this one is {lineage}; name another live folder"
        )
    return header


def refuse_damage(path: Path, header: Header, end: int, sequence: int) -> int:
    """Tell a file's torn end from damage.

    Args:
        end: where its last whole record ends. sequence: what should follow there.
    Returns: how many bytes a torn record has, 0 for a proper end.
    Raises: LogDamaged: record `sequence` was on the disk once, as a later one says.
    """
    tail = segment.read_tail(path, header, end, sequence)
    if tail.synced < sequence:
        return tail.num_bytes
    # While the file is written its end may have been read half written; what follows came meanwhile.
    again = [r for r in segment.read_records(path, header) if r.sequence == sequence]
    if again:
        return 0
    raise LogDamaged(
        f"{path}: record {sequence} at byte {end} is not what was written, and records from {tail.later} "
        f"on follow it; {ADVICE}"
    )
