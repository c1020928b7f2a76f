"""A snapshot that a process uses: its folder is locked, so that no process removes it.

The lock is shared and of the folder itself; the kernel releases it when its holder ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hopline.errors import SnapshotDamaged
from hopline.files import lock
from hopline.snapshots.manifest import GRAPH, SnapshotManifest, decode_manifest


class HeldSnapshot:
    """A copy of a snapshot on this host, in use until it is released.

    Attributes:
        folder: of the copy.
        manifest: of the snapshot.
    """

    def __init__(self, folder: Path, manifest: SnapshotManifest, handle: int) -> None:
        self.folder = folder
        self.manifest = manifest
        self._handle = handle

    @property
    def graph(self) -> Path:
        """The folder of the graph."""
        return self.folder / GRAPH

    @property
    def precomputed(self) -> list[Path]:
        """Files of precomputed answers."""
        return [self.folder / name for name in self.manifest.precomputed]

    def release(self) -> None:
        """Use it no more; nothing the second time."""
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)

    close = release


def hold(place: Path, manifest_name: str) -> HeldSnapshot | None:
    """Lock a snapshot's folder for use; None where there is none with a readable manifest."""
    handle = _opened(place)
    if handle is None:
        return None
    try:
        lock(handle, shared=True)  # others lock it exclusively for a moment only
        if not _is_at(handle, place):
            raise FileNotFoundError(place)  # it was removed since
        path = place / manifest_name
        manifest = decode_manifest(path.read_bytes(), place.name, str(path))
        with contextlib.suppress(PermissionError):  # another user's copy
            os.utime(handle)  # it is used last, now
    except (OSError, SnapshotDamaged):
        os.close(handle)
        return None
    return HeldSnapshot(place, manifest, handle)


def is_used(place: Path) -> bool:
    """True if a process uses a snapshot."""
    with lock_unused(place) as is_free:
        return not is_free


@contextlib.contextmanager
def lock_unused(place: Path) -> Iterator[bool]:
    """Lock an unused snapshot, so that no process begins to use it; False if it is in use."""
    handle = _opened(place)
    if handle is None:
        yield False
        return
    try:
        yield lock(handle, wait=False) and _is_at(handle, place)
    finally:
        os.close(handle)


def _opened(place: Path) -> int | None:
    try:
        return os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None


def _is_at(handle: int, place: Path) -> bool:
    """True if an open folder still has its name."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(place))
    except OSError:
        return False
