"""The training process: reads the history of a state folder, fits a detector, writes its state.

Its `main` reads a `Task` as JSON from standard input, and writes a checkpoint to standard output. It has
low CPU priority. A container that runs out of memory is killed as a whole under cgroup v2
(`memory.oom.group`, which the kubelet sets), so this process allocates no more than is left there, and
fails before.
"""

from __future__ import annotations

import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from hopline.process.cgroup import Cgroup
from hopline_mesh.detect import DetectorSettings, MeshDetector
from hopline_mesh.errors import SnapshotInvalid
from hopline_mesh.roster import Roster
from hopline_mesh.schema import Schema
from hopline_mesh.state import StateFolder
from hopline_mesh.state.checkpoint import write_to
from hopline_mesh.watch.learned import abnormal_of

#: Niceness of the process.
_NICE = 10
#: Share of the memory that is left in the container for a training.
_SHARE = 0.9


class Task(msgspec.Struct, frozen=True):
    """A training to run.

    Attributes:
        folder: the state folder; read only.
        names: of the roster, so that slots are those of the watch.
        schema: intervals with other columns are left out.
        since_s, until_s: times of the history, Unix seconds.
        without: times to leave out, (from, to).
        detector: settings.
        most_bytes: memory that it may allocate; None: most of what the container's limit leaves.
    """

    folder: str
    names: list[str]
    schema: Schema
    since_s: float
    until_s: float
    without: list[tuple[float, float]]
    detector: DetectorSettings
    most_bytes: int | None = None


def train(task: Task, out: BinaryIO) -> None:
    """Train on the normal intervals of a task, and write the result.

    Raises:
        SnapshotInvalid: there are too few.
    """
    roster = Roster(task.names)
    history = [
        seen
        for seen in StateFolder.to_read(Path(task.folder)).history(roster, task.since_s)
        if seen.snapshot.time_s <= task.until_s
        and seen.snapshot.schema == task.schema
        and seen.snapshot.is_measured
        and not any(start <= seen.snapshot.time_s <= end for start, end in task.without)
    ]
    settings = task.detector
    # Half of what a first training waits for: with fewer, the present detector knows more.
    fewest = max(20, settings.warm_up + 10, min(settings.window_size, settings.train_at) // 2)
    if len(history) < fewest:
        raise SnapshotInvalid(f"{len(history)} normal intervals are usable; at least {fewest} are needed")
    detector = MeshDetector(settings)
    detector.fit([seen.snapshot for seen in history], [seen.context for seen in history])
    meta, arrays = detector.export()
    header = {
        "meta": meta,
        "time_s": history[-1].snapshot.time_s,
        "names": list(roster.names),
        "abnormal": [out.text() for out in abnormal_of(detector, roster)],
    }
    write_to(out, header, arrays)


def limit_memory(most_bytes: int) -> None:
    """Limit what this process may allocate in addition to what it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])  # data and stacks
    limit = pages * resource.getpagesize() + most_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    """Run the task on standard input."""
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    os.nice(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    room = Cgroup().memory_left() if task.most_bytes is None else task.most_bytes
    if room is not None:
        limit_memory(round(_SHARE * room))
    train(task, sys.stdout.buffer)
    sys.stdout.flush()
