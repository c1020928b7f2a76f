"""The folder of snapshots at an address: reads and writes its files through fsspec."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from hopline.config.urls import shown
from hopline.errors import HoplineError, SnapshotDamaged, SnapshotNotFound, SnapshotUnavailable
from hopline.files import draft_of, is_draft, publish_file, write_atomically
from hopline.remote_address import open_address
from hopline.snapshots.manifest import (
    POINTER,
    Pointer,
    SnapshotFile,
    SnapshotManifest,
    decode_manifest,
    decode_pointer,
    id_of,
    is_id,
)

#: The disk of this host cannot take more.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

_LONGEST_MESSAGE = 300
_RETRY_S = 5.0


class Listed(NamedTuple):
    """A file in a listing: last part of its name, size, and time of change (0: not known)."""

    name: str
    size: int
    changed: float


class SnapshotStore:
    """The snapshots at one address.

    Attributes:
        shown: the URL without possible passwords.

    Methods block, and raise SnapshotUnavailable where the address does not respond or denies access.

    Raises:
        ConfigError: an unknown scheme, or a driver that is not installed.
    """

    def __init__(self, base: str, setting: str = "graph") -> None:
        self.shown = shown(base)
        self._files, root = open_address(base, setting)
        self._root = root.rstrip("/")

    # Read

    def pointer(self) -> Pointer:
        """The newest snapshot. Raises: SnapshotNotFound, SnapshotDamaged."""
        where = f"{self.shown}/{POINTER}"
        content = self._read(POINTER)
        if content is None:
            raise SnapshotNotFound(
                f"{where} is absent: no snapshot was published there; run `hopline snapshot publish`"
            )
        return decode_pointer(content, where)

    def manifest(self, snapshot: str) -> SnapshotManifest:
        """The manifest of a snapshot. Raises: SnapshotNotFound, SnapshotDamaged."""
        where = f"{self.shown}/{_manifest(snapshot)}"
        content = self._read(_manifest(snapshot))
        if content is None:
            raise SnapshotNotFound(f"{where} is absent: {self.shown} has no snapshot {snapshot}")
        return decode_manifest(content, snapshot, where)

    def fetch(self, file: SnapshotFile, target: Path, name: str, check: Callable[[], object]) -> None:
        """Copy the content of a file to a path; its hash is not compared.

        Args:
            name: of the file in the snapshot, for messages.
            check: is called often meanwhile; raises to stop.

        Raises:
            SnapshotDamaged: it is absent, or of another size.
            OSError: this host's disk is full.
        """
        where = f"{self.shown}/objects/{file.sha256} ({name})"

        def bounded(num_bytes: int) -> None:
            check()
            if num_bytes > file.size:
                more = f"{where} has more than the {file.size} bytes of the manifest"
                raise SnapshotDamaged(f"{more}; publish the snapshot again")

        try:
            with self._foreign():
                self._files.copy(f"{self._root}/objects/{file.sha256}", target, bounded)
        except FileNotFoundError:
            raise SnapshotDamaged(f"{where} is absent; publish the snapshot again") from None
        size = target.stat().st_size
        if size != file.size:
            raise SnapshotDamaged(
                f"{where} has {size} bytes, the manifest says {file.size}; publish the snapshot again"
            )

    def manifests(self) -> list[Listed]:
        """Manifests of the address, the newest first; their names are the ids. Other files are left out."""
        found = [
            entry._replace(name=entry.name.removesuffix(".json"))
            for entry in self._listed("manifests")
            if entry.name.endswith(".json") and is_id(entry.name.removesuffix(".json"))
        ]
        return sorted(found, key=lambda entry: (-entry.changed, entry.name))

    def objects(self) -> dict[str, int]:
        """Content hash -> size, of every object."""
        return {entry.name: entry.size for entry in self._listed("objects")}

    # Write

    def put_object(self, file: SnapshotFile, source: Path) -> bool:
        """Upload a file under its content hash; False where the address has it."""
        path = f"{self._root}/objects/{file.sha256}"
        with self._foreign():
            if self._files.size(path) == file.size:
                return False
            if self._files.is_local:  # object stores show an object when it is whole
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                draft = draft_of(Path(path))
                try:
                    shutil.copyfile(source, draft)
                    publish_file(draft, Path(path), durable=True)
                finally:
                    draft.unlink(missing_ok=True)
            else:
                self._files.driver.put_file(str(source), path)
        return True

    def put_manifest(self, manifest: SnapshotManifest) -> str:
        """Upload a manifest, after its files; returns the id of the snapshot."""
        content = manifest.encode()
        snapshot = id_of(content)
        self._write(_manifest(snapshot), content)
        return snapshot

    def put_pointer(self, pointer: Pointer) -> None:
        """Make a snapshot the newest, in one step."""
        self._write(POINTER, msgspec.json.encode(pointer))

    def remove_manifest(self, snapshot: str) -> None:
        """Remove a snapshot; its files stay."""
        with self._foreign():
            self._files.driver.rm_file(f"{self._root}/{_manifest(snapshot)}")

    def remove_object(self, sha256: str) -> None:
        """Remove the content of a file."""
        with self._foreign():
            self._files.driver.rm_file(f"{self._root}/objects/{sha256}")

    # Drivers

    def _read(self, name: str) -> bytes | None:
        try:
            with self._foreign():
                return self._files.read(f"{self._root}/{name}")
        except FileNotFoundError:
            return None

    def _write(self, name: str, content: bytes) -> None:
        path = f"{self._root}/{name}"
        with self._foreign():
            if self._files.is_local:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                write_atomically(Path(path), content, durable=True)
            else:
                self._files.driver.pipe_file(path, content)

    def _listed(self, folder: str) -> list[Listed]:
        try:
            with self._foreign():
                entries = self._files.entries(f"{self._root}/{folder}")
        except FileNotFoundError:
            return []
        return [
            Listed(entry["name"].rpartition("/")[2], int(entry.get("size") or 0), _changed(entry))
            for entry in entries
            if entry["type"] == "file"
            and (name := entry["name"].rpartition("/")[2])
            and not is_draft(Path(name))
        ]

    @contextlib.contextmanager
    def _foreign(self) -> Iterator[None]:
        """Drivers raise whatever their libraries do: it all means that the address cannot be used now."""
        try:
            yield
        except (HoplineError, FileNotFoundError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in DISK_FULL:
                raise
            said = str(error).partition("\n")[0][:_LONGEST_MESSAGE]
            raise SnapshotUnavailable(
                f"{self.shown} cannot be used now: {type(error).__name__}: {said}", _RETRY_S
            ) from error


def _manifest(snapshot: str) -> str:
    return f"manifests/{snapshot}.json"


def _changed(entry: dict[str, Any]) -> float:
    """Time of an object's last change: each driver has its own field for it."""
    found = entry.get("LastModified") or entry.get("mtime") or entry.get("updated") or entry.get("created")
    if isinstance(found, datetime):
        return found.timestamp()
    return float(found) if isinstance(found, int | float) else 0.0
