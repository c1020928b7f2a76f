"""The versions of a live graph, read from its folder in order, without its writer.

    newest snapshot at or before a version, else the original graph ─► memory ─► log, one record a version

Nothing in the folder is changed. Its writer may run meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from hopline.errors import BadRequest, GraphError, LogDamaged
from hopline.graph import storage
from hopline.graph.file_watch import open_compared
from hopline.graph.live.codec import StoredBatch, decode_entry
from hopline.graph.live.home import Start, name_of, open_start
from hopline.graph.live.log import replay
from hopline.graph.live.manifest import NAME, LiveManifest, read_manifest
from hopline.graph.live.memory import LiveMemory
from hopline.graph.live.plan import make_plan
from hopline.graph.live.segment import ADVICE, list_segments
from hopline.graph.live.state import State
from hopline.graph.live.version import (
    NO_OFFSET,
    StreamOffset,
    offset_in,
    read_offset,
    read_version,
    version_name,
)
from hopline.graph.live.view import LiveView
from hopline.graph.live.writer import LiveWriter
from hopline.graph.snapshot import Graph

_AT = re.compile(r"(?P<folder>.+)@\+(?P<offset>[^@/]+)")


def make_writer(
    start: Start, lineage: str, fd: int | None, now_ms: Callable[[], int], **room: Any
) -> tuple[LiveWriter, Callable[[], LiveView]]:
    """The writer of a live graph's memory, and what makes views of it.

    Args:
        fd: of the memory, which may have been laid out already; None for private memory.
        room: as for `make_plan`.
    Raises: GraphError: the memory is another graph's, or there is no room.
    """
    graph, memory = start.graph, None if fd is None else LiveMemory.attach(fd)
    if memory is None or not memory.is_filled:
        plan = make_plan(graph, lineage=lineage, sequence=start.state.sequence, **room)
        memory = LiveMemory.create(plan, fd)
    elif memory.plan.lineage != lineage:
        raise GraphError(f"the memory is of graph {memory.plan.lineage}, not of {lineage}")
    shared, ids = memory, {name: nodes.ids for name, nodes in graph.nodes.items()}
    return LiveWriter(shared, graph.schema, ids, now_ms), lambda: LiveView(shared, graph.schema, ids)


def fill(writer: LiveWriter, start: Start) -> None:
    """Make a starting point the first version."""
    state = start.state
    writer.fill(start.graph, state.changed_at, state.through_ms, offset_in(state.positions))


def read_record(folder: Path, sequence: int, payload: bytes) -> StoredBatch:
    """Decode a record of the log. Raises: LogDamaged: it is malformed."""
    try:
        return decode_entry(payload)
    except BadRequest as error:
        raise LogDamaged(f"{folder}: record {sequence}: {error}; {ADVICE}") from None


def write_record(writer: LiveWriter, folder: Path, sequence: int, entry: StoredBatch) -> None:
    """Make a record of the log the newest version.

    Raises:
        LogDamaged: it does not fit the graph.
        GraphError: the memory has no room for it.
    """
    place = offset_in(entry.changes.positions)
    moves = place.is_named
    prepared = writer.prepare(entry.changes, entry.skip, moves=moves)
    if any(each.code == "full" for each in prepared.applied.rejected):
        raise GraphError(
            f"{folder}: the changes up to sequence {sequence} do not fit into the live graph's memory; "
            "increase live.spare_*"
        )
    if prepared.applied.sequence != sequence or prepared.applied.rejected:
        raise LogDamaged(
            f"{folder}: record {sequence} does not fit the graph: it results in version "
            f"{prepared.applied.sequence}, {prepared.applied.rejected[:1]}; {ADVICE}"
        )
    writer.publish([prepared], entry.through_ms, place if moves else None)


class LiveHistory:
    """The versions of a live folder, from one on; a context, which its memory does not outlive.

    Args:
        folder: the live folder.
        wanted: begin with the newest base at or before this version; None for the newest of all.
        after: the base has a later sequence than this one.
        room: `num_levels` and `reads_degrees` of `make_plan`, for readers with state caches.

    Attributes:
        lineage: of the graph.
        base: folder of the original graph.
        start: the snapshot, or original graph, that it begins with.
        sequence, version: of the present version, and its name.

    Raises:
        GraphError: the folder is not a live folder, or nothing in it leads to the version.
        LogDamaged: the manifest is damaged.
    """

    def __init__(
        self, folder: Path, wanted: StreamOffset | None = None, *, after: int = -1, **room: Any
    ) -> None:
        self._folder, self._room = folder, {"num_levels": 1, "reads_degrees": False} | room
        for _ in range(100):  # a snapshot may be replaced while it is opened
            manifest = read_manifest(folder)
            if manifest is None:
                raise GraphError(f"{folder} is not a folder of a live graph: it has no {NAME}")
            self.lineage, self.base = manifest.lineage, _base(folder, manifest)
            try:
                self.start = _start_of(folder, manifest, self.base, wanted, after)
                break
            except GraphError:
                if read_manifest(folder) == manifest:
                    raise
        self.sequence, self.version = self.start.state.sequence, name_of(self.start.state)
        self._records = replay(folder / "log", self.sequence + 1, self.lineage)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        if "_memory" in self.__dict__:
            os.close(self._memory[0])

    @property
    def memory(self) -> str:
        """Path of the memory, for other readers of it."""
        return f"/proc/{os.getpid()}/fd/{self._memory[0]}"

    def advance(self) -> bool:
        """Apply the next record of the log; False at the end of the log.

        Raises:
            LogDamaged: the log does not lead on.
            GraphError: there is not enough memory.
        """
        try:
            for sequence, payload in self._records:
                writer = self._memory[1]
                write_record(writer, self._folder, sequence, read_record(self._folder, sequence, payload))
                self.sequence = sequence
                self.version = version_name(self.lineage, sequence, writer.offset)
                return True
        except GraphError:  # the next call says it again
            self._records = replay(self._folder / "log", self.sequence + 1, self.lineage)
            raise
        return False

    def reach(self, wanted: StreamOffset) -> None:
        """Apply records up to a version.

        Raises:
            GraphError: the folder has no such version, or the present one is later.
            LogDamaged: the log does not lead there.
        """
        before, name = self.version, version_name(self.lineage, 0, wanted)
        while (here := read_version(self.version, "version").offset).order < wanted.order:
            before = self.version
            if not self.advance():
                raise LogDamaged(f"{self._folder} has no version {name}: its log ends with {before}")
        if here.order != wanted.order or wanted.digest not in (-1, here.digest):
            raise GraphError(
                f"{self._folder} has no version {name}: {before} is followed by {self.version}"
            )

    def graph(self) -> Graph:
        """The present version as a graph, which has a folder only where it is the start."""
        graph = self.start.graph
        if self.sequence != self.start.state.sequence:
            graph = self._memory[2]().snapshot()
        graph.__dict__["version"] = self.version
        return graph

    @cached_property
    def _memory(self) -> tuple[int, LiveWriter, Callable[[], LiveView]]:
        """Descriptor of the memory, which has room for the whole log; its writer; what makes views."""
        start, count = self.start, 1000
        with contextlib.suppress(LogDamaged):  # reported when it is read
            for sequence, payload in replay(self._folder / "log", start.state.sequence + 1, self.lineage):
                count += read_record(self._folder, sequence, payload).changes.num_events
        fd = os.memfd_create("hopline-history", os.MFD_CLOEXEC)
        try:
            room = self._room | {"spare_nodes": count, "spare_edges": count}
            writer, view = make_writer(start, self.lineage, fd, lambda: 0, **room)
            fill(writer, start)
        except BaseException:
            os.close(fd)
            raise
        return fd, writer, view


def is_versions(path: Path) -> bool:
    """True for a live folder, and for "FOLDER@+N"."""
    folder, offset = parse_at(path)
    return offset is not None or (folder / NAME).is_file()


def parse_at(path: Path) -> tuple[Path, StreamOffset | None]:
    """The live folder and the version of "FOLDER@+N", of a live folder or its graph; or the path, and None.

    N is what names of versions have after the "+"; 0 is the original graph.

    Raises: BadRequest: N has another form.
    """
    found = _AT.fullmatch(str(path))
    if found is None:
        return path, None
    folder, text = Path(found["folder"]), found["offset"]
    if not (folder / NAME).is_file():
        folder = folder.with_name(f"{folder.name}.live")
    return folder, NO_OFFSET if text == "0" else read_offset(text)


def _base(folder: Path, manifest: LiveManifest) -> Path:
    """The folder of the original graph, which may have been moved together with the live folder."""
    places = [Path(manifest.base), folder.with_name(folder.name.removesuffix(".live"))]
    for path in places:
        with contextlib.suppress(GraphError):
            found = storage.read(path)
            if manifest.lineage in (found.version, found.lineage):
                return path
    raise GraphError(
        f"{folder} began with graph {manifest.lineage} at {manifest.base}, which is missing: put it "
        f"back, or to {places[1]}"
    )


def _start_of(
    folder: Path, manifest: LiveManifest, base: Path, wanted: StreamOffset | None, after: int
) -> Start:
    """The newest base at or before a version, or of all. Raises: GraphError: there is none."""
    problems: list[str] = []
    for entry in manifest.snapshots:
        name = entry.name or version_name(manifest.lineage, entry.sequence)
        at = read_version(name, "name").offset
        if entry.sequence > after and (wanted is None or at.order <= wanted.order):
            try:
                return open_start(folder / entry.folder, manifest.lineage, verify=True)
            except GraphError as error:
                problems.append(str(error))
    found = list_segments(folder / "log") if (folder / "log").is_dir() else []
    if after >= 0 or ((not found or found[0][0] > 1) and (wanted is None or wanted.is_named)):
        begin = f"begins with change {found[0][0]}" if found else "is gone"
        oldest = manifest.snapshots[-1].sequence if manifest.snapshots else "none"
        named = "the newest version" if wanted is None else version_name(manifest.lineage, 0, wanted)
        problems.append(f"the log {begin}, the oldest snapshot is {oldest}")
        raise GraphError(f"{folder}: {named} cannot be reached any more: {'; '.join(problems)}")
    if storage.read(base).version != manifest.lineage:
        raise GraphError(f"{base} is not the original graph any more: nodes of it were forgotten")
    return Start(open_compared(base), State(manifest.lineage, 0))
