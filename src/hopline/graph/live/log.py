"""The write-ahead log of a live graph: records are appended, made durable, replayed, and finally dropped.

One process writes (see `home.py`), several may read meanwhile. A record counts once `sync` has returned. An
incomplete record at the end, left by a crash, is truncated when the log is opened.

Zeros are written ahead of the records: overwriting costs the disk less than extending a file, since the
file's size need not be made durable each time.

Sequences count up by one, within files and from file to file. If another file follows a file, records from
the next file's first sequence on are void in it: they did not reach the disk when they were written (see
`Log.sync`), and were never acknowledged.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from hopline.errors import GraphError, LogDamaged, LogFailed, LogFull, RequestTooLarge
from hopline.files import draft_of, publish_file, remove_drafts, sync
from hopline.graph.live import segment
from hopline.graph.live.segment import ADVICE, SegmentHeader


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
        header = _checked_header(path, lineage)
        stop = segments[i][0] if i < len(segments) else None
        sequence, end = first, segment.HEADER_BYTES
        for record in segment.read_records(path, header):
            if record.sequence == stop:
                break
            if record.sequence >= from_sequence:
                yield record.sequence, record.payload
            sequence, end = record.sequence + 1, record.end
        if stop is None:
            _refuse_damage(path, header, end, sequence)
        elif sequence < stop:
            raise LogDamaged(
                f"{path}: record {sequence} at byte {end} is damaged, and "
                f"{segments[i][1].name} continues with {stop}; {ADVICE}"
            )


def _checked_header(path: Path, lineage: str) -> SegmentHeader:
    """Read the header of a file of this graph's log.

    Raises: LogDamaged: as `read_header`. GraphError: it is of another graph.
    """
    header = segment.read_header(path)
    if header.lineage != lineage:
        raise GraphError(
            f"{path} belongs to graph {header.lineage}, this one is {lineage}; name another live folder"
        )
    return header


def _refuse_damage(path: Path, header: SegmentHeader, end: int, sequence: int) -> int:
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


log = logging.getLogger(__name__)

#: After this size a new file is started.
SEGMENT_BYTES = 64 * 2**20
#: Error codes of a full disk.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Zeros are written this far ahead: 1 MiB costs 2 ms once for some 60,000 edges.
_ROOM_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Torn:
    """The incomplete end of a log after a crash, which was truncated.

    Attributes:
        path, offset, num_bytes: where it was.
        sequence: of the first incomplete record. It had not been acknowledged.
    """

    path: Path
    offset: int
    num_bytes: int
    sequence: int


class Log:
    """The write-ahead log, created by `open`. Used by one thread at a time, except for `replay`.

    Attributes:
        last: sequence of the last record; 0 if there is none, since the first one is 1.
        synced: sequence of the last durable record.
        torn: what was truncated when the log was opened; None if nothing was.
    """

    def __init__(self, folder: Path, lineage: str, segment_bytes: int) -> None:
        self.last = 0
        self.synced = 0
        self.torn: Torn | None = None
        self._folder = folder
        self._lineage = lineage
        self._segment_bytes = segment_bytes
        self._fd = -1
        self._path = folder
        self._header = SegmentHeader(0, lineage, 0)
        #: End of the records; end of the durable records; end of the file after its zeros.
        self._end = self._synced_end = self._allocated = 0

    @classmethod
    def open(
        cls, folder: Path, lineage: str, *, next_sequence: int = 1, segment_bytes: int = SEGMENT_BYTES
    ) -> Log:
        """Open a log for writing, or create it.

        Reads the newest file only: `replay` checks what it reads.

        Args:
            lineage: version of the original graph of the log.
            next_sequence: the sequence after the newest snapshot; a log that ends earlier continues there.
            segment_bytes: after this size a new file is started.
        Raises:
            LogDamaged: the newest file is damaged.
            GraphError: the log is of another graph, or cannot be read.
            LogFull, LogFailed: the disk is full or failed.
        """
        made = cls(folder, lineage, segment_bytes)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            remove_drafts(folder)
            segments = segment.list_segments(folder)
            if segments:
                made._continue_in(segments[-1][1])
        except OSError as error:
            made._release()
            raise GraphError(f"the log in {folder} cannot be opened: {error}") from error
        if made.last < next_sequence - 1:
            if segments:
                log.warning(
                    "the log in %s ends with sequence %d; continuing with %d, which follows the snapshot",
                    folder,
                    made.last,
                    next_sequence,
                )
            made._release()
            made.last = made.synced = next_sequence - 1
        if made._fd < 0:
            made._begin()
        return made

    @property
    def first(self) -> int:
        """First sequence of the oldest file."""
        return segment.list_segments(self._folder)[0][0]

    def append(self, sequence: int, payload: bytes) -> None:
        """Write a record: it may be read by other processes now, and is durable after `sync`.

        Args:
            sequence: `last` + 1.
        Raises:
            RequestTooLarge: the payload is longer than a record may be.
            LogFull, LogFailed: the disk is full or failed; nothing of the record is kept, and the next
                append may succeed.
        """
        assert sequence == self.last + 1, (sequence, self.last)
        if len(payload) > segment.MAX_PAYLOAD_BYTES:
            raise RequestTooLarge(
                f"a record of {len(payload)} bytes; the limit is {segment.MAX_PAYLOAD_BYTES}: send less"
            )
        if self._fd < 0 or self._end >= self._segment_bytes:
            self._begin()
        record = segment.encode_record(self._header, sequence, self.synced, payload)
        try:
            self._make_room(self._end + len(record))
            _write(self._fd, record, self._end)
        except OSError as error:
            self._roll_back()
            self._refuse(error)
        self._end += len(record)
        self._allocated = max(self._allocated, self._end)
        self.last = sequence

    def sync(self) -> None:
        """Make all records durable.

        Raises:
            LogFailed: the disk failed. The kernel may have dropped unwritten data, and would not report it
                a second time. So the file is not written to any more, data after its durable records is
                truncated, and the log continues with `synced` + 1 in a new file. Or the file was removed;
                then all further records are refused.
            LogDamaged: durable records cannot be read any more either.
        """
        if self.synced == self.last:
            return
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            self._abandon(error)
        try:
            self.check_present()
        except LogFailed:
            self._end, self.last = self._synced_end, self.synced
            raise
        self.synced, self._synced_end = self.last, self._end

    def check_present(self) -> None:
        """Check that the file that is written is the one of its name.

        Raises: LogFailed: it was removed, moved or replaced: what is written now is lost with this process.
        """
        if self._fd < 0:
            return
        own = os.fstat(self._fd)
        with contextlib.suppress(OSError):
            if os.path.samestat(own, self._path.stat()):
                return
        raise LogFailed(
            f"{self._path} was removed or replaced while it was written: the changes were not made, and "
            "none will be; move the folder back, or restore it from a copy and restart this server"
        )

    def rotate(self) -> None:
        """Continue in a new file, so that the records until now can be dropped. Raises: as `append`."""
        if self._header.first <= self.last:
            self._begin()

    def drop_unsynced(self) -> None:
        """Remove records appended since `sync`, after a later record of the same group was refused."""
        if self.last == self.synced or self._fd < 0:
            return
        self._end, self.last = self._synced_end, self.synced
        try:
            os.ftruncate(self._fd, self._end)
            self._allocated = self._end
        except OSError:
            self._release()  # void once another file begins with their first sequence

    def replay(self, from_sequence: int) -> Iterator[tuple[int, bytes]]:
        """See `replay.replay`."""
        return replay(self._folder, from_sequence, self._lineage)

    def truncate_before(self, sequence: int) -> int:
        """Delete files that hold no records from `sequence` on; returns their number.

        Raises: GraphError: they cannot be deleted.
        """
        segments = segment.list_segments(self._folder)
        after = [first for first, _ in segments[1:]]
        old = [path for (_, path), first in zip(segments, after, strict=False) if first <= sequence]
        try:
            for path in old:  # oldest first, so that the remaining files have no gap
                path.unlink()
            if old:
                sync(self._folder)
        except OSError as error:
            raise GraphError(f"the log in {self._folder} cannot be shortened: {error}") from error
        return len(old)

    def close(self) -> None:
        """Make all records durable and close the file. Raises: LogFailed: as `sync`."""
        try:
            if self._fd >= 0:
                self.sync()
        finally:
            self._release()

    def _continue_in(self, path: Path) -> None:
        """Continue in an existing file."""
        header = _checked_header(path, self._lineage)
        sequence, end = header.first, segment.HEADER_BYTES
        for record in segment.read_records(path, header):
            sequence, end = record.sequence + 1, record.end
        num_bytes = _refuse_damage(path, header, end, sequence)
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if num_bytes:
            self.torn = Torn(path, end, num_bytes, sequence)
            log.warning(
                "%s: truncated %d bytes at byte %d: record %d was incomplete when its writer died",
                path,
                num_bytes,
                end,
                sequence,
            )
        os.ftruncate(self._fd, end)
        # A killed process may have left records that are not on the disk yet.
        os.fsync(self._fd)
        sync(self._folder)
        self._path, self._header = path, header
        self._end = self._synced_end = self._allocated = end
        self.last = self.synced = sequence - 1

    def _begin(self) -> None:
        """Continue in a new file, which gets its name once it is on the disk."""
        if self._fd >= 0:
            self.check_present()
            self.sync()
            self._release()
        header = SegmentHeader.new(self.last + 1, self._lineage)
        path = self._folder / segment.name_of(header.first)
        draft = draft_of(path)
        fd = -1
        try:
            fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            _write(fd, header.encode(), 0)
            os.fdatasync(fd)  # on the descriptor that is used later: the disk reports errors to it
            publish_file(draft, path, durable=False)
            sync(self._folder)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            self._refuse(error)
        self._fd, self._path, self._header = fd, path, header
        self._end = self._synced_end = self._allocated = segment.HEADER_BYTES

    def _make_room(self, end: int) -> None:
        """Write zeros ahead, if there is space for them; a record may fit where they do not."""
        if end <= self._allocated:
            return
        wanted = end + _ROOM_BYTES
        try:
            _write(self._fd, bytes(wanted - self._allocated), self._allocated)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            os.ftruncate(self._fd, self._end)
            self._allocated = self._end
        else:
            self._allocated = wanted

    def _roll_back(self) -> None:
        """After a failed write: truncate the file after its last record, or stop using it."""
        try:
            os.ftruncate(self._fd, self._end)
            self._allocated = self._end
        except OSError:
            # The rest of the record is void once another file begins with its sequence.
            self.sync()
            self._release()

    def _refuse(self, error: OSError) -> NoReturn:
        what = f"the log in {self._folder}"
        kept = f"the change was not made; all changes up to sequence {self.last} are kept"
        if error.errno in _FULL:
            raise LogFull(f"{what}: {error.strerror}; {kept}; make room on the disk") from error
        raise LogFailed(f"{what}: {error.strerror}; {kept}") from error

    def _abandon(self, error: OSError) -> NoReturn:
        """Stop using a file after a failed fdatasync: see `sync`."""
        path, header, end, synced, undone = (
            self._path,
            self._header,
            self._synced_end,
            self.synced,
            self.last,
        )
        log.error("%s: %s; continuing in a new file", path, error)
        fd, self._fd = self._fd, -1
        self.last = synced
        with contextlib.suppress(OSError):
            os.ftruncate(fd, end)
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        with contextlib.suppress(OSError):
            os.close(fd)
        whole = header.first - 1
        with contextlib.suppress(OSError):
            for record in segment.read_records(path, header):
                whole = record.sequence
        if whole < synced:
            raise LogDamaged(
                f"{path}: records {whole + 1} to {synced} were on the disk and cannot be read any more "
                f"after {error}; {segment.ADVICE}"
            ) from error
        # Immediately, so that a later crash finds nothing of them; otherwise with the next append.
        with contextlib.suppress(LogFull, LogFailed):
            self._begin()
        certain = "" if self._fd >= 0 else ", unless the machine stops before the next write"
        raise LogFailed(
            f"{path}: {error.strerror}: sequences {synced + 1} to {undone} did not reach the disk; those "
            f"changes were not made{certain}; all changes up to sequence {synced} are kept"
        ) from error

    def _release(self) -> None:
        """Close the file, without its zeros."""
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(fd, self._end)
        with contextlib.suppress(OSError):
            os.close(fd)


def _write(fd: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(fd, left, at)
        left, at = left[written:], at + written
