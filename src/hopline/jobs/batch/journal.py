"""The work folder of a run: what the run is, and which rows of it are done for good.

    manifest.json     written once, before anything else
    done.log          one line for each mark: crc32 of the rest, then JSON; a torn last line is no mark
    states/           rows, a file for each (level, node type)
    lock              held while a process works here

A mark is written and synced after the rows that it stands for are on the disk, never before.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from hopline.errors import BatchError, RunMismatch
from hopline.files import is_draft, remove_drafts, write_atomically
from hopline.jobs.batch.spans import Span, merged
from hopline.jobs.batch.states import disk_errors
from hopline.types import UNREADABLE

FORMAT_VERSION = 1


class Identity(msgspec.Struct, frozen=True):
    """What decides every byte of the states; two runs of one identity are the same run.

    Attributes:
        model, version: names.
        model_hash: sha256 of model.json, which holds the hashes of the other files.
        graph_version: of the snapshot.
        exact: all neighbours.
        nodes: hash of the rows asked for; "" for the whole graph.
        since: the run whose states are taken over; "" for none.
    """

    model: str
    version: str
    model_hash: str
    graph_version: str
    exact: bool
    nodes: str = ""
    since: str = ""

    @property
    def run_id(self) -> str:
        """16 hex digits."""
        import hashlib

        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()


class Manifest(msgspec.Struct, frozen=True):
    """The content of manifest.json.

    Attributes:
        graph_path: where the graph was, for a later run that compares with it.
    """

    identity: Identity
    graph_path: str
    format: int = FORMAT_VERSION


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows [begin, end) of a level's list are done; `kept`: rows of a previous run have been copied."""

    level: int
    node_type: str
    begin: int = 0
    end: int = 0
    kept: bool = False
    complete: bool = False


_NAMES = {
    "model": "model",
    "version": "version",
    "model_hash": "content of the model's folder",
    "graph_version": "graph version",
    "exact": "exact",
    "nodes": "nodes asked for (hash)",
    "since": "previous run",
}


class WorkFolder:
    """Opens, or makes, the folder of a run.

    Args:
        folder: `<out>.run`.
        manifest: of the run that is to be made.
        restart: throw away what another run left.

    Attributes:
        resumed: whether marks were found.

    Raises:
        RunMismatch: another run's, each difference named.
        BatchError: another process works here; or it cannot be written.
    """

    def __init__(self, folder: Path, manifest: Manifest, *, restart: bool = False) -> None:
        self.folder = folder
        self.manifest = manifest
        #: (level, node type) -> rows done.
        self._done: dict[tuple[int, str], list[Span]] = {}
        self._flags: set[tuple[int, str, str]] = set()
        self._log: BinaryIO | None = None
        with disk_errors(folder / "lock"):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take_lock()
            self.resumed = self._open(restart)
        except BaseException:
            self.close()
            raise

    def done(self, level: int, node_type: str) -> list[Span]:
        """Rows of a level's list that are done for good."""
        return self._done.get((level, node_type), [])

    def is_marked(self, level: int, node_type: str, flag: str) -> bool:
        """Whether a level is "complete", or its rows of the previous run are "kept"."""
        return (level, node_type, flag) in self._flags

    def mark(self, marks: list[Mark]) -> None:
        """Write marks and sync them; the rows that they stand for must be synced already."""
        if not marks:
            return
        assert self._log is not None
        with disk_errors(self.folder / "done.log"):
            for mark in marks:
                body = msgspec.json.encode(mark)
                self._log.write(b"%08x %b\n" % (zlib.crc32(body), body))
            self._log.flush()
            os.fdatasync(self._log.fileno())
        for mark in marks:
            self._count(mark)

    def remove(self) -> None:
        """Remove the folder: the run is published, and nothing of it is kept."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Let go of the lock."""
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BatchError(
                f"another process works in {self.folder}; wait for it, or name another folder with --work"
            ) from None

    def _open(self, restart: bool) -> bool:
        path = self.folder / "manifest.json"
        found = None if restart else read_manifest(self.folder)
        if found is not None:
            differences = _differences(found, self.manifest)
            if differences and not self._has_marks():
                found = None  # nothing was done there that could be lost
            elif differences:
                raise RunMismatch(
                    f"{self.folder} holds another run, which was not finished or was kept: "
                    f"{'; '.join(differences)}; give --restart to throw it away, or --work another folder",
                    differences,
                )
        if found is None:
            self._clear()
            body = msgspec.json.format(msgspec.json.encode(self.manifest), indent=1)
            with disk_errors(path):
                write_atomically(path, body, durable=True)
        self._read_marks()
        return bool(self._done or self._flags)

    def _has_marks(self) -> bool:
        path = self.folder / "done.log"
        return path.is_file() and bool(read_marks(path)[0])

    def _clear(self) -> None:
        for entry in self.folder.iterdir():
            if entry.name == "lock" or is_draft(entry):
                continue
            if entry.name not in ("manifest.json", "done.log", "states", "rows"):
                raise BatchError(
                    f"{self.folder} holds {entry.name}, which is no part of a run; name another"
                )
        for name in ("states", "rows"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        for name in ("manifest.json", "done.log"):
            (self.folder / name).unlink(missing_ok=True)
        remove_drafts(self.folder)

    def _read_marks(self) -> None:
        path = self.folder / "done.log"
        whole = 0
        if path.is_file():
            marks, whole = read_marks(path)
            for mark in marks:
                self._count(mark)
        with disk_errors(path):
            self._log = path.open("ab")
            self._log.truncate(whole)  # a torn last line

    def _count(self, mark: Mark) -> None:
        key = (mark.level, mark.node_type)
        self._done[key] = merged([*self.done(*key), (mark.begin, mark.end)])
        for flag in ("kept", "complete"):
            if getattr(mark, flag):
                self._flags.add((mark.level, mark.node_type, flag))


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a work folder; None where there is none.

    Raises:
        BatchError: it cannot be read, or is of a newer format.
    """
    path = folder / "manifest.json"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except UNREADABLE as error:
        raise BatchError(f"{path} is damaged: {error}; give --restart to throw the run away") from None
    if manifest.format != FORMAT_VERSION:
        raise BatchError(f"{path} is of format {manifest.format}, this Hopline writes {FORMAT_VERSION}")
    return manifest


def read_marks(path: Path) -> tuple[list[Mark], int]:
    """Marks of a log up to the first line that is torn, and the bytes that they take."""
    marks: list[Mark] = []
    whole = 0
    for line in path.read_bytes().splitlines(keepends=True):
        crc, _, body = line.partition(b" ")
        if not line.endswith(b"\n") or crc != b"%08x" % zlib.crc32(body[:-1]):
            break
        marks.append(msgspec.json.decode(body, type=Mark))
        whole += len(line)
    return marks, whole


def _differences(found: Manifest, wanted: Manifest) -> list[str]:
    there: dict[str, Any] = msgspec.to_builtins(found.identity)
    here: dict[str, Any] = msgspec.to_builtins(wanted.identity)
    return [
        f"{_NAMES[name]} is {there[name]!r} there and {here[name]!r} here"
        for name in there
        if there[name] != here[name]
    ]
