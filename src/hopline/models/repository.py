"""Interface of a model repository: models, their versions, and files next to the versions.

Calls block (disk, network): make them on a thread. `repositories.py` opens one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class Repository(Protocol):
    """Models, their versions, and files next to the versions.

    Attributes:
        address: as configured, without a password.
    """

    address: str

    def models(self) -> list[str]:
        """Names of all models, sorted.

        Raises: RepositoryUnavailable: it cannot be asked, and nothing is known from before.
        """
        ...

    def versions(self, model: str) -> list[str]:
        """Names of a model's versions in natural order, oldest first; [] where there is no such model.

        Raises:
            BadRequest: not a name.
            RepositoryUnavailable: as `models`.
        """
        ...

    def fetch(self, model: str, version: str) -> Path:
        """A local folder with the version, every file compared with model.json's sha256.

        The folder does not change any more, unless it is the repository itself.

        Raises:
            BadRequest: not a name.
            ModelNotFound: no such model or version; the message lists what there is.
            ArtifactError, ArtifactCorrupted: it is not a version, or files are absent or changed.
            ConfigError: `models.cache` cannot be written.
            RepositoryUnavailable: it cannot be asked, and there is no copy from before.
        """
        ...

    def model_file(self, model: str, name: str) -> Path | None:
        """A local copy of a file next to the versions of a model ("serving.toml"); None without one.

        Raises:
            BadRequest: not a name.
            RepositoryUnavailable: as `fetch`.
        """
        ...


def absent(repository: Repository, model: str, version: str) -> str:
    """The error text for a missing version."""
    where = repository.address
    versions = repository.versions(model)
    if versions:
        return f"model {model!r} has no version {version!r} in {where}; there are: {', '.join(versions)}"
    return f"no model {model!r} in {where}; there are: {', '.join(repository.models()) or 'none'}"
