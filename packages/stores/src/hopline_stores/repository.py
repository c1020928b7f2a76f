"""A repository at a URL, read through fsspec and copied into a local cache.

Any driver that fsspec knows: s3:// (s3fs), gs:// (gcsfs), abfs:// (adlfs), http:// … Each takes its
credentials and endpoint from where it always does: environment, files, the role of the machine.

Where the address cannot be asked, what was copied before is served: a server restarts without its store.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from hopline.config.urls import shown
from hopline.engine.student import MODEL_FILE, SPEC_FILE
from hopline.errors import ArtifactError, ConfigError, HoplineError, ModelNotFound, RepositoryUnavailable
from hopline.files import locked, publish_folder, write_atomically
from hopline.models.repository import absent
from hopline.models.version_folder import MARKERS, check_name, in_order, is_name, listed_files, verify
from hopline.remote_address import open_address


class VersionCache:
    """Copies of what one address has."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder / hashlib.sha256(address.encode()).hexdigest()[:16]

    def models(self) -> list[str]:
        """Models that had a copy."""
        return sorted(_names(self.folder / "current"))

    def versions(self, model: str) -> list[str]:
        """Versions that had a copy, oldest first."""
        return in_order(_names(self.folder / "current" / model))

    def last(self, model: str, version: str) -> Path | None:
        """The copy that was asked for last; None without a whole one."""
        with suppress(FileNotFoundError):
            digest = (self.folder / "current" / model / version).read_text()
            return _whole(self._place(model, version, digest))
        return None

    def keep(
        self, model: str, version: str, digest: str, fill: Callable[[Path], object], shown: str
    ) -> Path:
        """The copy of this content, filled now if there is none.

        Args:
            digest: of the content, a name.
            fill: writes the version into the empty folder that it is given.
            shown: where that comes from, for messages.

        Raises:
            ArtifactError, ArtifactCorrupted: what was filled in is not a whole version.
            ConfigError: the cache cannot be written.
            Exception: what `fill` raises.
        """
        place = self._place(model, version, digest)
        found = _whole(place)
        if found is None:
            lock = self.folder / "locks" / f"{model}@{version}"
            with _writing(lock):
                lock.parent.mkdir(parents=True, exist_ok=True)
                lock.touch()
            with locked(lock):
                found = _whole(place)  # another worker may have filled it while this one waited
                if found is None:
                    self._fill(place, fill, shown)
        self.write(self.folder / "current" / model / version, digest.encode())
        return place

    def model_file(self, model: str, name: str) -> Path:
        """Path of the copy of a file next to the versions, if there is one."""
        return self.folder / "model_files" / model / name

    def write(self, path: Path, content: bytes) -> None:
        """Write a small file, whole or not at all.

        Raises:
            ConfigError: the cache cannot be written.
        """
        with _writing(path):
            if path.is_file() and path.read_bytes() == content:
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content, durable=False)

    def _place(self, model: str, version: str, digest: str) -> Path:
        return self.folder / "copies" / digest / model / version

    def _fill(self, place: Path, fill: Callable[[Path], object], shown: str) -> None:
        with _writing(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            # This process holds the lock: what is there was left by one that died, or is damaged.
            for left in place.parent.glob(f".{place.name}-*"):
                shutil.rmtree(left)
            if place.exists():
                shutil.rmtree(place)
            draft = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
        try:
            fill(draft)
            verify(draft, shown)
            with _writing(place):
                publish_folder(draft, place, durable=False)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _names(folder: Path) -> list[str]:
    with suppress(FileNotFoundError):
        return [path.name for path in folder.iterdir() if is_name(path.name)]
    return []


def _whole(place: Path) -> Path | None:
    """A copy that is there and undamaged."""
    with suppress(ArtifactError):
        verify(place)
        return place
    return None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"models.cache: {path} cannot be written: {error.strerror or error}") from None


log = logging.getLogger("hopline.models.remote")

_LONGEST_MESSAGE = 300
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

T = TypeVar("T")


class FsspecRepository:
    """See `Repository`.

    Raises:
        ConfigError: an unknown scheme, or a driver that is not installed.
    """

    def __init__(self, url: str, cache: Path) -> None:
        self.address = shown(url)
        self._files, root = open_address(url, "models.repository")
        self._root = root.rstrip("/")
        self._cache = VersionCache(cache, url)

    def models(self) -> list[str]:
        """As `Repository.models`."""
        return self._called(lambda: sorted(self._folders(self._root)), self._cache.models)

    def versions(self, model: str) -> list[str]:
        """As `Repository.versions`."""
        check_name("model", model)
        path = f"{self._root}/{model}"
        return self._called(
            lambda: in_order(name for name in self._folders(path) if self._marker(f"{path}/{name}")),
            lambda: self._cache.versions(model),
        )

    def fetch(self, model: str, version: str) -> Path:
        """As `Repository.fetch`: a copy in the cache, made now if there is none of this content."""
        check_name("model", model)
        check_name("version", version)

        def last() -> Path | None:
            return self._cache.last(model, version)

        found = self._called(lambda: self._fetch(model, version), last)
        if found is None:
            raise ModelNotFound(absent(self, model, version))
        return found

    def model_file(self, model: str, name: str) -> Path | None:
        """As `Repository.model_file`: copied again at each call."""
        check_name("model", model)
        check_name("file", name)
        path = self._cache.model_file(model, name)

        def copy() -> Path | None:
            content = self._read(f"{self._root}/{model}/{name}")
            if content is None:
                path.unlink(missing_ok=True)
                return None
            self._cache.write(path, content)
            return path

        return self._called(copy, lambda: path if path.is_file() else None)

    def _fetch(self, model: str, version: str) -> Path | None:
        path, shown = f"{self._root}/{model}/{version}", f"{self.address}/{model}/{version}"
        marker, content = self._manifest(path)
        if content is None:
            return None
        sizes: dict[str, int] = {}
        student = None
        if marker == MARKERS[0]:
            names = list(listed_files(content, f"{shown}/{marker}"))
            student = self._read(f"{path}/{SPEC_FILE}")
            if student is not None:  # distilled later: the model's own list does not know it
                names += [SPEC_FILE, MODEL_FILE]
        else:  # lists no files: whatever is there belongs to it
            sizes = self._below(path)
            names = [name for name in sizes if name != marker]
        digest = hashlib.sha256(
            content + repr(sorted(sizes.items())).encode() + (student or b"")
        ).hexdigest()[:32]

        def fill(folder: Path) -> None:
            log.info("copying %s (%d files)", shown, len(names))
            (folder / marker).write_bytes(content)  # the bytes that the digest is of
            local = [folder / name for name in names]
            for target in local:
                target.parent.mkdir(parents=True, exist_ok=True)
            if names:
                with suppress(FileNotFoundError):  # reported by name when the copy is verified
                    self._files.copy_files([f"{path}/{name}" for name in names], local)

        return self._cache.keep(model, version, digest, fill, shown)

    def _manifest(self, path: str) -> tuple[str, bytes | None]:
        for marker in MARKERS:
            if (content := self._read(f"{path}/{marker}")) is not None:
                return marker, content
        return "", None

    def _read(self, path: str) -> bytes | None:
        with suppress(FileNotFoundError):
            return self._files.read(path)
        return None

    def _marker(self, path: str) -> bool:
        return any(name in MARKERS for name, _ in self._entries(path))

    def _folders(self, path: str) -> list[str]:
        return [name for name, kind in self._entries(path) if kind == "directory" and is_name(name)]

    def _entries(self, path: str) -> Iterator[tuple[str, str]]:
        """(last part of the name, "file" or "directory") of what lies in a folder."""
        try:
            found = self._files.entries(path)
        except FileNotFoundError:
            return
        for entry in found:
            name = entry["name"].rstrip("/")
            # Object stores may list an empty object for the folder itself.
            if name != path.strip("/") and name != path:
                yield name.rpartition("/")[2], entry["type"]

    def _below(self, path: str) -> dict[str, int]:
        """Path inside a folder -> size, of every file below it."""
        found = self._files.below(path)
        prefix = path.strip("/") + "/"
        sizes = {}
        for full, entry in found.items():
            name = full.strip("/").removeprefix(prefix)
            if all(is_name(part) for part in name.split("/")):
                sizes[name] = int(entry.get("size") or 0)
        return sizes

    def _called(self, call: Callable[[], T], remembered: Callable[[], T]) -> T:
        """Answer of the address; while it does not respond, the remembered answer, if there is one."""
        try:
            return call()
        except HoplineError as error:
            if not isinstance(error, RepositoryUnavailable):
                raise
            failure = error
        except Exception as error:  # drivers raise whatever their libraries do: all say that it is away
            said = str(error).partition("\n")[0][:_LONGEST_MESSAGE]
            if isinstance(error, OSError) and error.errno in _FULL:
                raise ConfigError(
                    f"models.cache: {self._cache.folder} cannot be written: {error.strerror}"
                ) from error
            failure = RepositoryUnavailable(
                f"models.repository: {self.address} cannot be asked: {type(error).__name__}: {said}", 5.0
            )
            failure.__cause__ = error
        known = remembered()
        if not known:
            raise failure
        log.warning("%s; using the copies made before", failure)
        return known
