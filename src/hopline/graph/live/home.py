"""The folder of a live graph: its snapshots and log, and how a new snapshot shortens the log.

    <live>/
      live.json, positions.json      the list of snapshots; the positions of sources (manifest.py)
      writer.lock                    held by the one process that writes (lock.py)
      log/<first sequence>.wal       all changes since the older snapshot (log.py)
      snapshots/<sequence>/graph/    a graph folder
      snapshots/<sequence>/state.bin other state of the snapshot (state.py)

The graph is a snapshot and the changes after it in the log. Two snapshots are kept, and the log from
the older one on, so that one damaged snapshot costs only time. Until there are two, the original graph
serves as the older one: sequence 0, in its own folder.
"""

from __future__ import annotations

import contextlib
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from hopline.errors import GraphError, LogDamaged, LogFailed
from hopline.files import draft_of, publish_folder, remove_drafts
from hopline.graph import storage
from hopline.graph.live.lock import Owner, WriterLock
from hopline.graph.live.log import SEGMENT_BYTES, Log
from hopline.graph.live.manifest import NAME, LiveManifest, SnapshotEntry, read_manifest, write_manifest
from hopline.graph.live.segment import ADVICE
from hopline.graph.live.state import State, read_state, write_state
from hopline.graph.live.version import offset_in, version_name
from hopline.graph.snapshot import Graph

log = logging.getLogger(__name__)

#: In the live folder: held by the writing process.
LOCK = "writer.lock"
_KEPT = 2
_STATE = "state.bin"
_GRAPH = "graph"


@dataclass(frozen=True, slots=True)
class Start:
    """The starting point of a writer: a graph, its state, and the log from `state.sequence` + 1 on."""

    graph: Graph
    state: State


class LiveHome:
    """The folder of a live graph, created by `open`. This process is its only writer until `close`.

    Attributes:
        folder: see the module.
        lineage: snapshot id of the original graph.
        start: the newest complete snapshot, or the original graph.
        log: open for writing.
    """

    def __init__(self, folder: Path, lineage: str, lock: WriterLock, manifest: LiveManifest) -> None:
        self.folder = folder
        self.lineage = lineage
        self.start: Start
        self.log: Log
        self._lock = lock
        self._manifest = manifest

    @classmethod
    def open(
        cls,
        folder: Path,
        base: Graph,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        verify: bool = True,
        owner: Owner | None = None,
    ) -> LiveHome:
        """Open the folder for writing, or create it.

        Args:
            base: the original graph.
            segment_bytes: as for `Log.open`.
            verify: read the whole snapshot and compare its hashes before it is used.
            owner: identifies this process to others that try to write.
        Raises:
            Conflict: another process writes there.
            LogDamaged: the manifest, all snapshots or the log are damaged; names the file and what to do.
            GraphError: the folder belongs to another graph, or cannot be written.
            LogFull, LogFailed: the disk is full or failed.
        """
        if timed := [name for name, each in base.schema.node_types.items() if each.has_time]:
            raise GraphError(
                f"node type {timed[0]!r} has times, which no event sets: build the graph with a history in "
                "their place (NodeTable.history, --history), of one row for each node"
            )
        lock = WriterLock(folder / LOCK, owner)
        lock.take()
        try:
            _sweep(folder)
            known = read_manifest(folder)
            manifest = known or _derived(folder, base)
            if manifest.lineage not in (base.version, base.lineage):
                raise GraphError(
                    f"{folder} belongs to graph {manifest.lineage} ({manifest.base}); this one is "
                    f"{base.version} ({base.path}): serve that graph, or name another live folder"
                )
            if known is not None and not any((folder / "log").glob("*.wal")):
                raise LogDamaged(
                    f"{folder / 'log'} has no log, but {folder / NAME} exists: the changes since the "
                    f"newest snapshot are lost; {ADVICE}"
                )
            home = cls(folder, manifest.lineage, lock, manifest)
            home._begin(base, verify, segment_bytes)
            if known is None:  # after the log, which a folder with this file must have
                write_manifest(folder, manifest)
        except OSError as error:
            lock.release()
            if isinstance(error, GraphError):
                raise
            raise GraphError(f"{folder} cannot be used: {error}") from error
        except BaseException:
            lock.release()
            raise
        return home

    @property
    def snapshots(self) -> tuple[SnapshotEntry, ...]:
        """Newest first."""
        return self._manifest.snapshots

    def publish(self, graph: Graph, state: State) -> SnapshotEntry:
        """Add a snapshot as the new starting point, and drop data that only older ones need.

        May run in a thread while changes are appended to the log.

        Args:
            graph: the version `state.sequence`, whose changes are on the disk.
        Raises: GraphError: it cannot be written; the older snapshots are kept.
        """
        try:
            self.log.check_present()
        except LogFailed as error:
            raise GraphError(str(error)) from None
        name = f"{state.sequence:020d}"
        folder = self.folder / "snapshots"
        entry = SnapshotEntry(state.sequence, graph.version, f"snapshots/{name}", name_of(state))
        if any(known.sequence == state.sequence for known in self.snapshots):
            return entry
        scratch = draft_of(folder / name)
        try:
            scratch.mkdir(parents=True)
            graph.save(scratch / _GRAPH)
            write_state(scratch / _STATE, state)
            publish_folder(scratch, folder / name, durable=True)  # an existing one is damaged
            kept = (entry, *(known for known in self.snapshots if known.sequence < state.sequence))[:_KEPT]
            self._keep(kept)
        except OSError as error:
            raise GraphError(f"snapshot {folder / name} cannot be written: {error}") from error
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        self.log.truncate_before(kept[-1].sequence + 1 if len(kept) == _KEPT else 1)
        return entry

    def drop_history(self) -> None:
        """Begin a new file of the log; drop older snapshots than the newest, and files that it replaces.

        Raises: GraphError: as `publish`. LogFull, LogFailed.
        """
        self.log.rotate()
        if not self.snapshots:
            return
        try:
            self._keep(self.snapshots[:1])
        except OSError as error:
            raise GraphError(f"{self.folder} cannot be written: {error}") from error
        self.log.truncate_before(self.snapshots[0].sequence + 1)

    def _keep(self, kept: tuple[SnapshotEntry, ...]) -> None:
        """Keep these snapshots, and no others."""
        manifest = LiveManifest(self.lineage, self._manifest.base, kept)
        write_manifest(self.folder, manifest)
        self._manifest = manifest
        for path in (self.folder / "snapshots").iterdir():
            if f"snapshots/{path.name}" not in {known.folder for known in kept}:
                shutil.rmtree(path, ignore_errors=True)

    def close(self) -> None:
        """Release the log and the lock. Raises: LogFailed: as `Log.sync`."""
        try:
            self.log.close()
        finally:
            self._lock.release()

    def _begin(self, base: Graph, verify: bool, segment_bytes: int) -> None:
        """Choose the newest complete snapshot, and open the log, which must have all changes since."""
        problems: list[str] = []
        start: Start | None = None
        whole: list[SnapshotEntry] = []
        for entry in self.snapshots:
            try:
                # An older one is only a fallback: not read now.
                start = start or open_start(self.folder / entry.folder, self.lineage, verify=verify)
                whole.append(entry)
            except GraphError as error:
                problems.append(str(error))
                log.error("snapshot %s cannot be used: %s", entry.folder, error)
        self.start = start or Start(base, State(self.lineage, 0))
        sequence = self.start.state.sequence
        newest = max((entry.sequence for entry in self.snapshots), default=0)
        self.log = Log.open(
            self.folder / "log", self.lineage, next_sequence=sequence + 1, segment_bytes=segment_bytes
        )
        if self.log.first > sequence + 1 or self.log.last < newest:
            have = f"{self.log.first} to {self.log.last}"
            wanted = f"{sequence + 1} to {max(newest, self.log.first - 1)}"
            problems.append(f"the log has changes {have}, but {wanted} are needed too")
            self.log.close()
            raise LogDamaged(f"{self.folder}: no usable snapshot and log: {'; '.join(problems)}; {ADVICE}")
        if problems:
            log.warning("starting from sequence %d and the log after it", sequence)
            self._manifest = LiveManifest(self.lineage, self._manifest.base, tuple(whole))


def open_start(folder: Path, lineage: str, *, verify: bool) -> Start:
    """Open a snapshot of a live folder. Raises: GraphError: it is damaged, or of another graph."""
    state = read_state(folder / _STATE)
    if state.lineage != lineage:
        raise LogDamaged(f"{folder} belongs to graph {state.lineage}, not {lineage}")
    return Start(Graph.open(folder / _GRAPH, verify=verify), state)


def name_of(state: State) -> str:
    """The name of a snapshot's version."""
    return version_name(state.lineage, state.sequence, offset_in(state.positions))


def graph_folder(folder: Path, entry: SnapshotEntry) -> Path:
    """The folder of the graph of a snapshot in the live folder."""
    return folder / entry.folder / _GRAPH


def _sweep(folder: Path) -> None:
    """Remove unfinished files of a writer that died. Raises: OSError."""
    (folder / "snapshots").mkdir(parents=True, exist_ok=True)
    for path in remove_drafts(folder / "snapshots"):
        log.warning("%s was incomplete when its writer died, and is removed", path)
    remove_drafts(folder)


def _derived(folder: Path, base: Graph) -> LiveManifest:
    """The manifest of a folder without `live.json`: it is new, or the file was lost."""
    entries = []
    for path in sorted((folder / "snapshots").iterdir(), reverse=True):
        with contextlib.suppress(GraphError):
            state = read_state(path / _STATE)
            if state.lineage == base.version:
                version = storage.read(path / _GRAPH).version
                entries.append(
                    SnapshotEntry(state.sequence, version, f"snapshots/{path.name}", name_of(state))
                )
    return LiveManifest(base.version, "" if base.path is None else str(base.path), tuple(entries[:_KEPT]))
