"""Replays a recording as if it were live: for demonstrations and tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hopline_mesh.changes import Context
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.evaluate.folder import read_folder
from hopline_mesh.evaluate.recording import Recording
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.snapshot import Gap, Snapshot


class Replay:
    """Returns one recorded snapshot for each interval, with planned changes and troubles at its time.

    Replaces a `Collector`. After the last snapshot it is blind: all services stay as not measured, with a
    gap.

    Args:
        recording: played from its first snapshot to its last.

    Raises:
        SnapshotInvalid: the recording has no snapshots.

    Attributes:
        schema, roster: of the snapshots.
    """

    def __init__(self, recording: Recording) -> None:
        if not recording.snapshots:
            raise SnapshotInvalid(f"{recording.name}: it has no snapshots to play")
        self._recording = recording
        self._next = 0
        self._moved_s = 0.0
        self.schema: Schema = recording.snapshots[0].schema
        self.roster: Roster = recording.snapshots[0].roster

    @classmethod
    def of_folder(cls, folder: Path) -> Replay:
        """Replay a folder in the format of `hopline mesh evaluate`.

        Raises:
            SnapshotInvalid: the folder cannot be read, or is empty.
        """
        return cls(read_folder(folder))

    @property
    def left(self) -> int:
        """Number of remaining snapshots."""
        return len(self._recording.snapshots) - self._next

    async def collect(self, now_s: float) -> Snapshot:
        """Return the next snapshot with the present time.

        Args:
            now_s: our clock, Unix seconds.
        """
        if not self.left:
            gap = Gap("recording", f"{self._recording.name} is over")
            return self._recording.snapshots[-1].unmeasured(now_s, gap)
        snapshot = self._recording.snapshots[self._next]
        self._next += 1
        self._moved_s = now_s - snapshot.time_s
        return dataclasses.replace(snapshot, time_s=now_s)

    def context(self, now_s: float) -> tuple[Context, tuple[Gap, ...]]:
        """Return planned changes and troubles of the last snapshot, with times moved to now.

        Args:
            now_s: unused; for compatibility with a watch of Kubernetes.
        """
        return self._recording.contexts[max(0, self._next - 1)].moved(self._moved_s), ()
