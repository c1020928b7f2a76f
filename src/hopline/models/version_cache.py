"""Local copies of versions that came from a URL.

    <cache>/<digest of the address>/
        copies/<digest of the content>/<model>/<version>/   whole versions, never changed
        current/<model>/<version>                           the digest that the address had last
        model_files/<model>/<file>                          files next to versions
        locks/

A copy is filled in a hidden folder next to its place, verified and renamed: an existing copy is whole, and
a process that dies leaves only what the next one removes. Content that changes under the same name gets a
new place, so that nothing changes below a server that has loaded the old one. Any number of
processes may share a cache; it may be deleted whenever no server uses it.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hopline.errors import ArtifactError, ConfigError
from hopline.files import locked, publish_folder, write_atomically
from hopline.models.version_folder import in_order, is_name, verify


class VersionCache:
    """Copies of what one address has.

    Args:
        folder: of all addresses; made when it is first written to.
        address: whose versions these are.
    """

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
        try:
            digest = (self.folder / "current" / model / version).read_text()
        except FileNotFoundError:
            return None
        return _whole(self._place(model, version, digest))

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
        """Where the copy of a file next to the versions is, if there is one."""
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
    try:
        return [path.name for path in folder.iterdir() if is_name(path.name)]
    except FileNotFoundError:
        return []


def _whole(place: Path) -> Path | None:
    """A copy that is there and undamaged."""
    if not place.is_dir():
        return None
    try:
        verify(place)
    except ArtifactError:
        return None
    return place


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(f"models.cache: {path} cannot be written: {error.strerror or error}") from None
