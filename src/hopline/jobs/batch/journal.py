"""The work folder of a run: the identity of the run, and which rows are durably done.

    manifest.json     written once, before anything else
    done.log          one line for each mark: crc32 of the rest, then JSON; a torn last line is ignored
    states/           rows, a file for each (level, node type)
    lock              held while a process works here

A mark is written and synced only after its rows are on the disk.
"""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from hopline.errors import BatchError, RunMismatch
from hopline.files import is_draft, lock, remove_drafts, write_atomically
from hopline.jobs.batch.spans import Span, merged
from hopline.jobs.batch.states import disk_errors
from hopline.types import UNREADABLE

FORMAT_VERSION = 1


class RunIdentity(msgspec.Struct, frozen=True):
    """All inputs that determine the states; two runs with one identity are the same run.

    Attributes:
        model, version: names.
        model_hash: sha256 of model.json, which holds the hashes of the other files.
        graph_version: of the snapshot.
        exact: all neighbours.
        nodes: hash of the requested rows; "" for the whole graph.
        since: the run whose states are reused; "" for none.
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


class RunManifest(msgspec.Struct, frozen=True):
    """The content of manifest.json.

    Attributes:
        graph_path: where the graph was, for a later run that compares with it.
    """

    identity: RunIdentity
    graph_path: str
    format: int = FORMAT_VERSION


class Mark(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows [begin, end) of a level's list are done; `kept`: the rows of a previous run were copied."""

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
    "nodes": "requested nodes or edges (hash)",
    "since": "previous run",
}


class WorkFolder:
    """Opens or creates the work folder of a run.

    Attributes:
        resumed: True if marks existed.

    Raises:
        RunMismatch: the folder of another run; each difference is named.
        BatchError: another process works here, or the folder cannot be written.
    """

    def __init__(self, folder: Path, manifest: RunManifest, *, restart: bool = False) -> None:
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
            if not lock(self._lock, wait=False):
                raise BatchError(
                    f"another process uses {folder}; wait until it ends, or use another folder with --work"
                )
            self.resumed = self._open(restart)
        except BaseException:
            self.close()
            raise

    def done(self, level: int, node_type: str) -> list[Span]:
        """Rows of a level's list that are durably done."""
        return self._done.get((level, node_type), [])

    def is_marked(self, level: int, node_type: str, flag: str) -> bool:
        """True if a level is "complete", or its rows of the previous run are "kept"."""
        return (level, node_type, flag) in self._flags

    def mark(self, marks: list[Mark]) -> None:
        """Write marks and sync them; their rows must be synced already."""
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
        """Remove the folder: the run is published, and its states are not kept."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Release the lock."""
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _open(self, restart: bool) -> bool:
        path = self.folder / "manifest.json"
        found = None if restart else read_manifest(self.folder)
        if found is not None:
            differences = _differences(found, self.manifest)
            marks = self.folder / "done.log"
            if differences and not (marks.is_file() and read_marks(marks)[0]):
                found = None  # no work would be lost
            elif differences:
                raise RunMismatch(
                    f"{self.folder} holds another run, which was not finished or was kept: "
                    f"{'; '.join(differences)}; pass --restart to discard it, or another folder as --work",
                    differences,
                )
        if found is None:
            self._clear()
            body = msgspec.json.format(msgspec.json.encode(self.manifest), indent=1)
            with disk_errors(path):
                write_atomically(path, body, durable=True)
        self._read_marks()
        return bool(self._done or self._flags)

    def _clear(self) -> None:
        for entry in self.folder.iterdir():
            if entry.name == "lock" or is_draft(entry):
                continue
            if entry.name not in ("manifest.json", "done.log", "states", "rows"):
                raise BatchError(
                    f"{self.folder} holds {entry.name}, which is not part of a run; use another folder"
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


def read_manifest(folder: Path) -> RunManifest | None:
    """The manifest of a work folder; None if there is none.

    Raises:
        BatchError: the manifest cannot be read, or has a newer format.
    """
    path = folder / "manifest.json"
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        manifest = msgspec.json.decode(content, type=RunManifest)
    except UNREADABLE as error:
        raise BatchError(f"{path} is damaged: {error}; pass --restart to discard the run") from None
    if manifest.format != FORMAT_VERSION:
        raise BatchError(f"{path} has format {manifest.format}, this Hopline writes {FORMAT_VERSION}")
    return manifest


def read_marks(path: Path) -> tuple[list[Mark], int]:
    """Marks of a log up to the first torn line, and their size in bytes."""
    marks: list[Mark] = []
    whole = 0
    for line in path.read_bytes().splitlines(keepends=True):
        crc, _, body = line.partition(b" ")
        if not line.endswith(b"\n") or crc != b"%08x" % zlib.crc32(body[:-1]):
            break
        marks.append(msgspec.json.decode(body, type=Mark))
        whole += len(line)
    return marks, whole


def _differences(found: RunManifest, wanted: RunManifest) -> list[str]:
    there: dict[str, Any] = msgspec.to_builtins(found.identity)
    here: dict[str, Any] = msgspec.to_builtins(wanted.identity)
    return [
        f"{_NAMES[name]} was {there[name]!r} and is now {here[name]!r}"
        for name in there
        if there[name] != here[name]
    ]
