"""Where versions of models come from: an address, and what is behind it.

A folder, or anything that fsspec has a driver for. Calls block (disk, network): make them on a thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from hopline.config.schema import Config
from hopline.errors import ConfigError

#: Where copies of remote versions are kept, unless `models.cache` says otherwise.
DEFAULT_CACHE = Path("~/.cache/hopline/models")


class Repository(Protocol):
    """Models, their versions, and files beside the versions.

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
        """A local copy of a file beside the versions of a model ("serving.toml"); None without one.

        Raises:
            BadRequest: not a name.
            RepositoryUnavailable: as `fetch`.
        """
        ...


def open_repository(address: str | Path, cache: Path | None = None) -> Repository:
    """The repository at an address. Nothing is connected to yet.

    Args:
        address: a folder, or a URL: file://, s3://, gs://, http:// …
        cache: where copies of remote versions are kept; None means `DEFAULT_CACHE`.

    Raises:
        ConfigError: not a folder, an unknown scheme, or a driver that is not installed (names the package).
    """
    if isinstance(address, str) and "://" in address:
        scheme, _, rest = address.partition("://")
        if scheme.lower() != "file":
            from hopline.rollout.remote_repository import FsspecRepository

            return FsspecRepository(address, (cache or DEFAULT_CACHE).expanduser())
        address = "/" + rest.lstrip("/")
    from hopline.rollout.local_repository import LocalRepository

    return LocalRepository(Path(address).expanduser())


def configured_repository(config: Config) -> Repository:
    """The repository that the settings name.

    Raises:
        ConfigError: none is set, or as `open_repository`.
    """
    if config.models.repository is None:
        raise ConfigError(
            "models.repository: not set; give --repository or set it in hopline.toml (a folder, or a URL)"
        )
    return open_repository(config.models.repository, config.models.cache)


def absent(repository: Repository, model: str, version: str) -> str:
    """What to say of a version that is not there."""
    where = repository.address
    versions = repository.versions(model)
    if versions:
        return f"model {model!r} has no version {version!r} in {where}; there are: {', '.join(versions)}"
    return f"no model {model!r} in {where}; there are: {', '.join(repository.models()) or 'none'}"
