"""Files of a cache that were compared with their hashes since this machine started.

A file that was compared is not read again as long as its inode, size and time of change stay the same: so
each file is read once on a host, however many processes open it. After a restart of the machine every
file is read again, because a power failure may have torn it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from hopline.artifact import sha256_of
from hopline.files import boot_id, write_atomically
from hopline.snapshots.manifest import SnapshotFile
from hopline.types import UNREADABLE


class _Record(msgspec.Struct):
    boot: str = ""
    #: sha256 -> (inode, size, changed ns)
    files: dict[str, tuple[int, int, int]] = {}


class VerifiedFiles:
    """The record of a cache; written only by the process that holds the cache's lock.

    Args:
        path: of the record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def known(self) -> dict[str, tuple[int, int, int]]:
        """Content hash -> identity of the file that has this content."""
        try:
            record = msgspec.json.decode(self._path.read_bytes(), type=_Record)
        except (OSError, *UNREADABLE):
            return {}
        return record.files if record.boot == boot_id() else {}

    def holds(self, path: Path, file: SnapshotFile, known: dict[str, tuple[int, int, int]]) -> bool:
        """True if a file is one that was compared and has not changed since; reads no content."""
        try:
            return known.get(file.sha256) == _identity(path)
        except OSError:
            return False

    def compare(self, path: Path, file: SnapshotFile, known: dict[str, tuple[int, int, int]]) -> bool:
        """Read a file and note in `known` that its content has the hash; False where it has not."""
        try:
            found = _identity(path)
            if found[1] != file.size or sha256_of(path) != file.sha256:
                return False
        except OSError:
            return False
        known[file.sha256] = found
        return True

    def write(self, known: dict[str, tuple[int, int, int]]) -> None:
        """Replace the record. Raises: OSError."""
        record = msgspec.json.encode(_Record(boot_id(), known))
        write_atomically(self._path, record, durable=False)


def _identity(path: Path) -> tuple[int, int, int]:
    found = os.stat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns
