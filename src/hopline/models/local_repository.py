"""A repository that is a folder: `<folder>/<model>/<version>/model.json`."""

from __future__ import annotations

import logging
from pathlib import Path

from hopline.errors import ConfigError, ModelNotFound
from hopline.models.repository import absent
from hopline.models.version_folder import MARKERS, check_name, in_order, is_name, verify

log = logging.getLogger(__name__)


class LocalRepository:
    """See `Repository`; hidden folders and files are not models.

    Raises:
        ConfigError: it is not a folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError(f"models.repository: {folder} is not a folder")
        self.folder = folder
        self.address = str(folder)

    def models(self) -> list[str]:
        """As `Repository.models`: every visible folder."""
        return sorted(path.name for path in self.folder.iterdir() if is_name(path.name) and path.is_dir())

    def versions(self, model: str) -> list[str]:
        """As `Repository.versions`; none where the folder may not be read, such as a disk's lost+found."""
        check_name("model", model)
        folder = self.folder / model
        try:
            if not folder.is_dir():
                return []
            return in_order(
                path.name for path in folder.iterdir() if is_name(path.name) and _is_version(path)
            )
        except OSError as error:
            log.warning("%s cannot be read: %s", folder, error.strerror)
            return []

    def fetch(self, model: str, version: str) -> Path:
        """As `Repository.fetch`: the folder itself, verified."""
        check_name("model", model)
        check_name("version", version)
        folder = self.folder / model / version
        if not _is_version(folder):
            raise ModelNotFound(absent(self, model, version))
        verify(folder)
        return folder

    def model_file(self, model: str, name: str) -> Path | None:
        """As `Repository.model_file`."""
        check_name("model", model)
        check_name("file", name)
        path = self.folder / model / name
        return path if path.is_file() else None


def _is_version(folder: Path) -> bool:
    return any((folder / marker).is_file() for marker in MARKERS)
