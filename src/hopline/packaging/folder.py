"""A model version appears whole or not at all: written next to its place, then renamed."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hopline.errors import PackagingError
from hopline.files import publish_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version that is being written.

    Attributes:
        folder: where to write.
        path: where it will be.
    """

    folder: Path
    path: Path


def check_place(repository: Path, name: str, version: str, *, overwrite: bool) -> Path:
    """The path of a new version; checks that it may be written before the work is done.

    Raises: PackagingError: as `new_version`.
    """
    for what, value in (("model name", name), ("version", version)):
        if not isinstance(value, str):
            raise PackagingError(f'{what} {value!r}: must be text; write "{value}"')
        if not _NAME.fullmatch(value):
            raise PackagingError(
                f"{what} {value!r}: must start with a letter or digit and have only those and . _ - after"
            )
    path = repository / name / version
    _refuse(path, overwrite)
    return path


@contextmanager
def new_version(repository: Path, name: str, version: str, *, overwrite: bool) -> Iterator[NewVersion]:
    """Yield a folder to write in, and move it to its place when the block ends without an error.

    Raises: PackagingError: a bad name, or the version exists and `overwrite` is False.
    """
    path = check_place(repository, name, version, overwrite=overwrite)
    made = [place for place in (path.parent, *path.parent.parents) if not place.exists()]
    folder = _draft(path)
    try:
        folder.chmod(0o755)
        yield NewVersion(folder, path)
        _refuse(path, overwrite)
        publish_folder(folder, path, durable=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        for place in made:  # innermost first; one that holds something stays
            with suppress(OSError):
                place.rmdir()


def _draft(path: Path) -> Path:
    """A folder next to a version's place, for its files.

    Raises: PackagingError: it cannot be created.
    """
    try:
        while True:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A leading dot keeps a server that scans the repository from taking it for a version.
            with suppress(FileNotFoundError):  # another process has just removed the empty folder
                return Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise PackagingError(f"{path}: cannot be written: {error.strerror}") from None


def _refuse(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise PackagingError(f"{path} exists; choose another version, or pass overwrite=True")
