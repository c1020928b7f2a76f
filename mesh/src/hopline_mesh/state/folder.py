"""The folder of the state: which files there are, how much room they may take, what is read of them.

`checkpoint-N.state` holds what a detector has learned up to a moment; `history-N.log` the intervals since,
and before, to learn from. The two newest checkpoints are kept, so that a torn one costs nothing: the
intervals since the one before are judged again. Not for use by several threads at once.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from hopline_mesh.changes import Context
from hopline_mesh.errors import StateDamaged
from hopline_mesh.roster import Roster
from hopline_mesh.snapshot import Snapshot
from hopline_mesh.state.checkpoint import Arrays, checkpoint_bytes, read_checkpoint, write_checkpoint
from hopline_mesh.state.record import RecordReader, RecordWriter, Seen
from hopline_mesh.state.segment import SegmentWriter, read_segment

logger = logging.getLogger("hopline_mesh")

Result = TypeVar("Result")

_NAME = re.compile(r"(checkpoint|history)-(\d{10})\.(state|log)")
_NOTE = "note.state"
_KEPT_CHECKPOINTS = 2
#: Share of the room above which a checkpoint is packed, and what packing leaves of it at most, usually.
_PACKED_SHARE, _PACKED = 1 / 8, 0.7
#: A history file is ended at this share of the room, or at so many records.
_SEGMENT_SHARE = 1 / 32
_SEGMENT_RECORDS = 240


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What was learned up to a moment.

    Attributes:
        path: where it lies.
        time_s: of the last interval in it.
        names: the roster then.
        meta, arrays: what was learned.
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
        folder: made where it is absent.
        limit_bytes: room for all files together, checked before each is written.
        keep_s: seconds of history that are kept where there is room; what the checkpoints need of it is
            kept in any case.

    Raises:
        OSError: the folder cannot be made or written to.
    """

    def __init__(self, folder: Path, limit_bytes: int, keep_s: float) -> None:
        self.folder = folder
        self._limit = limit_bytes
        self._keep_s = keep_s
        folder.mkdir(parents=True, exist_ok=True)
        for part in folder.glob("*.part"):
            part.unlink()
        probe = folder / "probe.part"
        probe.write_bytes(b"")
        probe.unlink()
        self._segment: SegmentWriter | None = None
        self._records = RecordWriter()
        #: newest time of each finished segment that was written or read by this process
        self._newest: dict[Path, float] = {}

    @classmethod
    def to_read(cls, folder: Path) -> StateFolder:
        """A folder that another process writes to. Nothing is changed in it."""
        state = cls.__new__(cls)
        state.folder, state._segment, state._newest = folder, None, {}
        return state

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for _, file in self._files("checkpoint") + self._files("history"))

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Those that are whole, newest first; one that is not is named in the log."""
        for _, path in reversed(self._files("checkpoint")):
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
                logger.warning("state: %s: it is left out", error)

    def history(self, roster: Roster, after_s: float = float("-inf")) -> Iterator[Seen]:
        """The intervals after a time, oldest first, in this roster's slots; damaged ones are left out."""
        last = after_s
        for _, path in self._files("history"):
            if self._newest.get(path, float("inf")) <= after_s:
                continue
            reader = RecordReader(roster)
            try:
                for payload in read_segment(path):
                    seen = reader.decode(payload)
                    if seen.snapshot.time_s > last:
                        last = seen.snapshot.time_s
                        yield seen
            except StateDamaged as error:
                logger.warning("state: %s: what follows in it is left out", error)

    def append(self, snapshot: Snapshot, context: Context) -> None:
        """Add an interval to the history.

        Raises:
            OSError: no room, or the disk refuses; the interval is not kept, later ones may be.
        """
        most = _most_bytes(snapshot)
        segment = self._segment
        if segment is not None and (
            segment.records >= _SEGMENT_RECORDS or segment.size + most > self._limit * _SEGMENT_SHARE
        ):
            self._end_segment()
        self._prune(snapshot.time_s)
        self._make_room(most + self._reserve())
        self._with_room(lambda: self._append(snapshot, context))

    def _append(self, snapshot: Snapshot, context: Context) -> None:
        if self._segment is None:
            self._segment = SegmentWriter(self._next("history", "log"))
            self._records = RecordWriter()
        try:
            self._segment.append(self._records.encode(snapshot, context))
        except OSError:
            self._end_segment()  # the next record begins a file that needs nothing of this one
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
        """Write a checkpoint, and let go of those that it replaces.

        Returns: its size in bytes.

        Raises:
            OSError: no room, or the disk refuses; the checkpoints before are still there.
        """
        header = {"time_s": time_s, "names": list(names), "shape": dict(shape), "meta": dict(meta)}
        whole = checkpoint_bytes(header, arrays)
        # At the moment in which one takes the place of another both are there.
        packed = whole > _PACKED_SHARE * self._limit
        self._make_room(round(whole * _PACKED) if packed else whole, checkpoint=True)
        path, most = self._next("checkpoint", "state"), self._limit - self.size
        size = self._with_room(lambda: write_checkpoint(path, header, arrays, packed=packed, most=most))
        for _, path in self._files("checkpoint")[:-_KEPT_CHECKPOINTS]:
            path.unlink()
        return size

    def write_note(self, note: Mapping[str, Any]) -> None:
        """Write something small that must be newer than the checkpoint.

        Raises:
            OSError: no room, or the disk refuses; the note before is still there.
        """
        write_checkpoint(self.folder / _NOTE, note, {})

    def note(self) -> dict[str, Any]:
        """The newest note; empty where there is none, or it is damaged, which is said in the log."""
        path = self.folder / _NOTE
        if not path.exists():
            return {}
        try:
            return read_checkpoint(path)[0]
        except StateDamaged as error:
            logger.warning("state: %s: it is left out", error)
            return {}

    def start_anew(self) -> None:
        """Let go of all that is there."""
        self._end_segment()
        for _, path in self._files("checkpoint") + self._files("history"):
            path.unlink()
        (self.folder / _NOTE).unlink(missing_ok=True)
        self._newest.clear()

    def close(self) -> None:
        """End the file that is being written."""
        self._end_segment()

    def _files(self, kind: str) -> list[tuple[int, Path]]:
        """Number and path, oldest first."""
        found = []
        for path in self.folder.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None and match[1] == kind:
                found.append((int(match[2]), path))
        return sorted(found)

    def _next(self, kind: str, ending: str) -> Path:
        files = self._files(kind)
        return self.folder / f"{kind}-{files[-1][0] + 1 if files else 1:010d}.{ending}"

    def _end_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _reserve(self) -> int:
        """Room that the next checkpoint needs: that of the newest, less what it takes the place of."""
        sizes = [path.stat().st_size for _, path in self._files("checkpoint")]
        return max(0, sizes[-1] - sum(sizes[:-1])) if sizes else 0

    def _prune(self, now_s: float) -> None:
        """Let go of history that is too old."""
        for _, path in self._files("history")[:-1]:
            newest = self._newest.get(path)
            if newest is not None and newest < now_s - self._keep_s:
                path.unlink()
                del self._newest[path]

    def _make_room(self, wanted: int, *, checkpoint: bool = False) -> None:
        """Let go of what is needed least, until so much more fits.

        Args:
            checkpoint: it is for one, which the older one is about to make room for anyway.
        """
        over = self.size + wanted - self._limit
        history = [path for _, path in self._files("history")]
        older = [path for _, path in self._files("checkpoint")[:-1]]
        order = [*older, *history] if checkpoint else [*history[:-1], *older, *history[-1:]]
        for path in order:
            if over <= 0:
                return
            over -= self._drop(path)
        if over > 0:
            raise OSError(errno.ENOSPC, f"{wanted} bytes more do not fit the {self._limit} of the state")

    def _with_room(self, write: Callable[[], Result]) -> Result:
        """Write; where the disk has less room than was promised, once more with half of the history."""
        try:
            return write()
        except OSError as error:
            history = self._files("history")
            if error.errno not in (errno.ENOSPC, errno.EDQUOT) or len(history) < 2:
                raise
            for _, path in history[: len(history) // 2]:
                self._drop(path)
            return write()

    def _drop(self, path: Path) -> int:
        """Remove a file; its size in bytes."""
        if self._segment is not None and path == self._segment.path:
            self._end_segment()
        size = path.stat().st_size
        path.unlink()
        self._newest.pop(path, None)
        return size


def _most_bytes(snapshot: Snapshot) -> int:
    """About the largest that the record of a snapshot can be, but for names that are new."""
    slots = len(snapshot.nodes) + 2 * len(snapshot.edge_src)
    names = sum(map(len, snapshot.roster.names))
    return 4096 + 4 * slots + snapshot.node_features.nbytes + snapshot.edge_features.nbytes + 2 * names
