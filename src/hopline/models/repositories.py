"""Opens the model repository at an address: a folder, or anything that fsspec has a driver for.

`graph_models` lists the graph models in it, for programs that only read what models read.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

from hopline.artifact import ModelSpec, read_spec
from hopline.config.schema import Config
from hopline.config.urls import shown
from hopline.doors import NAMES
from hopline.errors import ConfigError
from hopline.files import expanded
from hopline.models.kinds import kind_of
from hopline.models.local_repository import LocalRepository
from hopline.models.repository import Repository


def graph_models(config: Config) -> list[tuple[Path, ModelSpec]]:
    """(folder, spec) of every graph model version in the repository, for the prefetcher."""
    repository = configured_repository(config)
    names = list(config.models.names) or repository.models()
    folders = [repository.fetch(name, version) for name in names for version in repository.versions(name)]
    return [(folder, read_spec(folder)) for folder in folders if kind_of(folder) == "graph"]


#: Where copies of remote versions are kept, unless `models.cache` says otherwise.
DEFAULT_CACHE = Path("~/.cache/hopline/models")


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
            try:
                made = NAMES.require("models.remote_repository")
            except ModuleNotFoundError as error:
                raise ConfigError(f"models.repository: {shown(address)}: {error}") from None
            return cast(Repository, made(address, expanded(cache or DEFAULT_CACHE, "models.cache")))
        address = "/" + rest.lstrip("/")
    return LocalRepository(expanded(address, "models.repository"))


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
