"""The folder of the saved state: its files, their maximum size, and reading them.

`checkpoint-N.state` has the state of a detector at a time; `history-N.log` has the intervals after it, and
earlier ones to learn from. The two newest checkpoints are kept. If the newest is damaged, the intervals
since the previous one are judged again. Not thread-safe.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from numpy.typing import NDArray

from hopline.files import draft_of, remove_drafts
from hopline_mesh.changes import Context
from hopline_mesh.errors import StateDamaged
from hopline_mesh.roster import Roster
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.state.checkpoint import Arrays, read_checkpoint, write_checkpoint
from hopline_mesh.state.record import RecordReader, RecordWriter, Seen
from hopline_mesh.state.segment import SegmentWriter, read_segment

logger = logging.getLogger("hopline_mesh")

Result = TypeVar("Result")

#: Kinds of numbered files, and their endings.
_ENDINGS = {"checkpoint": "state", "history": "log"}
_NOTE = "note.state"
_KEPT_CHECKPOINTS = 2
#: Size of a checkpoint that room is made for, as a share of that of its arrays. The state of 2,000 services
#: with 20,000 call paths takes 34 of 70 MiB.
PACKED = 0.6
#: A history file is closed at this share of the limit, or at this number of records.
_SEGMENT_SHARE = 1 / 32
_SEGMENT_RECORDS = 240


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state of a detector at a time.

    Attributes:
        path: of the file.
        time_s: of the last interval in it.
        names: of the roster at that time.
        meta, arrays: the exported detector.
        shape: the settings and columns that it is for.
    """

    path: Path
    time_s: float
    names: tuple[str, ...]
    shape: dict[str, Any]
    meta: dict[str, Any]
    arrays: dict[str, NDArray[Any]]


class StateFolder:
    """Reads and writes the state.

    Args:
        folder: created if it is missing.
        limit_bytes: maximum size of all files together, checked before each write.
        keep_s: seconds of history that are kept if there is space; the part that the checkpoints need is
            always kept.

    Raises:
        OSError: the folder cannot be created or written to.
    """

    def __init__(self, folder: Path, limit_bytes: int, keep_s: float) -> None:
        self.folder = folder
        self._limit = limit_bytes
        self._keep_s = keep_s
        folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(folder)
        probe = draft_of(folder / "probe")
        probe.write_bytes(b"")
        probe.unlink()
        self._is_stuck = False
        self._segment: SegmentWriter | None = None
        self._records = RecordWriter()
        #: newest time of each segment that this process wrote or read to its end
        self._newest: dict[Path, float] = {}

    @classmethod
    def to_read(cls, folder: Path) -> StateFolder:
        """Open a folder that another process writes to, for reading only."""
        state = cls.__new__(cls)
        state.folder, state._segment, state._newest = folder, None, {}
        return state

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        return sum(path.stat().st_size for kind in _ENDINGS for path in self._files(kind))

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Yield intact checkpoints, newest first; the log names damaged ones."""
        for path in reversed(self._files("checkpoint")):
            try:
                header, arrays = read_checkpoint(path)
                yield Checkpoint(
                    path,
                    float(header["time_s"]),
                    tuple(header["names"]),
                    dict(header["shape"]),
                    dict(header["meta"]),
                    arrays,
                )
            except (StateDamaged, KeyError, TypeError, ValueError) as error:
                logger.warning("state: %s; it is ignored", error)

    def history(self, roster: Roster, after_s: float = float("-inf")) -> Iterator[Seen]:
        """Yield the intervals after a time, oldest first, in this roster's slots, without damaged ones."""
        last = after_s
        for path in self._files("history"):
            reader = RecordReader(roster)
            newest = float("-inf")
            try:
                for payload in read_segment(path):
                    seen = reader.decode(payload)
                    newest = seen.snapshot.time_s
                    if newest > last:
                        last = newest
                        yield seen
            except StateDamaged as error:
                logger.warning("state: %s; the rest of the file is ignored", error)
            # Of an earlier process; a file without an intact record is as old as can be.
            self._newest.setdefault(path, newest)

    def append(self, snapshot: Snapshot, context: Context) -> None:
        """Add an interval to the history.

        Raises:
            OSError: no space, or a failed write; this interval is not saved, later ones may be.
        """
        most = _most_bytes(snapshot)
        segment = self._segment
        if segment is not None and (
            segment.records >= _SEGMENT_RECORDS or segment.size + most > self._limit * _SEGMENT_SHARE
        ):
            self.close()
        for path in self._files("history")[:-1]:
            if self._newest.get(path, math.inf) < snapshot.time_s - self._keep_s:
                self._drop(path)
        history, older = self._files("history"), self._files("checkpoint")[:-1]
        self._make_room(most + self._reserve(), [*history[:-1], *older, *history[-1:]])
        self._with_room(lambda: self._append(snapshot, context))

    def _append(self, snapshot: Snapshot, context: Context) -> None:
        if self._segment is None:
            self._segment = SegmentWriter(self._next("history"))
            self._records = RecordWriter()
        try:
            self._segment.append(self._records.encode(snapshot, context))
        except OSError:
            failed = self._segment
            self.close()  # the next record starts an independent file
            if not failed.records:
                failed.path.unlink()
            raise
        self._newest[self._segment.path] = snapshot.time_s

    def save(
        self,
        meta: Mapping[str, Any],
        arrays: Arrays,
        *,
        time_s: float,
        names: Sequence[str],
        shape: Mapping[str, Any],
    ) -> int:
        """Write a checkpoint, and delete those that it replaces.

        Returns: its size in bytes.

        Raises:
            OSError: no space, or a failed write; the newest of the previous checkpoints still exists.
        """
        header = {"time_s": time_s, "names": list(names), "shape": dict(shape), "meta": dict(meta)}
        wanted = round(PACKED * sum(array.nbytes for array in arrays.values()))
        try:
            wanted += len(msgspec.json.encode(header))
        except UnicodeEncodeError:  # half of a surrogate pair in a name; this takes five times as long
            wanted += len(json.dumps(header))
        # The new checkpoint replaces the older one anyway.
        self._make_room(wanted, [*self._files("checkpoint")[:-1], *self._files("history")])
        path = self._next("checkpoint")
        size = self._with_room(lambda: write_checkpoint(path, header, arrays, most=self._limit - self.size))
        for old in self._files("checkpoint")[:-_KEPT_CHECKPOINTS]:
            old.unlink()
        return size

    def write_note(self, note: Mapping[str, Any]) -> None:
        """Write something small that must be newer than the checkpoint.

        Raises:
            OSError: no space, or a failed write; the previous note still exists.
        """
        self._with_room(lambda: write_checkpoint(self.folder / _NOTE, note, {}))

    def note(self) -> dict[str, Any]:
        """Return the newest note; empty if there is none, or if it is damaged, which is logged."""
        path = self.folder / _NOTE
        if not path.exists():
            return {}
        try:
            return read_checkpoint(path)[0]
        except StateDamaged as error:
            logger.warning("state: %s; it is ignored", error)
            return {}

    def clear(self) -> None:
        """Delete all files of the state."""
        for kind in _ENDINGS:
            for path in self._files(kind):
                self._drop(path)
        (self.folder / _NOTE).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file that is being written; later ones may follow."""
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _files(self, kind: str) -> list[Path]:
        """Return the files of a kind, oldest first."""
        return [path for path in self._taken(kind) if path.is_file()]

    def _taken(self, kind: str) -> list[Path]:
        """Return all with the name of such a file, also folders and links that lead nowhere."""
        name = re.compile(rf"{kind}-\d{{10}}\.{_ENDINGS[kind]}")
        return sorted(path for path in self.folder.iterdir() if name.fullmatch(path.name))

    def _next(self, kind: str) -> Path:
        files = self._taken(kind)
        number = int(files[-1].stem.removeprefix(f"{kind}-")) + 1 if files else 1
        return self.folder / f"{kind}-{number:010d}.{_ENDINGS[kind]}"

    def _reserve(self) -> int:
        """Return the space for the next checkpoint: the size of the newest, minus the files it replaces."""
        sizes = [path.stat().st_size for path in self._files("checkpoint")]
        return max(0, sizes[-1] - sum(sizes[:-1])) if sizes else 0

    def _make_room(self, wanted: int, order: Sequence[Path]) -> None:
        """Delete files in this order until `wanted` more bytes fit."""
        over = self.size + wanted - self._limit
        for path in order:
            if over <= 0:
                return
            over -= self._drop(path)
        if over > 0:
            raise OSError(
                errno.ENOSPC, f"{wanted} more bytes do not fit in the {self._limit} bytes of the state"
            )

    def _with_room(self, write: Callable[[], Result]) -> Result:
        """Write; on a full disk delete half of the history, or the older checkpoint, and write again.

        Where that did not help, nothing more is deleted before a write succeeds.
        """
        try:
            written = write()
        except OSError as error:
            history = self._files("history")
            spare = history[: len(history) // 2] or self._files("checkpoint")[:-1]
            if self._is_stuck or error.errno not in (errno.ENOSPC, errno.EDQUOT) or not spare:
                raise
            for path in spare:
                self._drop(path)
            self._is_stuck = True
            written = write()
        self._is_stuck = False
        return written

    def _drop(self, path: Path) -> int:
        """Delete a file; returns its size in bytes."""
        if self._segment is not None and path == self._segment.path:
            self.close()
        size = path.stat().st_size
        path.unlink()
        self._newest.pop(path, None)
        return size


def _most_bytes(snapshot: Snapshot) -> int:
    """Return an upper estimate of the size of a snapshot's record, without new names."""
    slots = len(snapshot.nodes) + 2 * len(snapshot.edge_src)
    names = sum(map(len, snapshot.roster.names))
    return 4096 + 4 * slots + snapshot.node_features.nbytes + snapshot.edge_features.nbytes + 2 * names


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock a folder against other writers; creates it if it is missing.

    On a file system without locks this does nothing.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the folder cannot be created or opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(errno.EAGAIN, "another process writes to it") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.EBADF):
                raise
        yield
    finally:
        os.close(handle)
