"""Copies of snapshots on this host, shared by all processes.

    <folder>/
        objects/<sha256>            every file once, by its content
        snapshots/<id>/graph/…      hard links to objects; the folder is locked (shared) while it is used
        snapshots/<id>/precomputed/…
        snapshots/<id>/manifest.json
        pointers/<digest of an address>   the snapshot that the address had last
        verified.json, lock

One process fetches at a time; the others wait for it and find the copy. A file gets its name only after its
hash was compared. A process that dies leaves a file without a name, which the next one removes, and
its locks are released. Snapshots that nothing uses are removed, the oldest first, where room is needed.

`verified.json` names the files that were compared with their hashes since this machine started. Such a file
is not read again as long as its inode, size and time of change stay the same: each file is read once on a
host, however many processes open it. After a restart of the machine every file is read again, because a
power failure may have torn it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from hopline.artifact import sha256_of
from hopline.errors import ConfigError, SnapshotDamaged, SnapshotTooLarge, Unavailable
from hopline.files import (
    boot_id,
    draft_of,
    is_draft,
    lock,
    publish_file,
    publish_folder,
    sync,
    write_atomically,
)
from hopline.snapshots.held_snapshot import HeldSnapshot, hold, is_used, lock_unused
from hopline.snapshots.manifest import SnapshotAddress, SnapshotFile, SnapshotManifest
from hopline.snapshots.store import DISK_FULL, SnapshotStore
from hopline.types import UNREADABLE


class _Record(msgspec.Struct):
    boot: str = ""
    #: sha256 -> (inode, size, changed ns)
    files: dict[str, tuple[int, int, int]] = {}


class VerifiedFiles:
    """The record of a cache; written only by the process that holds the cache's lock."""

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


log = logging.getLogger(__name__)

#: Files that are fetched at the same time.
_TOGETHER = 4
#: Seconds between tries to get a lock.
_LOOK_S = 0.05
#: Without `max_bytes`, this much of the file system is left free: a share, and at most so many bytes.
_LEFT_FREE, _MOST_LEFT_FREE = 0.05, 1 << 30
_MANIFEST = "manifest.json"


class SnapshotCache:
    """Copies of snapshots in a folder.

    Args:
        folder: made when it is needed; on a local disk.
        max_bytes: of all copies; 0 takes what the file system has, less a little.
        unused: snapshots that are kept though nothing uses them, the newest ones.

    Attributes:
        max_bytes: as above.
        fetched_bytes: that were copied for this object.
    """

    def __init__(self, folder: Path, max_bytes: int = 0, unused: int = 1) -> None:
        self.folder = folder
        self.fetched_bytes = 0
        self.max_bytes = max_bytes
        self._unused = unused
        self._verified = VerifiedFiles(folder / "verified.json")
        self._stopped = False

    def stop(self) -> None:
        """Have a fetch that runs on another thread, and all later ones, end with an error."""
        self._stopped = True

    def take(
        self,
        address: SnapshotAddress,
        open_store: Callable[[], SnapshotStore],
        copy_elsewhere: Callable[[], int] | None = None,
    ) -> HeldSnapshot:
        """A whole, verified copy of a snapshot, fetched now if this host has none; to be released.

        Args:
            address: with an id.
            open_store: called only if something must be fetched.
            copy_elsewhere: calls `copy` in another process and returns its bytes; None copies here.

        Raises:
            SnapshotNotFound, SnapshotDamaged, SnapshotUnavailable: nothing usable exists.
            SnapshotTooLarge: this host's disk has no room; the message gives the numbers.
            ConfigError: the folder cannot be written.
        """
        held = self._held(address.id)
        if held is not None:
            return held
        with self._locked():
            held = self._held(address.id)  # another process may have fetched it while this one waited
            if held is None:
                self._remove_drafts()
                if copy_elsewhere is None:
                    self.copy(address, open_store)
                else:
                    self.fetched_bytes += copy_elsewhere()
                held = self._held(address.id)
            if held is None:
                raise SnapshotDamaged(f"{self._place(address.id)} was changed while it was opened")
            self._tidy()
        return held

    def remember(self, base: str, snapshot: str) -> None:
        """Note which snapshot an address named last; a failure to write harms nothing."""
        path = self._pointer(base)
        with contextlib.suppress(OSError):
            if not path.is_file() or path.read_text() != snapshot:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, snapshot.encode(), durable=False)

    def remembered(self, base: str) -> str | None:
        """The snapshot that an address named last, if this host has a copy of it."""
        try:
            snapshot = self._pointer(base).read_text()
        except OSError:
            return None
        return snapshot if (self._place(snapshot) / _MANIFEST).is_file() else None

    def tidy(self) -> None:
        """Remove what is not needed: unused snapshots beyond those kept, and files of none."""
        if not self.folder.is_dir():
            return
        with self._locked():
            self._tidy()

    def used_bytes(self) -> int:
        """Bytes of all copies, files that snapshots share counted once."""
        return sum(self._objects().values())

    def snapshots(self) -> dict[str, bool]:
        """Snapshot -> whether a process uses it; the one used last comes first."""
        return {place.name: is_used(place) for place in self._places()}

    # One snapshot

    def _held(self, snapshot: str) -> HeldSnapshot | None:
        """A copy that is whole, as far as was compared on this machine before."""
        held = hold(self._place(snapshot), _MANIFEST)
        if held is None:
            return None
        known = self._verified.known()
        if all(
            self._verified.holds(held.folder / name, file, known)
            for name, file in held.manifest.files.items()
        ):
            return held
        held.release()
        return None

    def copy(self, address: SnapshotAddress, open_store: Callable[[], SnapshotStore]) -> None:
        """Fetch what is missing, compare every file with its hash, then give the copy its name.

        For `take`, which holds the lock.

        Raises: HoplineError: as `take`.
        """
        began = time.perf_counter()
        place = self._place(address.id)
        found = hold(place, _MANIFEST)
        if found is not None:  # as it was before this machine started: perhaps nothing has to be fetched
            manifest = found.manifest
            found.release()
            store = None
        else:
            store = open_store()
            manifest = store.manifest(address.id)
        known = self._verified.known()
        missing = self._missing(manifest, known)
        if missing:
            self._make_room(address, manifest, missing)
            self._fetch(address, store or open_store(), missing, known)
        with self._disk(address, missing):
            self._verified.write({name: known[name] for name in self._objects() if name in known})
            self._assemble(place, manifest)
        log.info(
            "%s is on this host: %d bytes fetched, %d bytes present before, %.1f s",
            address.shown,
            sum(file.size for file in missing.values()),
            manifest.num_bytes - sum(file.size for file in missing.values()),
            time.perf_counter() - began,
        )

    def _missing(
        self, manifest: SnapshotManifest, known: dict[str, tuple[int, int, int]]
    ) -> dict[str, SnapshotFile]:
        """Files (by name, each content once) that this host does not have; removes damaged ones."""
        missing = {}
        for name, file in {file.sha256: (n, file) for n, file in manifest.files.items()}.values():
            path = self._object(file)
            self.check_running()
            if self._verified.holds(path, file, known) or self._verified.compare(path, file, known):
                continue
            known.pop(file.sha256, None)
            if path.exists():
                log.error("%s is damaged (its content changed on this host), and is fetched again", path)
                with self._writing():
                    path.unlink()
            missing[name] = file
        return missing

    def _fetch(
        self,
        address: SnapshotAddress,
        store: SnapshotStore,
        missing: dict[str, SnapshotFile],
        known: dict[str, tuple[int, int, int]],
    ) -> None:
        with self._writing():
            (self.folder / "objects").mkdir(parents=True, exist_ok=True)
        log.info(
            "fetching %s: %d files, %d bytes",
            address.shown,
            len(missing),
            sum(file.size for file in missing.values()),
        )

        def one(name: str, file: SnapshotFile) -> None:
            path = self._object(file)
            draft = draft_of(path)
            try:
                with self._disk(address, missing):
                    store.fetch(file, draft, name, self.check_running)
                    sync(draft)
                if not self._verified.compare(draft, file, known):
                    known.pop(file.sha256, None)
                    raise SnapshotDamaged(
                        f"{store.shown}/objects/{file.sha256} ({name}): its sha256 is another; remove this "
                        "file there, and publish the snapshot again"
                    )
                with self._disk(address, missing):
                    publish_file(draft, path, durable=False)
                self.fetched_bytes += file.size
            finally:
                draft.unlink(missing_ok=True)

        with ThreadPoolExecutor(_TOGETHER, thread_name_prefix="hopline-fetch") as threads:
            running = [threads.submit(one, name, file) for name, file in missing.items()]
            try:
                for each in running:
                    each.result()
            except BaseException:
                for each in running:
                    each.cancel()
                raise

    def _assemble(self, place: Path, manifest: SnapshotManifest) -> None:
        """A folder of links to objects, with all files or none."""
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = draft_of(place)
        try:
            for name, file in manifest.files.items():
                target = draft / name
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(self._object(file), target)
            (draft / _MANIFEST).write_bytes(manifest.encode())
            # One that exists is damaged; processes that use it have its files open.
            publish_folder(draft, place, durable=False)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    # Room

    def _make_room(
        self, address: SnapshotAddress, manifest: SnapshotManifest, missing: dict[str, SnapshotFile]
    ) -> None:
        """Remove what nothing uses until the files fit. Raises: SnapshotTooLarge: they cannot."""
        wanted = sum(file.size for file in missing.values())
        own = {file.sha256 for file in manifest.files.values()}  # some may be here from an earlier try
        for place in [None, *reversed(self._unused_places())]:
            if place is not None:
                self._remove(place)
            self._remove_loose(own)
            if wanted <= self._room():
                return
        raise self._too_large(address, wanted, self._room())

    def _room(self) -> int:
        """Bytes that may be written now."""
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            disk = shutil.disk_usage(self.folder)
        room = disk.free - min(_MOST_LEFT_FREE, int(_LEFT_FREE * disk.total))
        if self.max_bytes:
            room = min(room, self.max_bytes - self.used_bytes())
        return max(0, room)

    def _too_large(self, address: SnapshotAddress, wanted: int, room: int) -> SnapshotTooLarge:
        used = [name for name, is_used_now in self.snapshots().items() if is_used_now]
        limit = (
            f"snapshots.cache_bytes is {self.max_bytes}" if self.max_bytes else "no snapshots.cache_bytes"
        )
        free = shutil.disk_usage(self.folder).free
        return SnapshotTooLarge(
            f"{address.shown} needs {wanted} bytes more on this host, and {room} can be had: "
            f"{self.folder} has {self.used_bytes()} bytes, of {len(used)} snapshots in use "
            f"({', '.join(used) or 'none'}); {limit}, and its disk has {free} bytes free. "
            "Unload versions on old snapshots, or give it more room"
        )

    def _tidy(self) -> None:
        for place in self._unused_places()[self._unused :]:
            self._remove(place)
        self._remove_loose()

    def _remove(self, place: Path) -> None:
        """Remove a snapshot, unless a process uses it now."""
        with lock_unused(place) as is_free:
            if is_free:
                log.info("removing %s, which nothing uses", place)
                with self._writing():
                    gone = draft_of(place)
                    os.rename(place, gone)
                shutil.rmtree(gone, ignore_errors=True)

    def _remove_loose(self, wanted: Collection[str] = ()) -> None:
        """Remove files that belong to no snapshot: of a removed one, or of a fetch that failed."""
        for name in self._objects(loose=True).keys() - set(wanted):
            with contextlib.suppress(FileNotFoundError):
                (self.folder / "objects" / name).unlink()

    def _remove_drafts(self) -> None:
        for folder in (self.folder / "objects", self.folder / "snapshots"):
            for path in folder.iterdir() if folder.is_dir() else ():
                if is_draft(path):
                    shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    def _places(self) -> list[Path]:
        """Snapshots of this host, the one used last first."""
        folder = self.folder / "snapshots"
        found = []
        for path in folder.iterdir() if folder.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                if not is_draft(path):
                    found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found, reverse=True)]

    def _unused_places(self) -> list[Path]:
        return [place for place in self._places() if not is_used(place)]

    def _objects(self, *, loose: bool = False) -> dict[str, int]:
        """Content hash -> size; `loose`: only of files that no snapshot has."""
        folder = self.folder / "objects"
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = os.stat(entry.path)
                    if not loose or (status.st_nlink == 1 and not is_draft(Path(entry.path))):
                        found[entry.name] = status.st_size
        return found

    # Places, locks, errors

    def _place(self, snapshot: str) -> Path:
        return self.folder / "snapshots" / snapshot

    def _object(self, file: SnapshotFile) -> Path:
        return self.folder / "objects" / file.sha256

    def _pointer(self, base: str) -> Path:
        return self.folder / "pointers" / hashlib.sha256(base.encode()).hexdigest()[:16]

    def check_running(self) -> None:
        """Raise Unavailable after `stop`."""
        if self._stopped:
            raise Unavailable("the server is shutting down")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone in changing the cache; the kernel releases the lock of a process that dies."""
        with self._writing():
            self.folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self.check_running()
            while not lock(handle, wait=False):
                time.sleep(_LOOK_S)
                self.check_running()
            yield
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigError(
                f"snapshots.cache: {self.folder} cannot be written: {error.strerror or error}"
            ) from None

    @contextlib.contextmanager
    def _disk(self, address: SnapshotAddress, missing: dict[str, SnapshotFile]) -> Iterator[None]:
        """A full disk is reported with the numbers."""
        try:
            yield
        except OSError as error:
            if error.errno not in DISK_FULL:
                if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                    raise ConfigError(
                        f"snapshots.cache: {self.folder} cannot be written: {error.strerror}"
                    ) from None
                raise
            wanted = sum(file.size for file in missing.values())
            raise self._too_large(address, wanted, self._room()) from error
